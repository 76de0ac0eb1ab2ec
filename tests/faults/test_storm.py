"""Random parts are killed again and again under load: no crop is lost, none is stored or counted twice.

Real processes: Valkey with an append-only file, ingest's publisher, `watchword serve`; the engine answers over HTTP.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.storm import rage

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "storms.json"


@pytest.mark.timeout(420)
def test_a_storm_of_kills_loses_nothing_and_counts_everything_once(tmp_path: Path) -> None:
    storm = rage(tmp_path, seed=7, seconds=60)

    assert storm.faults == [], storm.figures
    assert sum(storm.figures["kills"].values()) >= 10
    assert storm.figures["described"] > 50, "there was load between the kills"


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_five_minutes_of_kills_lose_nothing_and_count_everything_once(tmp_path: Path, seed: int) -> None:
    storm = rage(tmp_path, seed=seed, seconds=300)

    write_result(storm.figures)
    assert storm.faults == [], storm.figures


def write_result(figures: dict[str, object]) -> None:
    """In place of the seed's last result."""
    kept = json.loads(RESULTS.read_text())["storms"] if RESULTS.exists() else []
    storms = [*(one for one in kept if one["seed"] != figures["seed"]), figures]
    about = (
        "SIGKILL of one of source, serve and Valkey (appendfsync always) every 1.5 to 5 seconds under load; "
        "python -m pytest -m soak tests/faults"
    )
    text = json.dumps({"about": about, "storms": sorted(storms, key=lambda one: one["seed"])}, indent=1)
    RESULTS.write_text(text + "\n")
