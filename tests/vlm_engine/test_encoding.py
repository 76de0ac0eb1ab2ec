"""Packs, turns, time and failures of pictures under way, with an encoder that computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from vlm_engine.encoder_cache import EncoderCache, ImageFeatures
from vlm_engine.encoder_cost import EncoderCost
from vlm_engine.encoder_task import EncoderItem
from vlm_engine.encoding import Encodings, Wanted
from vlm_engine.prompt import ImageInput
from vlm_engine.request import ImageSpan
from vlm_engine.row_cuts import SliceWork

SLICES = 4


class Task:
    """SLICES slices; features are the item's number."""

    def __init__(self, encoder: Encoder, items: Sequence[EncoderItem]) -> None:
        self._encoder, self._items, self._left = encoder, items, encoder.slices
        self.next = SliceWork("block", sum(item.rows for item in items))
        self.aborted = False

    def advance(self):
        self._left -= 1
        self._encoder.lane_seconds += self._encoder.slice_seconds
        if any(item.inputs["picture"] in self._encoder.broken for item in self._items):
            raise RuntimeError("broken")
        if self._left:
            return None
        return [ImageFeatures(torch.full((item.rows // 4, 1), item.inputs["number"])) for item in self._items]

    def abort(self):
        self.aborted = True


class Encoder:
    """Pictures are ``{"picture": name, "items": rows of each}``."""

    def __init__(self) -> None:
        self.packs: list[list[tuple[str, int]]] = []
        self.tasks: list[Task] = []
        self.broken: set[str] = set()
        self.slices = SLICES
        self.slice_seconds = 0.010
        self.lane_seconds = 0.0

    def encoder_items(self, inputs):
        return [
            EncoderItem({"picture": inputs["picture"], "number": number}, rows, rows, inputs.get("key", "k"))
            for number, rows in enumerate(inputs["items"])
        ]

    def start_encode(self, items):
        self.packs.append([(item.inputs["picture"], item.inputs["number"]) for item in items])
        self.tasks.append(Task(self, items))
        return self.tasks[-1]


class Lane:
    """Time is what the tasks say; as on CUDA, what was spent is known by prediction alone."""

    waits = False

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self._done = encoder, []

    def run(self, work, advance):
        before = self._encoder.lane_seconds
        result = advance()
        self._done.append((work, self._encoder.lane_seconds - before))
        return result

    def measured(self):
        done, self._done = self._done, []
        return done

    def join(self):
        pass


def picture(name: str, *rows: int, key: str | None = "k") -> ImageInput:
    tokens = sum(rows) // 4
    inputs = {"picture": name, "items": rows, "key": key}
    return ImageInput(name.encode(), 0, tuple(range(tokens)), inputs)


def wanted(*pictures: ImageInput, group: int = 1) -> list[Wanted]:
    return [Wanted(one, group) for one in pictures]


@pytest.fixture
def encoder():
    return Encoder()


@pytest.fixture
def encodings(encoder):
    made = Encodings(encoder, pack_patches=100, lane=Lane(encoder))
    made.cost = EncoderCost({"block": (0.010, 0.0, 0.0)})
    return made


def finish(encodings, pictures):
    """Everything that comes, in its order."""
    return list(encodings.run(pictures, 1e9))


def test_small_pictures_of_a_class_share_a_pack_up_to_the_bound(encoder, encodings):
    pictures = [picture(f"p{i}", 24) for i in range(9)]
    outcomes = finish(encodings, wanted(*pictures))
    assert [len(pack) for pack in encoder.packs] == [4, 4, 1]
    assert [outcome.content_hash for outcome in outcomes] == [p.content_hash for p in pictures]
    assert all(outcome.complete for outcome in outcomes)
    assert not encodings, "nothing is left behind"


def test_forty_small_crops_take_as_many_slices_as_their_patches_need(encoder, encodings):
    finish(encodings, wanted(*(picture(f"p{i}", 10) for i in range(40))))
    assert len(encoder.packs) == 4
    assert encodings.spent.slices == 4 * SLICES


def test_a_large_item_is_a_pack_by_itself_and_other_forms_dont_mix(encoder, encodings):
    pictures = [
        picture("tiles", 400, 400, 40),
        picture("crop", 40),
        picture("other", 8, key="x"),
        picture("alone", 8, key=None),
    ]
    finish(encodings, wanted(*pictures))
    assert encoder.packs == [
        [("tiles", 0)],
        [("tiles", 1)],
        [("tiles", 2), ("crop", 0)],
        [("other", 0)],
        [("alone", 0)],
    ]


def test_classes_dont_share_packs(encoder, encodings):
    finish(encodings, [*wanted(picture("chat", 8), group=0), *wanted(picture("camera", 8), group=1)])
    assert encoder.packs == [[("chat", 0)], [("camera", 0)]]


def test_items_come_one_by_one_before_their_picture_is_complete(encoder, encodings):
    outcomes = finish(encodings, wanted(picture("tiles", 400, 400, 400)))
    assert [(len(o.part.rows), o.complete) for o in outcomes] == [(100, False), (100, False), (100, True)]
    assert [int(o.part.rows[0]) for o in outcomes] == [0, 1, 2], "in the order of their rows"


def test_slices_stop_before_the_time_is_over_and_go_on_next_time(encoder, encodings):
    one = wanted(picture("tiles", 400, 400))
    assert list(encodings.run(one, 0.0305)) == []
    assert encodings.spent.slices == 2, "a third would need 1.1 times its 10 ms of the 10.5 that are left"
    assert list(encodings.run(one, 0.0)) == []
    assert encodings.spent.slices == 1, "one in any case"
    assert len(list(encodings.run(one, 0.02))) == 1


def test_somebody_new_ends_the_run_after_the_slice(encoder, encodings):
    assert list(encodings.run(wanted(picture("tiles", 400)), 1e9, lambda: True)) == []
    assert encodings.spent.slices == 1


def test_a_picture_of_a_higher_turn_goes_first_and_the_other_goes_on_later(encoder, encodings):
    camera, chat = picture("camera", 400), picture("chat", 400)
    list(encodings.run(wanted(camera), 0.0))
    outcomes = finish(encodings, [*wanted(chat, group=0), *wanted(camera)])
    assert [o.content_hash for o in outcomes] == [b"chat", b"camera"]
    assert len(encoder.packs) == 2, "the camera's slices were not run again"


def test_one_broken_picture_of_a_pack_fails_alone(encoder, encodings):
    encoder.broken = {"p1"}
    outcomes = finish(encodings, wanted(*(picture(f"p{i}", 24) for i in range(4))))
    failed = [o.content_hash for o in outcomes if o.error is not None]
    assert failed == [b"p1"]
    assert sorted(o.content_hash for o in outcomes if o.complete) == [b"p0", b"p2", b"p3"]


def test_tensors_that_are_no_picture_fail_when_their_turn_comes(encoder, encodings):
    nonsense = ImageInput(b"nonsense", 0, (0,), {"picture": "nonsense"})
    assert encodings.seconds_left(nonsense) == 0.0
    outcomes = finish(encodings, wanted(nonsense, picture("good", 8)))
    assert [(o.content_hash, o.error is not None) for o in outcomes] == [(b"nonsense", True), (b"good", False)]


def test_features_that_are_too_few_fail_the_picture(encoder, encodings):
    short = ImageInput(b"short", 0, tuple(range(99)), {"picture": "short", "items": (400,), "key": None})
    (outcome,) = finish(encodings, wanted(short))
    assert "100 feature rows for 99 image tokens" in str(outcome.error)


def hold(cache: EncoderCache, key: str, image: ImageInput) -> ImageSpan:
    span = ImageSpan(image.content_hash, 0, image.end, 8 * image.num_tokens)
    cache.hold([(key, span)])
    return span


def test_a_pack_goes_on_while_one_of_its_pictures_is_wanted(encoder, encodings):
    cache = EncoderCache(10_000)
    first, second = picture("first", 40), picture("second", 40)
    spans = [hold(cache, name, one) for name, one in (("a", first), ("b", second))]
    list(encodings.run(wanted(first, second), 0.0))
    cache.release("a", [spans[0]])
    encodings.drop_unwanted(cache)
    assert not encoder.tasks[0].aborted
    outcomes = finish(encodings, wanted(second))
    assert [o.content_hash for o in outcomes] == [b"second"]
    hold(cache, "c", first)
    list(encodings.run(wanted(first), 0.0))
    cache.release("c", [spans[0]])
    encodings.drop_unwanted(cache)
    assert encoder.tasks[1].aborted
    assert not encodings


def test_a_picture_let_go_and_wanted_again_begins_with_its_first_rows(encoder, encodings):
    """The rows handed over went with the cache's entry; going on in the middle would leave a hole."""
    cache = EncoderCache(10_000)
    tiles = picture("tiles", 400, 400)
    span = hold(cache, "a", tiles)
    (outcome,) = list(encodings.run(wanted(tiles), 0.050))
    cache.put(outcome.content_hash, outcome.part, outcome.complete)
    cache.release("a", [span])
    hold(cache, "b", tiles)
    encodings.drop_unwanted(cache)
    outcomes = finish(encodings, wanted(tiles))
    assert [int(o.part.rows[0]) for o in outcomes] == [0, 1]


def test_unsliced_a_picture_is_one_pack_and_one_picture_a_run_when_time_is_short(encoder):
    encoder.slices = 1
    whole = Encodings(encoder, pack_patches=100, slicing=False, lane=Lane(encoder))
    whole.cost = EncoderCost({"block": (0.010, 0.0, 0.0)})
    pictures = wanted(picture("first", 400, 400, 400), picture("second", 400))
    outcomes = list(whole.run(pictures, 0.0))
    assert encoder.packs[0] == [("first", 0), ("first", 1), ("first", 2)]
    assert [o.content_hash for o in outcomes] == [b"first"] * 3


def test_what_is_left_shrinks_as_slices_are_run(encoder, encodings):
    one = picture("tiles", 400, 400)
    finish(encodings, wanted(picture("other", 400)))
    before = encodings.seconds_left(one)
    assert before == pytest.approx(2 * SLICES * 0.010, rel=0.1)
    list(encodings.run(wanted(one), 0.020))
    assert encodings.seconds_left(one) < before - 0.005
