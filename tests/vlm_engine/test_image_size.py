"""A picture never takes more tokens than it may, with the real processors; what a family can't do is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from vlm_engine import ConfigError, EngineConfig, InvalidRequestError, preprocess
from vlm_engine.families import SUPPORTED
from vlm_engine.families.nano_processing import NanoImageProcessor
from vlm_engine.image_fit import SIZINGS, ImageSizing, NanoSizing
from vlm_engine.image_size import SizeLimits, SizeRule
from vlm_engine.images import MAX_ASPECT, MIN_SIDE
from vlm_engine.prompt import PriorityClass

FAMILIES = {
    "smolvlm": "idefics3",
    "smolvlm2": "idefics3",
    "qwen2-vl": "qwen_vl",
    "qwen3-vl": "qwen_vl",
    "llava-onevision": "llava_onevision",
    "internvl": "internvl",
}
CAP = 16_000_000


@pytest.fixture(scope="module", params=FAMILIES)
def sizing(request, checkpoint) -> ImageSizing:
    return load(checkpoint, request.param)


def load(checkpoint, kind: str) -> ImageSizing:
    return _load(str(checkpoint(kind)), FAMILIES[kind])


@cache
def _load(path: str, family: str) -> ImageSizing:
    from transformers import AutoProcessor

    return SIZINGS[family](AutoProcessor.from_pretrained(path))


def sides() -> st.SearchStrategy[tuple[int, int]]:
    """All sizes that requests may bring, up to 4,000 pixels a side; small ones as often as large ones."""
    side = st.one_of(st.integers(1, 64), st.integers(1, 600), st.integers(1, 4000))
    return st.tuples(side, side).filter(lambda s: max(s) <= MAX_ASPECT * min(s))


def test_the_one_size_of_nano_takes_what_other_families_are_told():
    """A configuration made for another model must not make every crop fail with the one that stands in for it."""
    told = {"do_image_splitting": False, "size": {"longest_edge": 512}, "max_pixels": 200_000}
    sizing = NanoSizing(SimpleNamespace(image_processor=NanoImageProcessor(), image_seq_len=48))
    fit = sizing.fit(191, 508, SizeRule(options=told, max_tokens=64))
    assert (fit.options, fit.tokens) == ({}, 48)
    with pytest.raises(InvalidRequestError, match="doesn't know do_image_spliting"):
        sizing.fit(191, 508, SizeRule(options={"do_image_spliting": False}))


def picture(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), (90, 120, 30))


def processed(sizing: ImageSizing, image: Image.Image, rule: SizeRule, copies: int = 1) -> preprocess.ProcessedImage:
    """As a worker does it, in this process."""
    preprocess._use(sizing._processor, sizing.family)
    packed = preprocess._process(image, CAP, rule, copies)
    inputs = preprocess._unpack(packed)
    return preprocess.ProcessedImage(packed.content_hash, packed.token_ids, packed.feature_indices, inputs)


def tokens(sizing: ImageSizing, size: tuple[int, int], rule: SizeRule) -> int:
    return len(processed(sizing, picture(*size), rule).feature_indices)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=sides(), above=st.integers(0, 3000), splitting=st.sampled_from([None, False]))
def test_the_count_keeps_to_the_bound_whatever_the_size(sizing, size, above, splitting):
    bound = sizing.least + above
    fit = sizing.fit(*size, SizeRule(bound, splitting))
    assert 0 < fit.tokens <= bound
    free = sizing.fit(*size, SizeRule(None, splitting))
    if free.tokens <= bound:
        assert fit == free, "a picture that keeps to the bound by itself is left as it is"


def test_the_real_processor_makes_just_as_many_tokens_as_were_counted(sizing):
    """Sizes 1 to 4,000, shapes to 1:150, bounds from the least to beyond the most. Where they differ, the worker
    refuses the picture, which would fail here."""
    chance = random.Random(sizing.family)
    sizes = [(2, 2), (4000, 3000), (27, 4000), (4000, 27), (64, 64), (333, 1000)]
    while len(sizes) < 10:
        size = tuple(int(2 ** chance.uniform(1, 12)) for _ in "wh")
        if min(size) >= MIN_SIDE and max(size) <= min(4000, MAX_ASPECT * min(size)):
            sizes.append(size)
    for size in sizes[:: 2 if sizing.family == "idefics3" else 1]:
        bound = int(sizing.least * 2 ** chance.uniform(0, 6))
        rule = SizeRule(bound, chance.choice([None, None, False]))
        assert tokens(sizing, size, rule) == sizing.fit(*size, rule).tokens <= bound


def test_d2_a_picture_of_two_by_two_pixels_is_scaled_up(sizing):
    image = processed(sizing, picture(2, 2), SizeRule())
    assert len(image.feature_indices) >= 1
    assert image.inputs["pixel_values"].numel() > 2 * 2 * 3


def test_a_picture_within_the_bound_keeps_its_features_identity(sizing):
    """Nothing is told to the processor that it doesn't do by itself, so the same picture is one cache entry."""
    image = picture(40, 50)
    free = processed(sizing, image, SizeRule())
    roomy = processed(sizing, image, SizeRule(len(free.feature_indices)))
    split = processed(sizing, image, SizeRule(splitting=True if sizing.splits else None))
    assert free.content_hash == roomy.content_hash == split.content_hash
    assert free.token_ids == roomy.token_ids


