"""What the browser tests do with a page, in few words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By


def every(driver: Any, selector: str) -> list[Any]:
    return driver.find_elements(By.CSS_SELECTOR, selector)


def one(driver: Any, selector: str) -> Any:
    return driver.find_element(By.CSS_SELECTOR, selector)


def texts(driver: Any, selector: str) -> list[str]:
    return driver.execute_script("return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", selector)


def data(driver: Any, selector: str, name: str) -> list[str]:
    """Read an attribute of all that fit, as text."""
    script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.getAttribute(arguments[1]))"
    return driver.execute_script(script, selector, name)


def shown(driver: Any, selector: str) -> bool:
    return one(driver, selector).is_displayed()


def choose(driver: Any, selector: str, value: object) -> None:
    """Choose in a select, or set a range or a box of text, as a person would."""
    script = """const box = document.querySelector(arguments[0]); box.value = arguments[1];
                box.dispatchEvent(new Event('input', {bubbles: true})); box.dispatchEvent(new Event('change', {bubbles: true}));
                return box.value"""
    assert driver.execute_script(script, selector, str(value)) == str(value), f"{selector} has no {value}"


def hover(driver: Any, node: Any, x: int = 0, y: int = 0) -> None:
    ActionChains(driver, duration=0).move_to_element_with_offset(node, x, y).perform()


def press(driver: Any, *keys: str) -> None:
    for key in keys:
        ActionChains(driver, duration=0).send_keys(key).perform()


def tabs(driver: Any) -> list[str]:
    return data(driver, "#tabs [role=tab]", "data-view")


def example(driver: Any, index: int) -> None:
    driver.execute_script("arguments[0].click()", one(driver, f"#examples button[data-index='{index}']"))


def views(driver: Any, examples: int) -> Iterator[str]:
    """Open every view once, in the first example that has it, and give its name."""
    seen = set()
    for index in range(examples):
        example(driver, index)
        for view in tabs(driver):
            if view not in seen:
                seen.add(view)
                driver.execute_script(f"document.getElementById('tab-{view}').click()")
                yield view


def style(driver: Any, selector: str, name: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((node) => getComputedStyle(node)[arguments[1]])"
    return driver.execute_script(script, selector, name)


def brightness(color: str) -> float:
    """How light a colour such as `rgb(1, 2, 3)` is, 0 to 255."""
    red, green, blue = (float(part) for part in color[color.index("(") + 1 : -1].split(",")[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue
