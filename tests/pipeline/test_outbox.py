"""What is to be told to whom: noted with each change of an event, on SQLite and where there is one on PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.clock import SystemClock
from pipeline.config import AlertRule, WatchwordConfig
from pipeline.config.engine import StoreConfig
from pipeline.delivery.rules import Rules
from pipeline.messages import CropKind, TrackPhase
from pipeline.reasons import Reason
from pipeline.store import DescriptionMeta, EventFilter, EventStore
from pipeline.store.deliveries import Delivery
from pipeline.store.outbox import Outbox, Plan
from tests.pipeline.material import crop_of, jpeg_of, track_of

META = DescriptionMeta("tiny", "ab" * 32, "stop", 100, 90, 12, 0.2, 0.9)
ALL = frozenset(("started", "matched", "described", "ended", "failed", "updated"))
DEFAULT = ALL - {"updated"}


class MovedClock(SystemClock):
    """The real clock, moved by a test."""

    shift = 0.0

    def now(self) -> float:
        return super().now() + self.shift


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


class World:
    """A store whose outbox has one target, unless told otherwise."""

    def __init__(self, config: StoreConfig, clock: MovedClock, *plans: Plan, rules: list[AlertRule] | None = None):
        self.wakes = 0
        self.outbox = Outbox(Rules(rules or []), plans or [Plan("hook", DEFAULT, frozenset(), 100)], self._wake)
        self.store = EventStore(config, clock, self.outbox)
        self.clock = clock

    def _wake(self) -> None:
        self.wakes += 1

    def due(self, target: str = "hook", limit: int = 10, max_age: float = 3600.0) -> list[Delivery]:
        def write(event, changes, sequence, now):
            return json.dumps({"event": event.to_api(), "changes": list(changes), "sequence": sequence})

        return self.store.deliveries.due(target, limit, max_age, write)

    def deliver(self, target: str = "hook") -> list[tuple[str, list[str]]]:
        """Everything that is due arrives."""
        told = []
        while batch := self.due(target):
            for delivery in batch:
                told.append((delivery.event_id, json.loads(delivery.body)["changes"]))
                self.store.deliveries.delivered(delivery)
        return told

    def person(self, n: int = 1, camera: str = "front", **fields):
        return self.store.apply_track(track_of(TrackPhase.START, camera=camera, track=f"{camera}/a-{n}", **fields))

    def crop(self, n: int = 1, kind: CropKind = CropKind.EARLY, camera: str = "front", **fields):
        crop = crop_of(f"{camera}-{n}-{kind.value}", camera=camera, track=f"{camera}/a-{n}", kind=kind, **fields)
        self.store.add_crop(crop, jpeg_of())
        return crop.crop_id

    def describe(self, words: str, n: int = 1, kind: CropKind = CropKind.EARLY, camera: str = "front"):
        return self.store.finish_description(self.crop(n, kind, camera), words, META)

    def end(self, n: int = 1, camera: str = "front", **fields):
        return self.store.apply_track(track_of(TrackPhase.END, camera=camera, track=f"{camera}/a-{n}", **fields))


@pytest.fixture
def world(store_config: StoreConfig, clock: MovedClock) -> Iterator[World]:
    made = World(store_config, clock)
    yield made
    made.store.close()


def test_r33_forty_two_updates_of_one_track_are_one_notification(world: World) -> None:
    world.person()
    for n in range(42):
        world.store.apply_track(track_of(TrackPhase.UPDATE, last_seen=time.time() + n / 10))
    assert world.deliver() == [("front.a-1", ["started"])]
    assert world.wakes == 1, "the loops were woken once"
    world.describe("A person.")
    world.end()
    assert world.deliver() == [("front.a-1", ["described", "ended"])], "what came about together is told together"
    state = world.store.deliveries.state("hook")
    assert (state.waiting, state.counts) == (0, {"delivered": 2})


def test_r33_two_people_described_alike_are_two_notifications(world: World) -> None:
    for n in (1, 2):
        world.person(n)
        world.describe("A person in a red coat.", n)
    assert world.deliver() == [("front.a-1", ["started", "described"]), ("front.a-2", ["started", "described"])]


def test_every_attempt_is_the_same_message_and_what_comes_about_meanwhile_is_the_next(world: World) -> None:
    world.person()
    [first] = world.due()
    world.describe("A person.")
    world.store.deliveries.failed(first, "HTTP 500", time.time() - 1)
    [again] = world.due()
    assert (again.body, again.sequence, again.attempts) == (first.body, 1, 1)
    assert json.loads(again.body)["event"]["description"] is None, "as it was when the message was made"

    world.store.deliveries.delivered(again)
    [second] = world.due()
    assert (second.sequence, json.loads(second.body)["changes"]) == (2, ["described"])
    assert world.store.deliveries.state("hook").counts == {"failed": 1, "delivered": 1}


def test_r56_a_failure_is_told_with_its_reason_and_without_words(world: World) -> None:
    world.person()
    world.store.fail_description(world.crop(), Reason.ENGINE_ERROR, expired=False)
    [delivery] = world.due()
    body = json.loads(delivery.body)
    assert body["changes"] == ["started", "failed"]
    assert (body["event"]["description"], body["event"]["reason"]) == (None, "engine_error")


def test_beyond_the_bound_the_oldest_is_dropped_and_counted(store_config, clock) -> None:
    world = World(store_config, clock, Plan("hook", DEFAULT, frozenset(), 3))
    for n in range(5):
        world.person(n)
        clock.shift += 1
    state = world.store.deliveries.state("hook")
    assert (state.waiting, state.counts) == (3, {"delivery_queue_full": 2})
    assert [event for event, _ in world.deliver()] == ["front.a-2", "front.a-3", "front.a-4"]
    world.store.close()


def test_what_could_not_be_delivered_for_too_long_is_dropped_and_counted(world: World, clock: MovedClock) -> None:
    world.person(1)
    clock.shift = 1800
    world.person(2)
    clock.shift = 3601
    assert [delivery.event_id for delivery in world.due()] == ["front.a-2"]
    assert world.store.deliveries.state("hook").counts == {"delivery_expired": 1}


def test_a_message_that_was_dropped_while_it_was_under_way_changes_nothing_when_it_arrives(store_config, clock) -> None:
    world = World(store_config, clock, Plan("hook", DEFAULT, frozenset(), 1))
    world.person(1)
    [under_way] = world.due()
    world.person(2)
    world.store.deliveries.delivered(under_way)
    assert world.deliver() == [("front.a-2", ["started"])]
    assert world.store.deliveries.state("hook").counts == {"delivery_queue_full": 1, "delivered": 2}
    world.store.close()


def test_a_target_with_rules_hears_of_an_event_from_its_match_on(store_config, clock) -> None:
    rules = [AlertRule(name="red", words={"any": ["red"]}), AlertRule(name="yard", on="started", cameras=["yard"])]
    world = World(
        store_config,
        clock,
        Plan("red-only", DEFAULT, frozenset(("red",)), 100),
        Plan("either", frozenset(("ended",)), frozenset(("red", "yard")), 100),
        Plan("all", DEFAULT, frozenset(), 100),
        rules=rules,
    )
    world.person()
    assert (world.deliver("red-only"), world.deliver("either")) == ([], [])
    world.describe("A person in blue.")
    assert world.deliver("red-only") == []
    record = world.describe("A person in a red coat.", kind=CropKind.FINAL)
    assert record.rules == ("red",)
    world.end()
    world.person(1, "yard")
    assert world.deliver("red-only") == [("front.a-1", ["matched", "described", "ended"])]
    assert world.deliver("either") == [("front.a-1", ["matched", "ended"]), ("yard.a-1", ["matched"])]
    assert ("front.a-1", ["started", "matched", "described", "ended"]) in world.deliver("all")
    world.store.close()


def test_a_rule_matches_an_event_once_also_after_a_restart(store_config, clock) -> None:
    rules = [AlertRule(name="anybody", on="started")]
    world = World(store_config, clock, rules=rules)
    world.person()
    assert world.deliver() == [("front.a-1", ["started", "matched"])]
    world.store.close()

    world = World(store_config, clock, rules=rules)
    world.store.apply_track(track_of(TrackPhase.UPDATE, last_seen=time.time() + 1))
    world.describe("A person.")
    assert world.deliver() == [("front.a-1", ["described"])]
    assert world.store.get("front.a-1").rules == ("anybody",)
    [count] = world.store.deliveries.alert_counts()
    assert (count.rule, count.camera, count.matched, count.cooled) == ("anybody", "front", 1, 0)
    world.store.close()


def test_a_rule_waits_for_its_cooldown_on_each_camera_by_itself(store_config, clock) -> None:
    rules = [AlertRule(name="anybody", on="started", cooldown_s=60)]
    world = World(store_config, clock, Plan("hook", DEFAULT, frozenset(("anybody",)), 100), rules=rules)
    world.person(1)
    clock.shift = 59
    world.person(2)
    world.person(1, "yard")
    clock.shift = 61
    world.store.apply_track(track_of(TrackPhase.UPDATE, track="front/a-2", last_seen=time.time() + 99))
    world.person(3)
    assert [event for event, _ in world.deliver()] == ["front.a-1", "yard.a-1", "front.a-3"]
    counts = {count.camera: (count.matched, count.cooled) for count in world.store.deliveries.alert_counts()}
    assert counts == {"front": (2, 1), "yard": (1, 0)}
    world.store.close()


def test_events_are_found_by_the_rules_that_they_matched(store_config, clock) -> None:
    world = World(store_config, clock, rules=[AlertRule(name="red", words={"any": ["red"]})])
    world.person(1)
    world.person(2)
    world.describe("A red coat.", 1)
    world.describe("A blue coat.", 2)
    found = world.store.list_events(EventFilter(rule="red")).events
    assert [(event.id, event.rules) for event in found] == [("front.a-1", ("red",))]
    assert found[0].to_api()["rules"] == ["red"]
    assert world.store.list_events(EventFilter(rule="blue")).events == ()
    world.store.close()


def test_events_that_were_over_long_before_there_were_targets_are_no_news(store_config, clock) -> None:
    before = EventStore(store_config, clock)
    old = time.time() - 4000
    before.apply_track(track_of(TrackPhase.START, first_seen=old, last_seen=old))
    before.apply_track(track_of(TrackPhase.END, first_seen=old, last_seen=old))
    before.close()

    world = World(store_config, clock)
    world.store.finish_description(world.crop(time=old), "Somebody of an hour ago.", META)
    assert world.deliver() == []
    world.store.close()


def test_one_process_holds_a_target_and_another_takes_it_when_it_is_let_go_or_silent(world, clock) -> None:
    hold = world.store.deliveries.hold
    assert hold("hook", "a:1", 20)
    assert not hold("hook", "b:1", 20) and hold("hook", "a:1", 20)
    assert world.store.deliveries.state("hook").owner == "a:1"
    world.store.deliveries.release("hook", "b:1")
    assert not hold("hook", "b:1", 20), "only whoever holds it can let it go"
    world.store.deliveries.release("hook", "a:1")
    assert hold("hook", "b:1", 20)
    clock.shift = 21
    assert hold("hook", "a:1", 20)


def test_many_processes_asking_at_once_get_one_holder(any_store) -> None:
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda n: any_store.deliveries.hold("hook", f"p:{n}", 20), range(8)))
    assert got.count(True) == 1


def test_what_waits_for_a_target_that_is_no_longer_configured_is_let_go(world: World) -> None:
    world.person()
    assert world.store.deliveries.forget_targets(["other"]) == 1
    assert world.due() == []


def test_a_deleted_event_takes_its_messages_with_it(world: World) -> None:
    world.person()
    world.end()
    world.store.expire_waiting(time.time() + 10, time.time() + 10)
    [delivery] = world.due()
    world.store.pruner.delete(["front.a-1"], time.time())
    assert world.store.get("front.a-1") is None
    world.store.deliveries.failed(delivery, "HTTP 500", 0.0)
    assert world.due() == []
    assert world.store.deliveries.state("hook").waiting == 0


WRITER = """
import sys, time
from pathlib import Path
from pipeline.config.engine import StoreConfig
from pipeline.delivery.rules import Rules
from pipeline.messages import TrackPhase
from pipeline.store import EventStore
from pipeline.store.outbox import Outbox, Plan
from tests.pipeline.material import track_of
plan = Plan("hook", frozenset({"started"}), frozenset(), 100_000)
store = EventStore(StoreConfig(data_dir=Path(sys.argv[1])), None, Outbox(Rules(), [plan]))
n = 0
while True:
    store.apply_track(track_of(TrackPhase.START, track=f"front/{sys.argv[2]}-{n}"))
    print(n, flush=True)
    n += 1
"""


def test_a_kill_between_event_and_message_leaves_neither_without_the_other(tmp_path: Path, clock) -> None:
    """The reason for an outbox: kill -9 of the writer at any moment; each stored event has its message, once."""
    stored = 0
    for run in range(3):
        command = [sys.executable, "-c", WRITER, str(tmp_path), f"r{run}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        assert process.stdout is not None
        for _ in range(20 + 7 * run):
            assert process.stdout.readline(), "the writer came to nothing"
        os.kill(process.pid, signal.SIGKILL)
        stored += len([line for line in process.stdout if line.strip()]) + 20 + 7 * run
        process.wait(10)
        process.stdout.close()
    world = World(StoreConfig(data_dir=tmp_path), clock, Plan("hook", frozenset(("started",)), frozenset(), 100_000))
    events = world.store.list_events(limit=500)
    told = [event for event, _ in world.deliver()]
    assert sorted(told) == sorted(event.id for event in events.events)
    assert len(told) == len(set(told)) >= stored
    world.store.close()


def test_without_rules_and_targets_there_is_no_outbox() -> None:
    assert Outbox.of(WatchwordConfig()) is None
    assert Outbox.of(WatchwordConfig(alerts=[{"name": "a"}])) is not None
