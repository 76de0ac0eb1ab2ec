"""Our own OpenAPI description against the server: whatever it lets a client send is answered, never with a 5xx."""

from __future__ import annotations

import json
import subprocess
import traceback
from pathlib import Path

import pytest

from tests.api.conftest import MODEL, user
from tests.api.fuzz import Report, fuzz
from tests.api.live_server import LiveServer
from tests.api.station import Station
from tests.api.waiting import until

REQUESTS = 500
SOAK_REQUESTS = 10_000
SOAK_PIECE = 500
SOAK_SEED = 1000
"""Seeds of pieces lie so far apart that their rounds have different ones."""
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "fuzz_openapi.json"


@pytest.fixture
def everything(engine, valkey, tmp_path):
    """All routes: engine, cameras, events."""
    station = Station(valkey.connection_url, tmp_path / "data", engine)
    station.redis.flushall()
    station.status("front")
    station.person("front", 1)
    with LiveServer(station.services) as server:
        yield server
    station.close()


def check_well(server, engine, client) -> None:
    """The engine is idle, whole, and answers as before."""
    until(lambda: not engine._core.has_work)
    engine._core.check_integrity()
    assert engine._core.pool.num_free == engine._core.pool.num_blocks
    # The server leaves a slot after the client has read the last byte.
    until(lambda: server.app.state.limits.num_open == 0)
    assert client.chat.completions.create(messages=user(), model=MODEL, max_tokens=1).choices


def test_five_hundred_requests_as_described(everything, engine, client):
    report = fuzz(everything.url, REQUESTS)
    assert report.requests >= REQUESTS
    assert report.wrong == []
    for route in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize"):
        assert report.statuses[f"POST {route} 200"] > 0 and report.statuses[f"POST {route} 400"] > 0
    check_well(everything, engine, client)


@pytest.mark.soak
def test_ten_thousand_requests_as_described(everything, engine, client, caplog):
    """In pieces with seeds of their own; the file holds what was seen so far, whatever happens to the rest."""
    report, seeds, failures = Report(), 0, []
    while report.requests < SOAK_REQUESTS:
        seeds += 1
        report.add(fuzz(everything.url, SOAK_PIECE, number=SOAK_SEED * seeds))
        failures += [traceback_of(record.exc_info) for record in caplog.records if record.exc_info]
        caplog.clear()
        RESULTS.write_text(json.dumps(summary(report, seeds) | {"failures": failures}, indent=1) + "\n")
        check_well(everything, engine, client)
    assert report.wrong == []


def summary(report: Report, pieces: int) -> dict:
    """For the results file."""
    how = f"pieces of about {SOAK_PIECE} requests with the seeds {SOAK_SEED} times 1 to {pieces}; tiny SmolVLM, 2 cores"
    return {"how": how, "commit": commit(), **report.as_json()}


def traceback_of(failure: tuple) -> str:
    """The end of it: bodies don't tell what broke."""
    return "".join(traceback.format_exception(*failure))[-1500:]


def commit() -> str:
    """Of the code that is tested; empty outside a checkout."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, cwd=RESULTS.parent, capture_output=True, text=True, check=False).stdout.strip()
