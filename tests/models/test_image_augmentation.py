"""Random views of training images: within their bounds, different each time, and nothing at all when nothing is asked for."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from regard.config.images import AugmentConfig, SmallCNNConfig
from regard.models.image_augmentation import RandomView
from regard.models.image_encoder import build_image_encoder


def ramp(count: int, size: int = 16) -> torch.Tensor:
    # Column x holds x and row y holds 100 y in two of the channels, so that a view tells where it lies.
    rows, columns = torch.meshgrid(torch.arange(float(size)), torch.arange(float(size)), indexing="ij")
    return torch.stack([columns, 100 * rows, torch.ones(size, size)]).expand(count, -1, -1, -1).contiguous()


def test_without_settings_and_in_evaluation_an_image_is_itself_and_nothing_is_drawn() -> None:
    image, state = ramp(2), torch.get_rng_state()
    assert RandomView(AugmentConfig()).train()(image) is image
    assert RandomView(AugmentConfig(crop=0.5, flip=True, light=0.5)).eval()(image) is image
    assert torch.equal(torch.get_rng_state(), state)


def test_a_mirrored_view_is_the_image_or_its_mirror_image_in_about_half() -> None:
    torch.manual_seed(3)
    image = torch.randn(400, 3, 9, 9)
    views = RandomView(AugmentConfig(flip=True))(image)
    same = (views - image).abs().amax((1, 2, 3)) < 1e-4
    mirrored = (views - image.flip(-1)).abs().amax((1, 2, 3)) < 1e-4
    assert torch.equal(same, ~mirrored)
    assert 160 <= int(same.sum()) <= 240


def test_a_part_is_a_square_inside_the_image_no_shorter_than_asked() -> None:
    torch.manual_seed(4)
    views = RandomView(AugmentConfig(crop=0.5))(ramp(500))
    # One pixel to the next is as many pixels of the image as the side is shorter: the same in both directions, away from the border.
    across, down = views[:, 0, 5, 9] - views[:, 0, 5, 8], (views[:, 1, 9, 5] - views[:, 1, 8, 5]) / 100
    torch.testing.assert_close(across, down, atol=1e-3, rtol=0)
    assert 0.5 - 1e-3 <= across.min() < 0.53
    assert 0.97 < across.max() <= 1 + 1e-3
    # Every part of the image is seen by some view, and nothing outside it.
    for channel, scale in ((0, 1), (1, 100)):
        assert views[:, channel].min() >= -1e-3
        assert views[:, channel].max() <= scale * 15 + 1e-3
        centre = views[:, channel].mean((1, 2)) / scale
        assert centre.min() < 5
        assert centre.max() > 10
    torch.testing.assert_close(views[:, 2], torch.ones(500, 16, 16), atol=1e-4, rtol=0)


def test_light_is_one_contrast_and_one_brightness_for_all_of_an_image() -> None:
    torch.manual_seed(5)
    image = torch.randn(300, 3, 6, 6)
    views = RandomView(AugmentConfig(light=0.3))(image)
    flat, found = image.flatten(1), views.flatten(1)
    contrast = ((flat - flat.mean(1, True)) * found).sum(1) / (flat - flat.mean(1, True)).square().sum(1)
    brightness = found.mean(1) - contrast * flat.mean(1)
    torch.testing.assert_close(found, contrast[:, None] * flat + brightness[:, None], atol=1e-4, rtol=0)
    for each, middle in ((contrast, 1.0), (brightness, 0.0)):
        assert 0.2 < (each - middle).max() <= 0.3 + 1e-4
        assert -0.3 - 1e-4 <= (each - middle).min() < -0.2


def test_an_encoder_sees_training_images_through_it_and_keeps_no_weights_of_it() -> None:
    config = SmallCNNConfig(channels=(5,), augment=AugmentConfig(crop=0.5, flip=True))
    encoder, plain = build_image_encoder(config, image_size=12), build_image_encoder(SmallCNNConfig(channels=(5,)), image_size=12)
    plain.load_state_dict(encoder.state_dict())
    image = torch.randn(4, 3, 12, 12)
    assert not torch.equal(encoder(image), encoder(image))
    assert torch.equal(plain(image), plain(image))
    torch.testing.assert_close(encoder.eval()(image), encoder(image))


@pytest.mark.parametrize("wrong", [{"crop": 0.0}, {"crop": 1.1}, {"light": -0.1}, {"light": 1.5}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        AugmentConfig(**wrong)