def test_b5_a_bound_that_changes_the_picture_is_another_identity(sizing):
    image = picture(1200, 900)
    free, bound = processed(sizing, image, SizeRule()), processed(sizing, image, SizeRule(sizing.least))
    assert free.content_hash != bound.content_hash
    assert len(bound.feature_indices) <= sizing.least < len(free.feature_indices)


def test_more_tokens_are_used_where_more_are_allowed(sizing):
    counts = [
        sizing.fit(1200, 900, SizeRule(bound)).tokens for bound in range(sizing.least, 14 * sizing.least + 100, 3)
    ]
    assert counts == sorted(counts)
    assert len(set(counts)) > 3


def test_without_splitting_a_picture_is_one_view(sizing):
    if not sizing.splits:
        pytest.skip("there are no tiles")
    assert tokens(sizing, (1200, 900), SizeRule(splitting=False)) == sizing.least


def test_d12_no_picture_costs_more_than_the_one_that_start_up_profiles_with(sizing):
    limits, least = sizing.limits, sizing.least
    bounds = dict(max_image_tokens_interactive=least + 40, max_image_tokens_background=least)
    configs = [EngineConfig(model="x"), EngineConfig(model="x", **bounds)]
    largest = []
    for config in configs:
        rule = limits.loosest(config)
        size = sizing.largest(CAP, rule)
        fit = sizing.fit(*size, rule)
        assert rule.max_tokens is None or fit.tokens <= rule.max_tokens
        largest.append(sizing.work(*size, fit))
    assert largest[0] > largest[1]

    @settings(max_examples=200, deadline=None)
    @given(size=sides())
    def costs_no_more(size):
        for config, most in zip(configs, largest, strict=True):
            for kind in PriorityClass:
                fit = sizing.fit(*size, limits.rule(config, kind, "high"))
                assert sizing.work(*size, fit) <= most

    costs_no_more()


def test_d12_start_up_profiles_with_the_configured_most(checkpoint):
    """vLLM#16570: max_pixels = 1280 * 28 * 28, and yet room for 16,384 tokens a picture was reserved."""
    sizing = load(checkpoint, "qwen2-vl")
    limits = sizing.limits
    preprocess._use(sizing._processor, sizing.family)
    config = EngineConfig(model="x", max_image_tokens_interactive=1280, max_image_tokens_background=256)
    packed = preprocess._process_largest(CAP, limits.loosest(config))
    preprocess._unpack(packed)
    assert 1200 < len(packed.feature_indices) <= 1280
    one_bound = replace(config, max_image_tokens_background=None)
    assert sizing.fit(*sizing.largest(CAP, limits.loosest(one_bound)), limits.loosest(one_bound)).tokens > 16_000


def test_a_callers_options_go_before_splitting_and_after_the_bound(checkpoint):
    sizing = load(checkpoint, "smolvlm")
    split, whole = {"do_image_splitting": True}, {"do_image_splitting": False}
    size = (1200, 900)
    assert sizing.fit(*size, SizeRule(splitting=False, options=split)).tokens == 13 * 64
    assert sizing.fit(*size, SizeRule(splitting=True, options=whole)).tokens == 64
    assert sizing.fit(*size, SizeRule(500, options=split)).tokens <= 500


def test_a_callers_most_pixels_are_obeyed_and_least_pixels_over_the_bound_refused(checkpoint):
    sizing = load(checkpoint, "qwen2-vl")
    one = 28 * 28
    assert tokens(sizing, (1200, 900), SizeRule(options={"max_pixels": 100 * one})) in range(80, 101)
    assert tokens(sizing, (1200, 900), SizeRule(50, options={"max_pixels": 100 * one})) in range(40, 51)
    assert tokens(sizing, (56, 56), SizeRule(500, options={"min_pixels": 100 * one})) == 100
    with pytest.raises(InvalidRequestError, match=r"1200x900 takes 88 tokens at least .* allowed are 50") as refused:
        sizing.fit(1200, 900, SizeRule(50, options={"min_pixels": 100 * one}))
    assert refused.value.param == "mm_processor_kwargs"
    with pytest.raises(InvalidRequestError, match="min_pixels is 2000, more than max_pixels 1000"):
        sizing.fit(60, 60, SizeRule(options={"min_pixels": 2000, "max_pixels": 1000}))


