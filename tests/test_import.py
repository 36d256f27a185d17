"""What `import regard` offers, what it costs, and what is said about a name it has not."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import regard
import regard.attention
from regard.aliases import unknown_name
from regard.errors import OtherNameError
from tests.trust.golden import make

PACKAGES = [info.name for info in pkgutil.iter_modules(regard.__path__) if info.ispkg]


def test_it_offers_what_the_readme_promises():
    assert regard.MultiHeadAttention is regard.attention.MultiHeadAttention
    for name in regard.attention.__all__:
        assert getattr(regard, name) is getattr(regard.attention, name)
    assert regard.ops is importlib.import_module("regard.ops")
    assert regard.models is importlib.import_module("regard.models")
    assert regard.view is importlib.import_module("regard.observe").view
    code = "from regard import *; import json; print(json.dumps([name for name in dir() if not name.startswith('_')]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) - {"json"} == set(regard.__all__)


def test_it_brings_nothing_before_it_is_used_and_the_help_no_torch():
    for code in ("import regard; regard.__version__", "import regard.cli"):
        program = f"import sys, json; {code}; print(json.dumps(list(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert {"torch", "numpy", "regard.attention", "regard.viewer"} & set(json.loads(done.stdout)) == set()


# The modules that `regard translate` of a text needs, of packages that hold more.
OF_A_TRANSLATION = {
    "metrics": set(),
    "training": {
        *("atomic_folder", "checkpoint", "distributed", "lock", "memory_check", "optimizer", "precision", "signals", "stream_state"),
        *("training_job", "weights"),
    },
    "tasks": {
        *(
            "argument_types",
            "batch_threads",
            "chunking",
            "confidence",
            "forced_text",
            "links_file",
            "long_lines",
            "predict",
            "run_folder",
            "translation_prediction",
            "translation_run",
        ),
        "unknown_tokens",
    },
    "data": {
        "synthetic",  # the names of the sets, in the help of `generate`
        *(
            "batching",
            "encodings",
            "input_pairs",
            "lines",
            "link_lines",
            "markup",
            "markup_placement",
            "scripts",
            "shortlist",
            "text_encoder",
        ),
        *("token_arrays", "unigram", "vocabulary", "word_table"),
    },
    "viewer": set(),
    "explanations": set(),
}


def test_the_library_imports_where_no_process_forks():
    # As on Windows; the standard library looks for the function, too, so it is imported first.
    code = "import concurrent.futures.thread, random, torch, os; del os.register_at_fork"
    parts = "regard.data, regard.explanations, regard.models, regard.observe, regard.progress, regard.viewer"
    subprocess.run([sys.executable, "-c", f"{code}; import {parts}"], check=True)


def test_a_translation_imports_what_it_needs_and_no_more():
    run = make.golden(make.versions()[-1], "translation") / "run"
    program = (
        "import json, sys; from regard.cli import main\ntry:\n    main()\nfinally:\n    print(json.dumps([*sys.modules]), file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, "translate", str(run), "--quiet"]
    done = subprocess.run(command, input="ein Hund\n", capture_output=True, text=True, check=True)
    loaded = json.loads(done.stderr.splitlines()[-1])
    assert done.stdout.count("\n") == 1
    for name, modules in OF_A_TRANSLATION.items():
        start = f"regard.{name}."
        assert {module.removeprefix(start) for module in loaded if module.startswith(start)} == modules
    # sacrebleu, Pillow and the like take as long as all of Regard; torch's compiler takes longer than torch.
    heavy = {"sacrebleu", "PIL", "matplotlib", "pandas", "scipy", "sympy", "transformers", "torch._dynamo", "torch._inductor"}
    assert heavy & set(loaded) == set()


def test_dir_shows_what_is_offered_and_nothing_else():
    assert dir(regard) == sorted(["__version__", *regard.__all__])
    assert {"open", "view", "ops", "MultiHeadAttention", "Areas"} <= set(dir(regard))
    assert "annotations" not in dir(regard)
    for name in PACKAGES:
        package = importlib.import_module(f"regard.{name}")
        if not hasattr(package, "__all__"):
            assert name in ("commands", "integrations"), "what is for others to use says what that is"
            continue
        assert dir(package) == sorted(package.__all__)
        assert all(hasattr(package, each) for each in dir(package))


@pytest.mark.parametrize("module", ["regard", "regard.attention"])
@pytest.mark.parametrize(
    ("name", "leads_to"),
    [
        ("AreaAttention", r"Areas\(max_area\), ops.area_attention"),
        ("BahdanauAttention", r"Attention\(AdditiveScore\(\.\.\.\)\)"),
        ("LuongAttention", r"Attention\(GeneralScore\(\.\.\.\)\)"),
        ("StructuredSelfAttention", "StructuredAttention"),
        ("MultiheadAttention", "MultiHeadAttention"),
        ("SelfAttention", "MultiHeadAttention"),
        ("AdditiveAttention", r"Attention\(AdditiveScore\(\.\.\.\)\)"),
        ("DotProductAttention", r"Attention\(DotScore\(\)\)"),
        ("ScaledDotProductAttention", r"Attention\(DotScore\(scaled=True\)\)"),
        ("HardAttention", "HardChoice"),
        ("NonLocalMeans", "NonLocal"),
        ("CausalMask", "ops.causal_mask"),
    ],
)
def test_the_names_of_others_lead_to_the_class_however_they_are_imported(module, name, leads_to):
    with pytest.raises(AttributeError, match=f"{module} has no {name}: .* is {leads_to}"):
        getattr(importlib.import_module(module), name)
    assert not hasattr(importlib.import_module(module), name)
    assert getattr(importlib.import_module(module), name, 7) == 7


def test_the_import_statement_which_swallows_attribute_errors_lets_the_message_through():
    with pytest.raises(OtherNameError, match="regard has no BahdanauAttention: additive score"):
        from regard import BahdanauAttention  # noqa: F401
    with pytest.raises(OtherNameError, match=r"regard\.attention has no MultiheadAttention: multi-head attention"):
        from regard.attention import MultiheadAttention  # noqa: F401


@pytest.mark.parametrize(("name", "near"), [("MultiHeadAtention", "MultiHeadAttention"), ("Aras", "Areas"), ("causalmask", "")])
def test_another_unknown_name_is_an_attribute_error_with_the_nearest(name, near):
    with pytest.raises(AttributeError, match=f"did you mean {near}" if near else "has no attribute"):
        getattr(regard.attention, name)
    assert not hasattr(regard, name)
    assert getattr(regard, name, 7) == 7


def test_no_name_that_exists_or_that_tools_ask_for_is_taken_for_one_of_others():
    for name in ("__path__x", "_ipython_display_", "pytest_plugins", "setUpModule", "load_tests", "T", ""):
        assert isinstance(unknown_name("regard", name, regard.attention.__all__), AttributeError)
