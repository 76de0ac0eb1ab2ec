"""From an RTSP camera to words through real sockets: RTSP over TCP, Redis protocol, HTTP; every part its own process.

One installation for the whole file: started once, its parts killed one after another, ended with Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing

import httpx
import pytest
from openai import OpenAI

from tests.e2e.station import Station

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def station(shared_data, tiny_smolvlm, tmp_path_factory):
    pytest.importorskip("openvino", reason="the shared detector weights are an OpenVINO export")
    weights = shared_data / "yolo" / "yolo26n_int8_openvino_model"
    with Station(tmp_path_factory.mktemp("station"), tiny_smolvlm, weights) as station:
        yield station


def eventually(station, check, seconds):
    """The first true answer of ``check``; answers while serve is away count as no."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if answer := check():
                return answer
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline, f"not within {seconds} s:\n{station.tail()}"
        time.sleep(0.2)


def described(station, after=""):
    """The newest event with a crop and words that was first seen after this time."""
    events = station.get("/api/events?limit=50")["events"]
    return next((e for e in events if e["description"] and e["crop_url"] and e["first_seen"] > after), None)


def test_a_person_has_a_row_with_crop_and_words_while_a_chat_streams(station):
    eventually(station, lambda: httpx.get(station.url + "/health/live").status_code == 200, 60)
    eventually(station, lambda: httpx.get(station.url + "/health/ready").status_code == 200, 90)
    ready = time.monotonic()
    client = OpenAI(base_url=station.url + "/v1", api_key="none")
    model = client.models.list().data[0].id
    chat = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Talk to me."}],
        max_tokens=4000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    event, pieces = None, 0
    for chunk in chat:
        pieces += bool(chunk.choices and chunk.choices[0].delta.content)
        if pieces % 20 == 0 and (event := described(station)):
            break
        assert time.monotonic() - ready < 60, station.tail()
    chat.close()
    assert event is not None, f"the chat ended before a person was described:\n{station.tail()}"
    assert pieces > 20
    assert event["camera"] == "door"
    picture = httpx.get(station.url + event["crop_url"])
    assert picture.headers["content-type"] == "image/jpeg"
    assert picture.content[:3] == b"\xff\xd8\xff"
    camera = station.get("/api/cameras")["cameras"][0]
    assert (camera["state"], camera["name"]) == ("online", "Front door")
    assert '<html lang="en"' in httpx.get(station.url + "/").text
    assert "watchword_generation_tokens_total" in httpx.get(station.url + "/metrics").text


def test_the_whole_way_is_told_by_server_sent_events(station):
    seen = set()
    with httpx.stream("GET", station.url + "/api/stream", timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("event:"):
                seen.add(line.split(":", 1)[1].strip())
            if {"event.created", "description.partial", "description.final"} <= seen:
                return
    pytest.fail(f"the stream ended after {seen}")


@pytest.mark.parametrize("part", ["ingest", "serve", "valkey-server"])
def test_a_killed_part_comes_back_and_so_does_the_flow(station, part):
    pid = station.processes()[part]
    killed = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    os.kill(pid, signal.SIGKILL)
    eventually(station, lambda: station.processes().get(part, pid) != pid, 30)
    event = eventually(station, lambda: described(station, after=killed), 120)
    assert event["description_state"] in ("draft", "final")
    assert station.get("/api/cameras")["cameras"][0]["state"] == "online"


def test_r67_ctrl_c_ends_all_of_it_within_twenty_seconds_and_leaves_no_event_open(station):
    parts = station.processes()
    assert set(parts) == {"ingest", "serve", "valkey-server"}
    code, seconds = station.stop()
    assert code == 0, station.tail()
    assert seconds < 20
    with closing(sqlite3.connect(station.folder / "data" / "watchword.db")) as database:
        ended = database.execute("SELECT state, last_seen, updated FROM events ORDER BY first_seen DESC").fetchall()
    assert ended and {state for state, _, _ in ended} <= {"ended", "interrupted"}
    assert all(last_seen <= updated for _, last_seen, updated in ended)
    assert not [part for part, pid in parts.items() if os.path.exists(f"/proc/{pid}")]
    assert "Traceback" not in station.tail()
