"""Where the people detector that comes with Watchword stands in: its size, said by the check, looked for once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingest import detector
from ingest.detector import Detectors, YoloNetwork
from ingest.weights import resolve_weights
from pipeline.cli.checks.finding import Level
from pipeline.cli.checks.models import check_weights
from pipeline.config import DetectorConfig
from pipeline.models import shipped
from pipeline.models.shipped import PEOPLE_DETECTOR


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    monkeypatch.setenv("WATCHWORD_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_it_looks_at_the_size_at_which_it_was_judged_unless_another_is_said(offline: None) -> None:
    weights = resolve_weights("people")
    assert YoloNetwork(weights, DetectorConfig(device="cpu")).imgsz == 416
    assert YoloNetwork(weights, DetectorConfig(device="cpu", imgsz=640)).imgsz == 640


def test_the_check_says_that_it_stands_in_and_what_it_does_not_know(offline: None) -> None:
    def level(**settings: object) -> tuple[Level, str]:
        (found,) = check_weights(DetectorConfig.model_validate(settings))
        return found.level, found.text

    stands_in, text = level()
    assert stands_in is Level.WARNING and "yolo26n.pt can't be had" in text
    assert level(weights="people")[0] is Level.OK
    refused, text = level(classes=["person", "dog"])
    assert refused is Level.PROBLEM and "not dog" in text


def test_weights_are_looked_for_once(offline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(name: str) -> Path:
        asked.append(name)
        return resolve_weights(name)

    monkeypatch.setattr(detector, "resolve_weights", resolve)
    detectors = Detectors(DetectorConfig(device="cpu", imgsz=160))
    detectors.find()
    detectors.load_own()
    assert asked == ["yolo26n.pt"]


def test_files_are_found_by_the_installations_own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``pip install --user`` and Debian's pip put them where no prefix says."""
    placed = tmp_path / "share" / "watchword" / "models" / PEOPLE_DETECTOR
    placed.parent.mkdir(parents=True)
    placed.write_bytes(b"x")

    class Recorded:
        def __str__(self) -> str:
            return f"../../share/watchword/models/{PEOPLE_DETECTOR}"

        def locate(self) -> Path:
            return placed

    monkeypatch.setattr(shipped.importlib.metadata, "files", lambda name: [Recorded()])
    assert shipped._recorded(PEOPLE_DETECTOR) == placed.resolve()
    assert shipped._recorded("people-detector/other.pt") is None
