"""What is typed into the page in a real browser is asked of this server, shown, and asked of nobody else."""

from __future__ import annotations

import functools
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.serve.driver import Server
from tests.tasks.tiny import TEXTS
from tests.viewer.conftest import driver  # noqa: F401 - a fixture


def ask(page: Any, text: str) -> None:
    box = page.find_element(By.ID, "text")
    box.clear()
    if len(text) < 100:
        box.send_keys(text)
    else:  # key by key it would take long
        page.execute_script("arguments[0].value = arguments[1]", box, text)
    page.find_element(By.ID, "ask").click()
    WebDriverWait(page, 60, 0.05).until(lambda page: page.find_element(By.ID, "live").get_attribute("aria-busy") == "false")


def test_a_typed_line_is_translated_and_shown_and_nothing_else_is_asked(driver: Any, server: Server) -> None:  # noqa: F811
    address = f"http://127.0.0.1:{server.port}/"
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get(address)
    # Where the browser says a request came from is what the server goes by: this one is from its own page.
    ask(driver, TEXTS[1])
    expected = server.post("/translate", {"text": TEXTS[1]}).json["translations"][0]["text"]
    shown = driver.find_element(By.ID, "main").text
    assert TEXTS[1] in shown
    assert expected in shown
    assert driver.get_log("browser") == []
    ask(driver, "x" * 5001)
    assert driver.find_element(By.ID, "live-error").text == "422: text: expected at most 5000 characters, found 5001"
    asked = driver.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert set(asked) == {f"{address}attention"}, json.dumps(asked)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """Serve an empty page of another site: the same machine, another port."""
    (tmp_path / "index.html").write_text("<!doctype html><title>elsewhere</title>")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path))) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_address[1]}/"
        site.shutdown()


def test_a_page_of_another_site_gets_nothing(driver: Any, server: Server, elsewhere: str) -> None:  # noqa: F811
    driver.get(elsewhere)
    before = len(server.logged())
    fetch = """
        const [address, told, done] = arguments;
        fetch(address, told).then((answer) => done(answer.type), () => done("refused"));
    """
    address = f"http://127.0.0.1:{server.port}/translate"
    body = '{"text": "a"}'
    ordinary = {"method": "POST", "headers": {"content-type": "application/json"}, "body": body}
    assert driver.execute_async_script(fetch, address, ordinary) == "refused"
    assert driver.execute_async_script(fetch, address, {"method": "POST", "mode": "no-cors", "body": body}) in ("opaque", "refused")
    assert driver.execute_async_script(fetch, address.replace("translate", "health"), {}) == "refused"
    deadline = time.monotonic() + 10
    while len(server.logged()) < before + 3 and time.monotonic() < deadline:  # a line is written after its answer
        time.sleep(0.05)
    asked = [(line["method"], line["status"]) for line in server.logged()[before:]]
    # The question whether it may, then what does not ask, then what it could not have read anyway.
    assert asked == [("OPTIONS", 403), ("POST", 403), ("GET", 403)]
