"""A page with a captioner inside reads images, writes captions and attends as the run does."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from regard.config.captioning import FeaturesConfig
from regard.data.images import Preprocessing
from regard.errors import ConfigError
from regard.integrations.page_model import export_page, page_model
from regard.integrations.portable_run import open_run
from regard.tasks.captioning_prediction import Captioner
from regard.viewer import page_records
from regard.viewer.page import render_page
from tests.integrations.test_page_model import WITHIN, compare_maps
from tests.tasks.tiny_captions import FAMILIES, trained
from tests.viewer.conftest import driver  # noqa: F401 - a fixture

SPREAD = 3.0
OF_FILE = "pixelsOfFile(given).then(({ width, height, data }) => [width, height, data])"
# A file's width and height, and how a run reads it: reduced in blocks, enlarged, cropped at odd places, with each filter.
READINGS: list[tuple[int, int, dict[str, Any]]] = [
    (97, 61, {"size": 23, "resample": "bicubic", "fit": "stretch"}),
    (131, 211, {"size": 29, "resample": "bilinear", "fit": "crop"}),
    (19, 31, {"size": 41, "resample": "lanczos", "fit": "crop", "keep": 0.875}),
    (37, 37, {"size": 37, "fit": "stretch"}),
    (113, 157, {"size": 13, "fit": "crop", "keep": 0.9}),
]


def picture(width: int, height: int, mode: str = "RGB") -> bytes:
    values = np.random.default_rng(width).integers(0, 256, (height, width, len(mode)), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(values, mode).save(buffer, "PNG")
    return buffer.getvalue()


def captioner(folder: Path, family: str) -> Captioner:
    """Train for two updates, and enlarge the weights, so that captions differ."""
    found = Captioner.open(trained(folder, FAMILIES[family], image={"size": 16}, decoding={"min_length": 3}))
    for name, parameter in found.run.model.named_parameters():
        if "norm" not in name:
            parameter.data.mul_(SPREAD)
    return found


def asked(driver: Any, page: Path, call: str, given: object) -> Any:  # noqa: F811
    """Call a function of the page's script; see `answers` of the translation tests. It may take its time."""
    driver.get(page.as_uri())
    (script,) = re.findall(r"<script>(.*?)</script>", page.read_text(encoding="utf-8"), re.DOTALL)
    driver.execute_script(script.replace("return answer;", f"window.door = async (given) => {call};\nreturn answer;"))
    plain = "JSON.stringify(found, (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value))"
    return json.loads(driver.execute_async_script(f"door(arguments[0]).then((found) => arguments[1]({plain}))", given))


@pytest.fixture(scope="module")
def any_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captioner")
    export_page(trained(folder, FAMILIES["soft"]), folder / "model.html")
    return folder / "model.html"


@pytest.mark.parametrize(("width", "height", "how"), READINGS)
def test_an_image_becomes_the_same_pixels_and_numbers(driver: Any, any_page: Path, width: int, height: int, how: dict[str, Any]) -> None:  # noqa: F811
    content, reading = picture(width, height), Preprocessing(**how)
    settings = {"fit": reading.fit, "keep": reading.keep, "resample": reading.resample, "size": reading.size}
    settings |= {"mean": reading.mean, "std": reading.std}
    call = "pixelsOfFile(given[0]).then((file) => fitted(file, given[1])).then((image) => [image.data, normalized(image, given[1]).data])"
    pixels, numbers = asked(driver, any_page, call, [base64.b64encode(content).decode(), settings])
    expected = reading.pixels_of(io.BytesIO(content), "a picture")
    np.testing.assert_array_equal(np.reshape(pixels, expected.shape), expected)
    np.testing.assert_array_equal(np.float32(numbers), reading.normalize(expected).numpy().ravel())


def test_a_transparent_image_stands_on_white(driver: Any, any_page: Path) -> None:  # noqa: F811
    content, reading = picture(29, 29, "RGBA"), Preprocessing(size=29, fit="stretch")
    pixels = asked(driver, any_page, "pixelsOfFile(given).then(({ data }) => data)", base64.b64encode(content).decode())
    expected = reading.pixels_of(io.BytesIO(content), "a picture").astype(int)
    assert np.abs(np.reshape(pixels, expected.shape) - expected).max() <= 2  # the browser rounds colours by their opacity


def saved(image: Image.Image, kind: str, **how: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **how)
    return buffer.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["WEBP", "PNG"])
def test_a_turned_image_is_read_upright(driver: Any, any_page: Path, kind: str, orientation: int) -> None:  # noqa: F811
    image = Image.open(io.BytesIO(picture(31, 17)))
    image.getexif()[0x0112] = orientation
    content = saved(image, kind, lossless=True, exif=image.getexif())
    width, height, pixels = asked(driver, any_page, OF_FILE, base64.b64encode(content).decode())
    expected = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"))
    np.testing.assert_array_equal(np.reshape(pixels, (height, width, 3)), expected)


