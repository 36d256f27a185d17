"""What comes from elsewhere: the lowest and the newest allowed releases, known holes, licences, and no network when it is not asked for."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_house import ROOT
from tests.trust.conftest import FULL, Check

Checks = Callable[..., Check]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Of these, and of what they need in turn, the licences are looked at; the others are used to build and to test.
EXTRAS = ("", "serve", "hf", "ctranslate2")
# What a user may do with them is at least what ours allows: use, change and pass on, with the notice.
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CNRI-Python",
    "HPND",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "MPL-2.0",  # of files that are not ours and are not changed
    "PSF-2.0",
    "Python-2.0",
    "Unlicense",
    "Zlib",
}
# How packages without an SPDX expression name their licence.
SPDX = {
    "apache license 2.0": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache-2.0 license": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0",
    "bsd license": "BSD",
    "bsd": "BSD",
    "bsd-3-clause license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "psf": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
    "cmu license (mit-cmu)": "MIT-CMU",
    "historical permission notice and disclaimer (hpnd)": "HPND",
}
# Packages whose metadata tell no licence, or not only it, each with what its own licence file says.
READ_BY_HAND: dict[str, str] = {
    "matplotlib": "PSF-2.0",  # its own licence, of the form of Python's
}
SUBSET = [f"tests/{name}" for name in ("ops", "models", "tasks", "training", "system")]


def requirements(extras: tuple[str, ...] = EXTRAS) -> list[Requirement]:
    """Return what pyproject.toml asks for."""
    found = []
    for extra in extras:
        lines = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
        found += [Requirement(line) for line in lines]
    return found


def needed() -> dict[str, str]:
    """Return name and version of every installed distribution that ours needs, and that those need in turn."""
    found: dict[str, str] = {}
    left = requirements()
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        if one.marker is not None and not any(one.marker.evaluate({"extra": extra}) for extra in ("", *one.extras)):
            continue
        if name in found or name == "regard":
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed
        found[name] = distribution.version
        left += [line for line in map(Requirement, distribution.requires or []) if wanted(line, one.extras)]
    return found


def wanted(line: Requirement, extras: set[str]) -> bool:
    """Say whether a dependency of a distribution is needed with these extras of it."""
    return line.marker is None or any(line.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def licence(name: str) -> str:
    """Return the licence a distribution declares, as an SPDX expression where that can be told."""
    if name in READ_BY_HAND:
        return READ_BY_HAND[name]
    metadata: Any = importlib.metadata.metadata(name)
    if metadata.get("License-Expression"):
        return str(metadata["License-Expression"])
    classes: list[str] = [line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or [] if line.startswith("License :: OSI")]
    declared = str(metadata.get("License") or "").strip()
    texts = classes or ([declared] if declared and "\n" not in declared else [])
    return " AND ".join(sorted({SPDX.get(text.lower(), text) for text in texts})) or "unknown"


def permitted(expression: str) -> bool:
    """Say whether an expression is made of allowed licences; of alternatives one is enough."""
    parts = re.split(r"\s+AND\s+", expression.replace("(", " ").replace(")", " "))
    return all(any(one.strip().split(" WITH ")[0] in ALLOWED for one in re.split(r"\s+OR\s+", part)) for part in parts)


def test_the_licence_of_every_dependency_is_one_that_goes_with_ours(check: Checks) -> None:
    installed = needed()
    c = check("supply", "licences of all dependencies", cases=len(requirements(("",))), quick=len(requirements(("",))))
    found = {name: licence(name) for name in sorted(installed)}
    for name, expression in found.items():
        c.case(name, happened=expression != "unknown", wrong=None if permitted(expression) else f"{expression} is not among those allowed")
    c.note("; ".join(f"{name} {installed[name]} {expression}" for name, expression in found.items()))
    assert {canonicalize_name(one.name) for one in requirements(("",))} <= set(found)


@pytest.mark.parametrize(
    ("expression", "good"),
    [("MIT", True), ("Apache-2.0 OR GPL-3.0-only", True), ("BSD-3-Clause AND GPL-3.0-only", False), ("GPL-3.0-or-later", False)],
)
def test_a_licence_that_does_not_go_with_ours_is_seen(expression: str, good: bool) -> None:
    assert permitted(expression) == good


def test_every_dependency_has_a_lowest_release_and_none_is_fetched_from_elsewhere(check: Checks) -> None:
    lines = [*PROJECT["dependencies"], *(line for lines in PROJECT["optional-dependencies"].values() for line in lines)]
    ours = [Requirement(line) for line in lines if not line.startswith("regard[")]
    c = check("supply", "dependencies name a lowest release, and no URL", cases=len(ours), quick=len(ours))
    for one in ours:
        bounded = any(each.operator in (">=", "==", "~=") for each in one.specifier)
        c.case(one.name, happened=one.url is None, wrong=None if bounded else "has no lower bound")
    torch = next(one for one in ours if one.name == "torch")
    # Below 2.10 its loader has holes that are known and can be used.
    c.case("torch", wrong=None if not torch.specifier.contains("2.9.1") and torch.specifier.contains("2.10.0") else str(torch))


def lowest_torch(install: list[str]) -> str | None:
    """Return what to ask for to get the lowest torch; None where the index has it only with gigabytes for GPUs, and ours is without."""
    least = least_of(next(one for one in requirements(("",)) if one.name == "torch"))
    if not importlib.metadata.version("torch").endswith("+cpu"):
        return f"torch=={least}"
    exact = f"torch=={least}.0+cpu"
    return None if subprocess.run([*install, "--dry-run", "--no-deps", exact], capture_output=True, check=False).returncode else exact


def least_of(one: Requirement) -> str:
    """Return the lowest release that is allowed."""
    return next(each.version for each in one.specifier if each.operator == ">=")


def pins(lowest: bool, torch: str | None) -> list[str]:
    """Return what to install: each dependency at its lowest release (torch at the one given), or at any that is allowed."""
    found = []
    for one in requirements(("", "serve")):
        exact = torch if one.name == "torch" else f"{one.name}=={least_of(one)}"
        found.append(exact if lowest and exact is not None else str(one))
    tests = [Requirement(line) for line in PROJECT["optional-dependencies"]["dev"] if not line.startswith("regard[")]
    kept = {"pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "area-attention"}
    return [*found, *(str(one) for one in tests if one.name in kept)]


def copy_of_the_sources(folder: Path) -> Path:
    """Copy what is under version control, so that nothing is built where it stands."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def plain_environment() -> dict[str, str]:
    """Return the environment of a process that runs a suite of its own."""
    left_out = ("PYTEST_", "REGARD_TRUST", "COV_")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)} | {"OMP_NUM_THREADS": "1"}