def test_a_callers_options_get_no_more_than_the_largest_picture_takes(checkpoint):
    """The memory that start-up set aside is for that one."""
    sizing = load(checkpoint, "qwen2-vl")
    with pytest.raises(InvalidRequestError, match=r"allowed are 16384"):
        processed(sizing, picture(60, 60), SizeRule(options={"min_pixels": 15_000_000, "max_pixels": 15_000_000}))


def test_an_option_of_another_family_is_refused(checkpoint):
    for kind, option in (("qwen2-vl", "do_image_splitting"), ("smolvlm", "max_pixels"), ("internvl", "min_pixels")):
        with pytest.raises(InvalidRequestError, match=f"doesn't know {option}") as refused:
            load(checkpoint, kind).fit(60, 60, SizeRule(options={option: 1000}))
        assert refused.value.param == "mm_processor_kwargs"
    with pytest.raises(InvalidRequestError, match="image_grid_pinpoints can't be changed"):
        load(checkpoint, "llava-onevision").fit(60, 60, SizeRule(options={"image_grid_pinpoints": [[56, 56]]}))


def test_what_a_family_cannot_do_is_refused_with_the_numbers():
    limits = SizeLimits(64, True, "idefics3")
    limits.check(EngineConfig(model="x", max_image_tokens_background=64, image_splitting_interactive=True))
    with pytest.raises(ConfigError, match="max_image_tokens_background is 63, a picture takes 64 tokens at least"):
        limits.check(EngineConfig(model="x", max_image_tokens_background=63))
    with pytest.raises(ConfigError, match="image_splitting_interactive is true, but models of family qwen_vl"):
        SizeLimits(1, False, "qwen_vl").check(EngineConfig(model="x", image_splitting_interactive=True))
    with pytest.raises(ConfigError, match="max_image_tokens_interactive is 0, allowed is 1 or more"):
        EngineConfig(model="x", max_image_tokens_interactive=0)
    with pytest.raises(InvalidRequestError, match="max_image_tokens is 10, a picture takes 64 tokens at least"):
        limits.rule(EngineConfig(model="x"), PriorityClass.BACKGROUND, max_tokens=10)


def test_the_least_of_class_detail_and_caller_holds():
    limits = SizeLimits(64, True, "idefics3")
    config = EngineConfig(
        model="x",
        max_image_tokens_interactive=1000,
        max_image_tokens_background=500,
        image_splitting_background=False,
        low_detail_image_tokens=100,
    )
    chat, camera = PriorityClass.INTERACTIVE, PriorityClass.BACKGROUND
    assert limits.rule(config, chat) == SizeRule(1000, None)
    assert limits.rule(config, camera) == SizeRule(500, False)
    assert limits.rule(config, camera, max_tokens=200) == SizeRule(200, False)
    assert limits.rule(config, camera, max_tokens=800) == SizeRule(500, False)
    assert limits.rule(config, chat, "low") == SizeRule(100, False)
    assert limits.rule(config, camera, "high") == limits.rule(config, camera, "original") == SizeRule(500, True)
    few = EngineConfig(model="x", low_detail_image_tokens=10)
    assert limits.rule(few, chat, "low") == SizeRule(64, False), "one view where a view takes more"
    assert SizeLimits(1, False, "qwen_vl").rule(config, chat, "high") == SizeRule(1000, None)


def test_every_family_with_pictures_can_be_sized():
    assert {family.name for family in SUPPORTED.values() if family.takes_images} == set(SIZINGS)


def test_llava_onevisions_encoder_makes_as_many_features_as_were_counted_of_a_picture_scaled_down(checkpoint):
    from tests.golden.harness import Harness, user

    harness = Harness(checkpoint("llava-onevision"))
    sizing = load(checkpoint, "llava-onevision")
    for size, bound in (((300, 200), 90), ((200, 300), 60), ((500, 90), 50), ((300, 200), 20)):
        image = processed(sizing, picture(*size), SizeRule(bound))
        features = harness.checkpoint.family.encode(harness.checkpoint.encoder.scaled(image.inputs))
        assert len(features.rows) == len(image.feature_indices) <= bound
    assert harness.prepare(user(picture(300, 200), "?")).images[0].num_tokens > 90
