"""Pixels travel as bytes where the encoder's scaling gives the processor's own numbers, and only there."""

from __future__ import annotations

import random
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.golden.harness import picture
from tests.vlm_engine.test_image_size import CAP, FAMILIES, load
from vlm_engine import preprocess
from vlm_engine.image_size import SizeRule
from vlm_engine.pixel_scale import PixelScale, as_bytes

SIZES = [(2, 2), (64, 64), (191, 508), (700, 90), (333, 1000)]


@pytest.fixture(scope="module", params=FAMILIES)
def sizing(request, checkpoint):
    return load(checkpoint, request.param)


@cache
def scale_of(processor) -> PixelScale | None:
    return PixelScale.of(processor)


def tensors(sizing, image, scale, copies=1, **rule):
    preprocess._use(sizing._processor, sizing.family, scale)
    return preprocess._unpack(preprocess._process(image, CAP, SizeRule(**rule), copies))


@pytest.mark.parametrize("splitting", [None, False])
def test_bytes_scaled_are_the_processors_numbers_bit_for_bit(sizing, splitting):
    scale = scale_of(sizing._processor)
    assert scale is not None, "every family's processor ends with a step that can be left out"
    for number, size in enumerate(SIZES):
        image = picture(number, *size)
        copies = 2 if number == 2 else 1
        whole = tensors(sizing, image, None, copies, splitting=splitting)
        narrow = tensors(sizing, image, scale, copies, splitting=splitting)
        assert narrow["pixel_values"].dtype == torch.uint8
        assert torch.equal(scale.apply(narrow["pixel_values"]), whole["pixel_values"])
        assert {name: v for name, v in narrow.items() if name != "pixel_values"}.keys() == whole.keys() - {
            "pixel_values"
        }


def test_a_callers_own_scaling_is_left_to_the_processor(sizing):
    image, scale = picture(5, 120, 80), scale_of(sizing._processor)
    options = {"image_mean": [0.1, 0.2, 0.3]}
    own = tensors(sizing, image, scale, options=options)["pixel_values"]
    assert own.dtype == torch.float32
    assert torch.equal(own, tensors(sizing, image, None, options=options)["pixel_values"])


def test_every_byte_value_of_every_channel_in_both_layouts():
    scale = PixelScale((124.0, 116.0, 104.0), (58.0, 57.0, 57.5))
    tiles = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16)
    expected = torch.stack(
        [(tiles[0, c].float() - o) / d for c, (o, d) in enumerate(zip(scale.offsets, scale.divisors, strict=True))]
    )
    assert torch.equal(scale.apply(tiles)[1], expected)
    assert torch.equal(scale.apply(tiles.reshape(2, 768))[0].view(3, 16, 16), expected)


def test_only_whole_numbers_of_a_byte_pass_for_bytes():
    numbers = np.array([0.0, 255.0, 3.0], dtype=np.float32)
    assert as_bytes(numbers).tolist() == [0, 255, 3]
    for odd in (0.5, -1.0, 256.0, float("nan")):
        assert as_bytes(np.append(numbers, np.float32(odd))) is None


class _Odd:
    """A processor that scales in its own way."""

    image_token = "<image>"

    def __init__(self, **knobs):
        self.image_processor = SimpleNamespace(
            **{
                "do_rescale": True,
                "do_normalize": True,
                "rescale_factor": 1 / 255,
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
            }
            | knobs
        )

    def __call__(self, images, do_rescale=True, do_normalize=True, **_):
        pixels = torch.from_numpy(np.asarray(images[0]).copy()).permute(2, 0, 1)[None].float()
        return {"pixel_values": pixels.pow(0.9) / 255 if do_normalize else pixels}


@pytest.mark.parametrize("knobs", [{}, {"do_normalize": False}, {"image_mean": None}])
def test_a_processor_that_scales_otherwise_is_left_as_it_is(knobs):
    assert PixelScale.of(_Odd(**knobs)) is None


def test_noise_of_any_size_stays_whole_numbers_after_resizing(sizing):
    """What the worker checks for each picture holds for resized ones: no picture takes two passes."""
    rng = random.Random(4)
    scale = scale_of(sizing._processor)
    for seed in range(3):
        size = rng.randrange(20, 300), rng.randrange(20, 300)
        noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        assert tensors(sizing, Image.fromarray(noise), scale)["pixel_values"].dtype == torch.uint8