def run_suite(words: list[str], folder: Path, *options: str) -> tuple[int, str]:
    """Run the subset of the suite; return how many tests passed, and its last words if not all did."""
    command = [*words, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *options, *SUBSET]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=plain_environment(), timeout=1500)
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-500:]]
    passed = int(found[1]) if (found := re.search(r"(\d+) passed", last[0])) else 0
    return passed, "" if done.returncode == 0 else "\n".join(done.stdout.splitlines()[-12:])


@pytest.mark.timeout(2400)
@pytest.mark.skipif(not FULL, reason="make trust")
@pytest.mark.parametrize("lowest", [True, False], ids=["lowest", "latest"])
def test_the_suite_passes_with_the_lowest_and_the_latest_releases(check: Checks, tmp_path: Path, lowest: bool) -> None:
    which = "lowest" if lowest else "latest"
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, capture_output=True)
    python = str(environment / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--prefer-binary"]
    torch = lowest_torch(install) if lowest else None
    asked = pins(lowest, torch)
    done = subprocess.run([*install, "setuptools>=77", *asked], capture_output=True, text=True, check=False)
    if done.returncode:
        check("supply", f"{which} dependencies", cases=0, quick=0).note("not run")
        missing = re.findall(r"No matching distribution found for (\S+)", done.stderr)
        pytest.skip(f"the index does not give the {which} releases: {', '.join(missing) or 'they do not go together'}")
    sources = copy_of_the_sources(tmp_path / "sources")
    subprocess.run([*install, "--no-deps", "--no-build-isolation", str(sources)], check=True, capture_output=True)
    where = subprocess.run([python, "-c", "import regard; print(regard.__file__)"], cwd=sources, capture_output=True, text=True, check=True)
    assert Path(where.stdout.strip()).is_relative_to(environment), "what is tested must be what was installed"
    listed = subprocess.run([python, "-m", "pip", "list", "--format", "json"], capture_output=True, check=True).stdout
    versions = {canonicalize_name(item["name"]): item["version"] for item in json.loads(listed)}
    c = check("supply", f"the suite with the {which} allowed dependencies", cases=500, quick=500)
    for one in map(Requirement, asked):
        version = versions.get(canonicalize_name(one.name), "0")
        c.case(one.name, happened=one.specifier.contains(version, prereleases=True))
    # Old releases use what newer ones of other packages call deprecated.
    passed, wrong = run_suite([python], sources, *(["-W", "ignore::DeprecationWarning"] if lowest else []))
    for _ in range(passed):
        c.case("test")
    c.case("suite", happened=passed > 0, wrong=wrong or None)
    ours = sorted(canonicalize_name(one.name) for one in requirements(("", "serve")))
    c.note(f"{passed} tests; " + ", ".join(f"{name} {versions[name]}" for name in ours))
    if lowest and torch is None:
        c.note("torch not at its lowest: of that the index has no build for processors alone")


@pytest.mark.skipif(not FULL, reason="make trust")
@pytest.mark.skipif(shutil.which("pip-audit") is None, reason="pip-audit is not on PATH")
def test_no_dependency_has_a_known_hole(check: Checks, tmp_path: Path) -> None:
    """With nothing skipped: a package the service does not know, such as one with a local version, would count as audited."""
    installed = needed()
    listed = tmp_path / "requirements.txt"
    # The public part of a version: the service knows torch 2.13.0, not the build of it for processors.
    listed.write_text("".join(f"{name}=={version.partition('+')[0]}\n" for name, version in installed.items()))
    words = ["pip-audit", "--requirement", str(listed), "--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except ValueError:
        check("supply", "pip-audit", cases=0, quick=0).note("not run")
        pytest.skip("the service of pip-audit gave no answer")
    if all("skip_reason" in item for item in found):
        check("supply", "pip-audit", cases=0, quick=0).note("not run")
        pytest.skip("the service of pip-audit knows none of the packages")
    c = check("supply", "pip-audit: no known hole, nothing skipped", cases=len(installed), quick=len(installed))
    for item in found:
        holes = [hole["id"] for hole in item.get("vulns", [])]
        c.case(item["name"], happened="skip_reason" not in item, wrong=", ".join(holes) or None)


INSIDE = """
import fcntl, os, socket, struct, sys
request = struct.pack("16sh", b"lo", 1)
with socket.socket() as own:
    fcntl.ioctl(own, 0x8914, request)  # what the machine says to itself goes on: bring lo up
names = [name for _, name in socket.if_nameindex()]
with socket.socket() as other:
    reached = other.connect_ex(("203.0.113.1", 9))
print("interfaces", *names, "errno", reached, flush=True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def without_network() -> list[str] | None:
    """Return the words that run a command where no network is; None where that is not permitted."""
    for options in (["-n"], ["-rn"]):
        words = ["unshare", *options, sys.executable, "-c", INSIDE]
        if (
            shutil.which("unshare")
            and not subprocess.run([*words, shutil.which("true") or ""], capture_output=True, check=False).returncode
        ):
            return words
    return None


@pytest.mark.timeout(2400)
@pytest.mark.skipif(not FULL, reason="make trust")
def test_the_suite_needs_no_network(check: Checks) -> None:
    words = without_network()
    if words is None:
        check("supply", "the suite without a network", cases=0, quick=0).note("not run")
        pytest.skip("unshare -n is not permitted here")
    told = subprocess.run([*words, shutil.which("true") or ""], capture_output=True, text=True, check=True).stdout.split()
    c = check("supply", "the suite with the network cut (unshare -n)", cases=500, quick=500)
    # There is one interface, and an address elsewhere cannot be reached: 101, no route.
    c.case("cut", happened=told == ["interfaces", "lo", "errno", "101"], wrong=None)
    passed, wrong = run_suite([*words, sys.executable], ROOT)
    for _ in range(passed):
        c.case("test")
    c.case("suite", happened=passed > 0, wrong=wrong or None)
    c.note(f"{passed} tests of {', '.join(SUBSET)}")


def test_the_command_line_connects_to_nothing(check: Checks, tmp_path: Path) -> None:
    """A verb of each kind, in a process in which opening a connection is an error."""
    from tests.trust.golden import make

    runs = {task: str(make.golden(make.versions()[-1], task) / "run") for task in make.ASKED}
    commands = [["list"], ["translate", runs["translation"]], ["doctor"], ["score", runs["lm"]], ["classify", runs["classification"]]]
    c = check("supply", "commands open no connection", cases=len(commands), quick=2)
    commands = commands[: c.wanted]
    program = tmp_path / "program.py"
    program.write_text(
        "import socket, sys\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, args: opened.append(event) if event in ('socket.connect', 'socket.getaddrinfo') else None)\n"
        "try:\n"
        "    socket.socket().connect(('127.0.0.1', 9))\n"
        "except OSError:\n"
        "    pass\n"
        "from regard.cli import main\n"
        "for words in " + repr(commands) + ":\n"
        "    sys.argv = ['regard', *words]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as left:\n"
        "        print('LEFT', left.code, len(opened), flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], input=b"", capture_output=True, check=False, env={**os.environ, "REGARD_DEVICE": "cpu"}
    )
    told = [line.split()[1:] for line in done.stdout.decode().splitlines() if line.startswith("LEFT ")]
    for words, (code, opened) in zip(commands, told, strict=False):
        # The one is that of the program itself, which shows that they are seen.
        c.case(words[0], happened=int(opened) >= 1, wrong=None if (code, opened) == ("0", "1") else f"exit code {code}, {opened} opened")


def test_the_policy_names_no_person_and_refers_to_what_exists(check: Checks) -> None:
    text = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
    c = check("supply", "SECURITY.md: no personal address, and what it refers to exists", cases=2, quick=2)
    c.case("no personal address", wrong="an address" if re.search(r"[\w.]+@[\w.]+", text) else None)
    promised = [name for name in re.findall(r"`(tests/[\w/.]+)`", text) if not (ROOT / name).exists()]
    c.case("what it refers to", happened="`tests/" in text, wrong=", ".join(promised) or None)
