"""A real browser for the tests of the page, started once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from regard.viewer import AttentionRecord, save_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None)
DRIVER = shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,900"),
    # No name is found and every connection goes to a closed port: what asks for anything outside fails and is logged.
    *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--lang=en"),
)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not (BROWSER and DRIVER):
        pytest.skip("no chromium with its chromedriver on PATH")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    yield started
    started.quit()


@pytest.fixture
def opened(driver: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a page of records and, after the test, require a silent console and no request."""

    def open_page(records: Sequence[AttentionRecord], place: str = "") -> Any:
        save_page(records, tmp_path / "page.html")
        driver.get("about:blank")
        driver.get_log("browser")
        driver.get((tmp_path / "page.html").as_uri() + place)
        return driver

    yield open_page
    assert driver.get_log("browser") == []
    # What a page draws for itself, from its own data, is no request.
    asked = driver.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name.slice(0, 80))")
    assert [name for name in asked if not name.startswith("data:")] == []
    assert driver.execute_script("return window.broken") is None
