"""Times measured at start: of the real tower and decoder, kept in a file, measured again when they can't be trusted."""

from __future__ import annotations

import json

import pytest
import torch

from tests.golden.harness import Harness, picture, user
from vlm_engine import EngineConfig, calibration
from vlm_engine.encoder_cache import EncoderCache
from vlm_engine.encoder_lane import CpuLane
from vlm_engine.row_cuts import SliceWork
from vlm_engine.runner import ModelRunner
from vlm_engine.step_time import StepTimeModel


@pytest.fixture(scope="module")
def harness(checkpoint):
    return Harness(checkpoint("smolvlm"))


@pytest.fixture
def measure(harness, tmp_path):
    """``measure()`` -> what the engine would start with, and how often pictures were asked for."""
    config = EngineConfig(
        model=str(harness.path), calibration_dir=str(tmp_path), max_num_batched_tokens=16, max_num_seqs=4
    )
    runner = ModelRunner(harness.checkpoint, config, EncoderCache(1 << 20), 200)
    asked = []

    def pictures():
        asked.append(1)
        return [harness.prepare(user(picture(1, side, side))).images[0].inputs for side in (32, 64)]

    def run():
        return calibration.load_or_measure(harness.checkpoint, config, runner, CpuLane(), pictures), len(asked)

    return run


def test_every_kind_of_slice_and_the_whole_are_measured(harness, measure):
    measured, _ = measure()
    encoder = harness.checkpoint.encoder
    item = encoder.items(harness.prepare(user(picture(2, 64, 64))).images[0].inputs)[0]
    with torch.inference_mode():
        task = encoder.start([item])
        while True:
            assert measured.encoder.predict(task.next) > 0, task.next
            if task.advance() is not None:
                break
    assert measured.encoder.predict(SliceWork("total", item.rows, item.rows * item.keys)) > 0
    assert measured.step_time.predict([(0, 1)]) > 0


def test_a_second_start_takes_what_was_kept(measure, monkeypatch):
    first, asked = measure()
    assert (first.kept, asked) == (False, 1)
    monkeypatch.setattr(calibration, "TRUSTED", 1e9)  # a loaded machine is as good as an idle one here
    second, asked = measure()
    assert (second.kept, asked) == (True, 1)
    assert second.step_time.seconds == pytest.approx(first.step_time.seconds)
    assert second.encoder.terms.keys() == first.encoder.terms.keys()


def test_a_machine_that_became_slower_is_measured_again(measure, tmp_path):
    measure()
    (path,) = tmp_path.iterdir()
    stored = json.loads(path.read_text())
    stored["step_time"]["seconds"] = [1e-9] * len(stored["step_time"]["seconds"])
    path.write_text(json.dumps(stored))
    again, asked = measure()
    assert (again.kept, asked) == (False, 2)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step_time": {}}', '{"step_time": {"sizes": [2], "seconds": [1]}}'])
def test_a_damaged_file_is_measured_again_and_written_anew(measure, tmp_path, text):
    measure()
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    again, asked = measure()
    assert (again.kept, asked) == (False, 2)
    assert json.loads(path.read_text())["encoder"]


def test_a_folder_that_cant_be_written_costs_nothing_but_time(measure, tmp_path, monkeypatch, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(calibration, "_path", lambda *args: blocked / "inside" / "x.json")
    measured, _ = measure()
    assert measured.step_time.predict([(0, 1)]) > 0
    assert "can't be kept" in caplog.text


def test_step_times_survive_json_and_nonsense_is_refused():
    model = StepTimeModel((1, 8, 64), (0.01, 0.012, 0.05), 1e-5, 1e-6, 2e-5, correction=1.5, chunk_correction=0.8)
    again = StepTimeModel.from_json(json.loads(json.dumps(model.as_json())))
    assert again.predict([(300, 20)]) == pytest.approx(model.predict([(300, 20)]))
    good = model.as_json()
    for change in (
        {"sizes": [1, 8]},
        {"sizes": [1, 8, 8]},
        {"gamma": -1},
        {"alpha": float("nan")},
        {"seconds": [0, 1, 2]},
    ):
        with pytest.raises(ValueError):
            StepTimeModel.from_json({**good, **change})