@pytest.mark.parametrize("exif", [b"", b"Exif\0\0II*\0", b"Exif\0\0MM\0*\0\0\0\x08\0\x09"])
def test_damaged_exif_data_are_ignored(driver: Any, any_page: Path, exif: bytes) -> None:  # noqa: F811
    content = saved(Image.open(io.BytesIO(picture(7, 5))), "WEBP", lossless=True, exif=exif)
    assert asked(driver, any_page, OF_FILE, base64.b64encode(content).decode())[:2] == [7, 5]


@pytest.mark.parametrize(("width", "height"), [(70_001, 3), (3, 70_001), (2050, 2049)])
def test_an_image_may_be_longer_than_a_canvas(driver: Any, any_page: Path, width: int, height: int) -> None:  # noqa: F811
    content = saved(Image.linear_gradient("L").resize((width, height)).convert("RGB"), "PNG")
    call = f"({OF_FILE}).then(([width, height, data]) => [width, height, data.filter((_, i) => i % 997 === 0)])"
    found = asked(driver, any_page, call, base64.b64encode(content).decode())
    expected = np.array(Image.open(io.BytesIO(content)))
    assert found[:2] == [width, height]
    np.testing.assert_array_equal(found[2], expected.ravel()[::997])


def test_an_image_of_too_many_pixels_is_named_with_its_size_and_not_decoded(driver: Any, any_page: Path) -> None:  # noqa: F811
    content = base64.b64encode(saved(Image.new("1", (16_001, 6_251)), "PNG")).decode()
    call = "(createImageBitmap = null, pixelsOfFile(given).then(() => 'read', (error) => error.message))"
    assert asked(driver, any_page, call, content) == "This image has 16001 x 6251 pixels; at most 100 million can be read."


@pytest.mark.parametrize("family", FAMILIES)
def test_the_record_of_an_image_is_that_of_the_run(driver: Any, family: str, tmp_path: Path) -> None:  # noqa: F811
    found = captioner(tmp_path, family)
    page = tmp_path / "model.html"
    opened = open_run(found.run.folder)._replace(model=found.run.model)
    page.write_text(render_page([], live=True, models=["run"], task="captioning", embedded=page_model(opened)), encoding="utf-8")
    images = sorted(tmp_path.rglob("*.png"))[:3]
    texts = set()
    for image in images:
        (there,) = asked(driver, page, "answer({ image: given })", base64.b64encode(image.read_bytes()).decode())
        here = json.loads(json.dumps(page_records([found.record(image)])[0]))
        texts.add(there["items"]["caption"]["text"])
        own, other = there["items"].pop("image"), here["items"].pop("image")
        assert there["items"] == here["items"]
        assert {**own, "image": None} == {**other, "image": None}
        np.testing.assert_array_equal(shown(own["image"]), shown(other["image"]))
        assert there["main"] == here["main"]
        assert [each["text"] for each in there["hypotheses"]] == [each["text"] for each in here["hypotheses"]]
        assert [each["name"] for each in there["maps"]] == [each["name"] for each in here["maps"]]
        for one, another in zip(there["maps"], here["maps"], strict=True):
            compare_maps(one, another)
        np.testing.assert_allclose(there["scores"]["caption"], here["scores"]["caption"], atol=WITHIN)
    assert all(texts)


def shown(address: str) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB"))


def test_a_chosen_image_is_captioned(driver: Any, any_page: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "picture.png").write_bytes(picture(61, 43))
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get(any_page.as_uri())
    driver.find_element(By.ID, "file").send_keys(str(tmp_path / "picture.png"))
    WebDriverWait(driver, 60, 0.05).until(lambda page: page.find_elements(By.CSS_SELECTOR, "#tabs [data-view=image]"))
    expected = Captioner.open(any_page.parent / "run").caption([tmp_path / "picture.png"])[0].text
    assert expected in driver.find_element(By.ID, "main").text
    assert driver.get_log("browser") == []
    (tmp_path / "text.png").write_text("no image")
    driver.find_element(By.ID, "file").send_keys(str(tmp_path / "text.png"))
    WebDriverWait(driver, 60, 0.05).until(lambda page: "no image" in page.find_element(By.ID, "live-error").text)


def test_a_telephone_needs_no_sideways_scrolling(driver: Any, any_page: Path) -> None:  # noqa: F811
    size = driver.get_window_size()
    try:
        driver.set_window_size(320, 640)
        driver.get(any_page.as_uri())
        assert driver.execute_script("return innerWidth") == 320
        assert driver.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0
    finally:
        driver.set_window_size(size["width"], size["height"])


def test_precomputed_features_are_named(tmp_path: Path) -> None:
    opened = open_run(trained(tmp_path, FAMILIES["soft"]))
    encoder = opened.config.model.model_copy(update={"encoder": FeaturesConfig(grid=(2, 2), dim=3)})
    with pytest.raises(ConfigError, match=r"model\.encoder\.type: features"):
        page_model(opened._replace(config=opened.config.model_copy(update={"model": encoder})))
