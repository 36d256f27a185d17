"""The rules of the house that a machine can hold: nothing that can run foreign code, small pieces, examples, no stray paths."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.config import Frozen

ROOT = Path(__file__).parents[1]
CODE = ("src", "tests", "benchmarks", "examples")
TEXT = (*CODE, "docs", "configs", ".ci")
MAX_FILE_LINES = 500
MAX_BODY_LINES = 60
MAX_PARAMETERS = 7

# Pieces that may be larger, each with its reason.
LARGER_ON_PURPOSE: dict[str, str] = {
    "src/regard/ops/area_attention.py:area_attention": "one call for all that area attention can be",
    "src/regard/ops/materialized_areas.py:area_keys": "one call for all that a key of an area can be made of",
    "src/regard/ops/reference.py:area_attention": "the same, and the weights of learned keys",
    "src/regard/ops/flex_attention.py:attention": "FlexAttention's signature, and what it lacks",
    "src/regard/ops/cached_attention.py:cached_attention": "one call for all that attention to a store can be",
    "src/regard/ops/nonlocal_attention.py:nonlocal_attention": "one call for all forms and normalizers",
    "src/regard/ops/kernels/area_triton.py:area_attention_triton": "the operator's arguments, passed on",
    "src/regard/ops/kernels/area_triton.py:area_attention_triton_backward": "the operator's arguments, passed on",
    "src/regard/viewer/page.py:render_page": "one call for all that a page can be",
    "src/regard/observe/show.py:view": "one call for all that can be shown",
    "src/regard/integrations/hub.py:_from_pretrained": "the signature of the Hub's mixin",
    "src/regard/integrations/torch.py:forward": "the arguments of torch.nn.MultiheadAttention.forward",
    "src/regard/attention/multi_head.py:forward": "three tensors, three masks, and how to compute it",
    "src/regard/attention/single_head.py:forward": "three tensors, two masks, and what windows and choices need",
    "src/regard/attention/multi_head.py:__init__": "torch.nn.MultiheadAttention's settings, and a score and areas",
}
# Public names that need no example of their own, each with its reason.
NO_EXAMPLE: dict[str, str] = {}

# Written in pieces, so that this file does not hold what it looks for.
SLASH = "/"
STRAY = [
    SLASH + "work" + SLASH,
    SLASH + "tmp" + SLASH + "envs",
    SLASH + "opt" + SLASH,
    SLASH + "root" + SLASH,
    SLASH + "home" + SLASH,
    "pypi" + ".org",
    "python" + "hosted.org",
    "download." + "pytorch.org",
]

PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "pickletools"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {
    ("torch", "load"),
    ("yaml", "load"),
    ("yaml", "load_all"),
    ("yaml", "full_load"),
    ("yaml", "unsafe_load"),
    ("os", "system"),
    ("os", "popen"),
    ("subprocess", "getoutput"),
    ("subprocess", "getstatusoutput"),
}
KEYWORDS = {"shell", "allow_pickle"}
# Writes a pickle. A benchmark may: the tools we are measured against read nothing else.
NOT_IN_THE_PACKAGE = {("torch", "save")}


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def text_files() -> Iterator[tuple[Path, str]]:
    candidates = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]  # a file in a worktree
    candidates += [path for folder in TEXT for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted(candidates):
        if "__pycache__" in path.parts or any(part.endswith(".egg-info") for part in path.parts):
            continue
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def forbidden(text: str, attributes: set[tuple[str, str]] = ATTRIBUTES | NOT_IN_THE_PACKAGE) -> list[str]:
    """Return `line: what` of everything in a Python file that could run code found in a file or a string."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names if alias.name.split(".")[0] in PICKLES]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [(node.module.split(".")[0], alias.name) for alias in node.names]
            found += [(node, f"from {module} import {name}") for module, name in names if module in PICKLES or (module, name) in attributes]
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in BUILTINS:
                found.append((node, called.id))
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and (called.value.id, called.attr) in attributes:
                found.append((node, f"{called.value.id}.{called.attr}"))
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in KEYWORDS and not off:
                    found.append((node, f"{keyword.arg}="))
    return [f"{node.lineno}: {what}" for node, what in found]


def too_large(path: Path, text: str) -> list[tuple[str, str]]:
    """Return (where, what) of everything over the limits in a file of src: its lines, a function's body or parameters."""
    name = path.relative_to(ROOT).as_posix()
    found = [(name, f"{text.count(chr(10))} lines")] if text.count("\n") > MAX_FILE_LINES else []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) else node.body
        lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
        if lines > MAX_BODY_LINES:
            found.append((f"{name}:{node.name}", f"{lines} lines of body"))
        # A command of the command line has one parameter for each option.
        command = any("command" in ast.unparse(decorator) for decorator in node.decorator_list)
        parameters = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs) if a.arg not in {"self", "cls"}]
        if len(parameters) > MAX_PARAMETERS and not command:
            found.append((f"{name}:{node.name}", f"{len(parameters)} parameters"))
    return found


def all_too_large() -> list[tuple[str, str]]:
    return [found for path in python_files("src") for found in too_large(path, path.read_text(encoding="utf-8"))]


def public_objects() -> list[tuple[str, Any]]:
    """Return (module.name, object) of every name in the `__all__` of regard and its packages."""
    modules = [regard, *(importlib.import_module(m.name) for m in pkgutil.iter_modules(regard.__path__, "regard.") if m.ispkg)]
    return [(f"{module.__name__}.{name}", getattr(module, name)) for module in modules for name in getattr(module, "__all__", ())]


def is_record(thing: Any) -> bool:
    """Say whether a class only names fields (settings describe each of theirs) or a contract: no behaviour that could be shown."""
    return inspect.isclass(thing) and (
        issubclass(thing, BaseException | tuple | Frozen) or dataclasses.is_dataclass(thing) or getattr(thing, "_is_protocol", False)
    )


def test_no_code_runs_what_a_file_or_a_string_holds_and_the_package_writes_no_pickle() -> None:
    found = []
    for path in python_files(*CODE):
        name = path.relative_to(ROOT).as_posix()
        attributes = ATTRIBUTES | NOT_IN_THE_PACKAGE if name.startswith(("src/", "tests/")) else ATTRIBUTES
        found += [f"{name}:{line}" for line in forbidden(path.read_text(encoding="utf-8"), attributes)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.memory",
        "torch.load('x')",
        "torch.save(x, 'x')",
        "from torch import load",
        "yaml.load(text)",
        "eval('1')",
        "exec(text)",
        "os.system('ls')",
        "subprocess.run('ls', shell=True)",
        "np.load('x', allow_pickle=flag)",
    ],
)
def test_a_forbidden_line_is_found(line: str) -> None:
    assert len(forbidden(line)) == 1


@pytest.mark.parametrize("line", ["model.eval()", "torch.compile(model)", "re.compile('x')", "yaml.safe_load(text)", "run(x, shell=False)"])
def test_an_innocent_line_passes(line: str) -> None:
    assert forbidden(line) == []


def test_every_folder_of_the_package_is_a_package() -> None:
    folders = {path.parent for path in python_files("src")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []  # it would be missing from the wheel


def test_files_functions_and_signatures_stay_small() -> None:
    assert [f"{where}: {what}" for where, what in all_too_large() if where not in LARGER_ON_PURPOSE] == []


def test_a_piece_over_the_limits_is_found() -> None:
    parameters = ", ".join(f"a{i}" for i in range(MAX_PARAMETERS + 1))
    text = f"def f(self, {parameters}):\n    '''Long\n    docstring.'''\n" + "    x = 1\n" * (MAX_BODY_LINES + 1)
    path = ROOT / "src" / "regard" / "f.py"
    assert too_large(path, text) == [("src/regard/f.py:f", "61 lines of body"), ("src/regard/f.py:f", "8 parameters")]
    assert too_large(path, "\n" * (MAX_FILE_LINES + 1)) == [("src/regard/f.py", "501 lines")]


def test_no_file_holds_a_path_of_one_machine_or_the_address_of_a_registry() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {stray}"
        for path, text in text_files()
        for stray in STRAY
        if re.search(rf"(?<![\w.~}}]){re.escape(stray)}", text)
    ]
    assert found == []


@pytest.mark.parametrize(("name", "thing"), [pytest.param(n, t, id=n) for n, t in public_objects() if callable(t)])
def test_a_public_name_is_documented_with_an_example(name: str, thing: Any) -> None:
    documentation = inspect.getdoc(thing) if not inspect.isclass(thing) else thing.__doc__
    assert documentation, f"{name} has no docstring"
    if not is_record(thing) and name not in NO_EXAMPLE:
        assert ">>> " in documentation, f"{name} has no example in its docstring"


def test_every_exception_to_a_rule_is_still_needed() -> None:
    assert set(LARGER_ON_PURPOSE) <= {where for where, _ in all_too_large()}
    undocumented = {name for name, thing in public_objects() if callable(thing) and ">>> " not in (thing.__doc__ or "")}
    assert set(NO_EXAMPLE) <= undocumented


def test_the_version_is_written_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {regard.__version__}\n" in citation
    assert f"## {regard.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dynamic"] == ["version"]
