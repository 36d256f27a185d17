"""The site of `make docs`: it has every page, mechanism and public name, and neither it nor its building asks for anything outside."""

from __future__ import annotations

import functools
import http.server
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from regard.integrations.page_model import export_page
from regard.mechanisms import MECHANISMS
from regard.tasks import Translator
from tests.tasks.tiny import TEXTS, trained
from tests.test_house import public_objects
from tests.viewer.conftest import driver  # noqa: F401

ROOT = Path(__file__).parents[1]
# Put before the build: a connection or the address of a host is an error.
NO_NETWORK = """
import socket

def refuse(*where, **_):
    raise AssertionError(f"the build asks for {where}")

socket.getaddrinfo = socket.create_connection = socket.socket.connect = socket.socket.connect_ex = refuse
"""


@pytest.fixture(scope="module")
def site_pages() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield importlib.import_module("site_pages")


@pytest.fixture(scope="module")
def texts(site_pages: ModuleType) -> dict[str, str]:
    return site_pages.pages()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site from a copy, a warning being an error, with a live model and without a network."""
    for package in ("mkdocs", "material", "mkdocstrings_handlers"):
        pytest.importorskip(package, reason="the extra docs builds the site")
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "src", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info"))
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml"):
        shutil.copy(path, folder)
    (folder / "runs" / "demo").mkdir(parents=True)
    export_page(trained(folder / "live"), folder / "runs" / "demo" / "model.html")
    (folder / "sitecustomize.py").write_text(NO_NETWORK, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not re.search(r"^(WARNING|ERROR)", done.stderr, re.MULTILINE), done.stderr
    return folder / "build" / "site"


def test_every_document_is_a_page_and_in_the_menu(site_pages: ModuleType, texts: dict[str, str]) -> None:
    documents = [ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")]
    documents += (ROOT / "docs").rglob("*.md")
    assert [path for path in documents if site_pages.documents()[path] not in texts] == []

    def leaves(menu: list[Any]) -> list[str]:
        values = [part if isinstance(part, str) else next(iter(part.values())) for part in menu]
        return [leaf for value in values for leaf in ([value] if isinstance(value, str) else leaves(value))]

    shown = leaves(site_pages.navigation(texts))
    assert len(shown) == len(set(shown))
    assert sorted(page for page in texts if not page.startswith("results/")) == sorted(shown)


def test_every_public_name_is_in_the_api_once(texts: dict[str, str]) -> None:
    found = re.findall(r"^::: (\S+)$", "\n".join(text for page, text in texts.items() if page.startswith("api/")), re.MULTILINE)
    assert len(found) == len(set(found))
    # Names of `regard` that are those of regard.attention stand there.
    wanted = {name for name, thing in public_objects() if not isinstance(thing, ModuleType) and name.count(".") > 1}
    wanted |= {f"regard.{name}" for name in ("check", "open", "view", "watch")}
    assert wanted - set(found) == set()
    assert {name for name in set(found) - wanted if not name.startswith("regard.integrations.")} == set()


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.slug)
def test_a_mechanism_has_a_page_with_equation_picture_code_and_api(texts: dict[str, str], mechanism: Any) -> None:
    text = texts[f"mechanisms/{mechanism.slug}.md"]
    assert re.search(r"^```text\n.+?^```$", text, re.MULTILINE | re.DOTALL)
    assert re.search(r"^```python\n.+?^```$", text, re.MULTILINE | re.DOTALL)
    assert f"](../pictures/{mechanism.slug}.svg)" in text
    named = re.findall(r"\[`[^`]+`\]\[([\w.]+)\]", text)
    assert named
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute)


def test_a_link_to_what_the_site_has_not_is_its_text(site_pages: ModuleType) -> None:
    text = "[a](../README.md) [b](mechanisms.md#area-attention) [c](results/studies) [d](#here) [e](https://x.y)\n```text\n[f](g)\n```\n"
    expected = "[a](index.md) [b](mechanisms/area-attention.md) c [d](#here) [e](https://x.y)\n```text\n[f](g)\n```\n"
    assert site_pages.for_site(text, ROOT / "docs" / "models.md", "models.md").replace("models.md#here", "#here") == expected


def test_the_site_asks_for_nothing_outside(built: Path) -> None:
    loaded = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=[\"']?((?:https?:)?//[^\"' >]+)|<link\b[^>]*?\bhref=[\"']?((?:https?:)?//[^\"' >]+)"
    )
    pages = sorted(built.rglob("*.html"))
    assert len(pages) > 80
    assert [(page.name, found) for page in pages for found in loaded.findall(page.read_text(encoding="utf-8"))] == []


def test_every_file_that_a_page_loads_or_links_to_is_there(built: Path) -> None:
    named = re.compile(r"<[^>]*?\b(?:src|href)=[\"']([^\"'#?>]+)")
    missing = []
    for page in sorted(built.rglob("*.html")):
        if page.name == "404.html":  # its addresses are those of the server's root
            continue
        for address in set(named.findall(page.read_text(encoding="utf-8"))):
            if not re.match(r"\w+:|//", address) and not (page.parent / unquote(address)).exists():
                missing.append((page.relative_to(built).as_posix(), address))
    assert missing == []


def test_the_site_can_be_searched_and_is_dark_where_that_is_liked(built: Path) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"] for entry in index["docs"]}
    assert {"concepts.html", "mechanisms/area-attention.html", "api/regard.attention.html#regard.attention.MultiHeadAttention"} <= places
    text = (built / "index.html").read_text(encoding="utf-8")
    assert 'data-md-color-scheme="slate"' in text
    assert 'data-md-color-media="(prefers-color-scheme: dark)"' in text


@pytest.fixture
def address(built: Path) -> Iterator[str]:
    """Serve the site to this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(built))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_front_page_opens_fast_and_holds_the_live_model(built: Path, address: str, driver: Any) -> None:  # noqa: F811
    assert (built / "model.html").read_bytes() == (built.parents[1] / "runs" / "demo" / "model.html").read_bytes()
    driver.get("about:blank")
    driver.get(f"{address}/index.html")
    milliseconds = driver.execute_script("return performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert 0 < milliseconds < 2000
    asked = driver.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in asked if not name.startswith((address, "data:", "blob:"))] == []
    assert f"{address}/model.html" not in asked  # it may be large: not before it is opened
    driver.execute_script("document.querySelector('details').open = true; document.querySelector('iframe').scrollIntoView()")
    driver.switch_to.frame(0)
    try:
        WebDriverWait(driver, 20, 0.05).until(lambda page: page.find_elements(By.ID, "ask"))
        driver.find_element(By.ID, "text").send_keys(TEXTS[1])
        driver.execute_script("document.getElementById('ask').click()")
        WebDriverWait(driver, 20, 0.05).until(lambda page: page.find_elements(By.CSS_SELECTOR, "#tabs [role=tab]"))
        (expected,) = Translator.open(built.parents[1] / "live" / "run").translate([TEXTS[1]])
        assert expected.text in driver.find_element(By.ID, "main").text
    finally:
        driver.switch_to.default_content()


def test_make_docs_trains_and_exports_the_live_model_first(site_pages: ModuleType, tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "setup.py"):
        (tmp_path / name).touch()
    done = subprocess.run(["make", "-n", "docs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    place = site_pages.LIVE.relative_to(ROOT).as_posix()
    wanted = ["regard demo --out runs/demo", f"regard export runs/demo/run --format html --out {place}", "mkdocs build --strict"]
    assert re.findall("|".join(map(re.escape, wanted)), done.stdout) == wanted


def test_typing_finds_a_page_and_a_name_of_the_api(address: str, driver: Any) -> None:  # noqa: F811
    driver.get(f"{address}/index.html")
    for typed, place in (("vocabulary", "/translation.html"), ("MultiHeadAttention", "/api/regard.attention.html")):
        box = driver.find_element(By.CSS_SELECTOR, "input[data-md-component=search-query]")
        driver.execute_script("document.getElementById('__search').checked = true; arguments[0].value = ''; arguments[0].focus()", box)
        box.send_keys(typed)
        links = "return [...document.querySelectorAll('a.md-search-result__link')].some((link) => link.href.includes(arguments[0]))"
        WebDriverWait(driver, 30, 0.1).until(lambda page, place=place, links=links: page.execute_script(links, place))
