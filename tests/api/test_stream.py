"""Server-sent events: order, ids, Last-Event-ID, keep-alive, shutdown."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

import api.operator.stream as stream_module
from pipeline.messages import ChangeKind
from pipeline.queue import keys
from tests.api.live_server import LiveServer
from tests.api.waiting import until


class Follower:
    """Reads a stream in a thread, as a browser would."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.events: list[dict] = []
        self.comments = 0
        self.ended = threading.Event()
        self._lines = lines
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        event: dict = {}
        try:
            for line in self._lines:
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    event[name] = value
                elif "data" in event:
                    self.events.append({**event, "data": json.loads(event["data"])})
                    event = {}
                else:
                    event = {}
        except httpx.HTTPError:
            pass
        self.ended.set()


@contextmanager
def follow(url: str, **headers: str) -> Iterator[Follower]:
    with httpx.Client(timeout=30) as client, client.stream("GET", f"{url}/api/stream", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        follower = Follower(response.iter_lines())
        yield follower
        # Closing alone would not wake the thread that reads.
        with suppress(OSError):
            response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        assert follower.ended.wait(5)


@pytest.fixture
def server(station):
    with LiveServer(station.services) as server:
        yield server


def blocked(station) -> bool:
    """Whether somebody waits at the stream of changes."""
    return any(client["cmd"] == "xread" for client in station.redis.client_list())


def test_changes_come_as_they_happen_with_their_ids(server, station):
    record = station.person("front", 1)
    station.publish(ChangeKind.CREATED, record)  # before anybody looked
    with follow(server.url) as follower:
        until(lambda: blocked(station))
        ids = [
            station.publish(ChangeKind.PARTIAL, record, description="A person"),
            station.publish(ChangeKind.DESCRIBED, station.describe(record, "A person in red.")),
        ]
        until(lambda: len(follower.events) == 2)
    assert [event["id"] for event in follower.events] == ids
    assert [event["event"] for event in follower.events] == ["description.partial", "description.final"]
    data = follower.events[1]["data"]
    assert data["kind"] == "description.final" and data["event_id"] == record.id
    assert data["event"]["description"] == "A person in red." and data["time"].endswith("+00:00")


def test_a_client_that_returns_gets_what_it_missed(server, station):
    record = station.person("front", 1)
    ids = [station.publish(ChangeKind.UPDATED, record) for _ in range(4)]
    with follow(server.url, **{"Last-Event-ID": ids[1]}) as follower:
        until(lambda: len(follower.events) == 2)
    assert [event["id"] for event in follower.events] == ids[2:]


@pytest.mark.parametrize("nonsense", ["x", "0", "-", "9" * 30 + "-1", "$"])
def test_a_nonsensical_last_event_id_means_from_now_on(server, station, nonsense):
    record = station.person("front", 1)
    station.publish(ChangeKind.UPDATED, record)
    with follow(server.url, **{"Last-Event-ID": nonsense}) as follower:
        until(lambda: blocked(station))
        wanted = station.publish(ChangeKind.UPDATED, record)
        until(lambda: follower.events)
    assert [event["id"] for event in follower.events] == [wanted]


def test_silence_is_filled_with_comments(server, monkeypatch):
    monkeypatch.setattr(stream_module, "KEEP_ALIVE_S", 0.05)
    with follow(server.url) as follower:
        until(lambda: follower.comments >= 3)
    assert follower.events == []


def test_an_unreadable_entry_stops_nobody(server, station):
    record = station.person("front", 1)
    with follow(server.url) as follower:
        until(lambda: blocked(station))
        station.redis.xadd(keys.EVENTS, {"kind": "nonsense"})
        wanted = station.publish(ChangeKind.UPDATED, record)
        until(lambda: follower.events)
    assert [event["id"] for event in follower.events] == [wanted]


def test_open_streams_end_when_the_server_stops(station):
    server = LiveServer(station.services)
    with server, follow(server.url) as follower:
        until(lambda: blocked(station))
        started = time.monotonic()
        server.stop()
        assert time.monotonic() - started < 5
        assert follower.ended.wait(5)


def test_a_reader_that_leaves_lets_go_of_redis(server, station):
    with follow(server.url):
        until(lambda: blocked(station))
    # Not at once: a blocking read that was cancelled must not linger either.
    until(lambda: not blocked(station), 10)


def test_streams_beyond_the_bound_are_429_until_one_ends(server, monkeypatch):
    monkeypatch.setattr(stream_module, "MAX_STREAMS", 1)
    with follow(server.url):
        refused = httpx.get(f"{server.url}/api/stream")
        assert refused.status_code == 429 and refused.headers["retry-after"]
    until(lambda: server.app.state.open_streams == 0)
    with follow(server.url):
        pass
