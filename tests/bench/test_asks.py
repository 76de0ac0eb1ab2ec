"""What is asked: the same for every server, and never the same twice."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from pipeline.bench.asks import WORDS, CameraLoad, TextLoad, chat_question, picture, prose
from pipeline.bench.stall import load_named, make_asks


def test_every_picture_and_text_is_another_and_a_seed_makes_them_again() -> None:
    for load in (CameraLoad(2.0), TextLoad(50, 0.5)):
        asks = [ask for _, ask in make_asks(load, 11.0, 1000, 50)]
        assert len(asks) == 20 and len({(ask.picture, ask.text) for ask in asks}) == 20
        assert asks == [ask for _, ask in make_asks(load, 11.0, 1000, 50)]
        assert not set(asks) & {ask for _, ask in make_asks(load, 11.0, 2000, 50)}


def test_the_sizes_of_pictures_take_turns() -> None:
    asks = make_asks(CameraLoad(1.0), 6.0, 0, 0)
    sizes = [Image.open(io.BytesIO(ask.picture or b"")).size for _, ask in asks]
    assert sizes == [(191, 508), (141, 494), (406, 674)] * 2


def test_texts_share_no_prefix_to_speak_of() -> None:
    texts = [prose(100, seed).split() for seed in range(30)]
    assert len({tuple(text[:3]) for text in texts}) == 30
    assert all(len(text) == 100 and set(text) <= set(WORDS) for text in texts)


def test_chats_never_ask_the_same() -> None:
    asked = [chat_question(seed, number, turn) for seed in range(3) for number in range(8) for turn in range(1, 20)]
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize(
    ("load", "seconds", "times"),
    [
        (CameraLoad(0.1), 40.0, [1, 11, 21, 31]),
        (CameraLoad(0.5), 5.0, [0.5, 2.5, 4.5]),
        (TextLoad(2000, 10.0), 40.0, [1, 11, 21, 31]),
        (TextLoad(6000), 40.0, [4]),
    ],
)
def test_prompts_come_when_the_chats_run_and_at_their_rate(load, seconds, times) -> None:
    assert load.arrivals(seconds) == pytest.approx(times)


def test_pictures_are_jpegs_of_their_size() -> None:
    image = Image.open(io.BytesIO(picture((191, 508), 4)))
    assert (image.format, image.size) == ("JPEG", (191, 508))


def test_loads_have_names() -> None:
    given = {"rate": 0.5, "one_tile": True, "every_s": 4.0}
    assert load_named("cameras", prompt_tokens=None, **given) == CameraLoad(0.5, one_tile=True)
    assert load_named("texts", prompt_tokens=None, **given) == TextLoad(2000, 4.0)
    assert load_named("one-text", prompt_tokens=500, **given) == TextLoad(500)
    with pytest.raises(ValueError, match="'camera', allowed are cameras, texts, one-text"):
        load_named("camera", prompt_tokens=None, **given)
