"""What is shipped of a trained detector: small, with suppression, and right at the threshold that users have."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ultralytics.nn.tasks import DetectionModel, yaml_model_load

from ingest.detector import YoloNetwork
from pipeline.config.detector import DetectorConfig
from training.detector.train import BFloat16Model, BFloat16Trainer, ship


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A network as training leaves it, untrained but for what it calls a person: about every third place."""
    torch.manual_seed(0)
    model = BFloat16Model({**yaml_model_load("yolo26n.yaml"), "end2end": False}, nc=1, verbose=False)
    with torch.no_grad():
        for scores in model.model[-1].cv3:
            torch.nn.init.normal_(scores[-1].weight, 0.0, 1.0)
            scores[-1].bias.fill_(-0.2)
    path = tmp_path_factory.mktemp("trained") / "last.pt"
    torch.save({"model": model, "ema": None, "epoch": 3, "optimizer": {"much": torch.zeros(1_000_000)}}, path)
    return path


def scores_of(path):
    network = YoloNetwork(path, DetectorConfig(weights=str(path), device="cpu"))
    picture = np.random.default_rng(0).integers(0, 255, (96, 96, 3)).astype(np.uint8)
    return network, np.sort(network.detect([picture], 96)[0][:, 4])[::-1]


def test_it_is_small_and_its_boxes_do_not_pile_up(trained, tmp_path):
    ship(trained, tmp_path / "people.pt")
    assert (tmp_path / "people.pt").stat().st_size < 7_000_000
    stored = torch.load(tmp_path / "people.pt", weights_only=False)
    assert type(stored["model"]) is DetectionModel and stored["epoch"] == -1 and "optimizer" not in stored
    network, scores = scores_of(tmp_path / "people.pt")
    assert network._model.predictor.args.nms is None and network.names == {0: "person"}
    assert 0 < len(scores) < 96 * 96 // 64


def test_the_score_from_which_it_is_right_becomes_the_usual_one(trained, tmp_path):
    ship(trained, tmp_path / "as_it_is.pt")
    ship(trained, tmp_path / "shifted.pt", 0.6)
    before, after = (scores_of(tmp_path / name)[1] for name in ("as_it_is.pt", "shifted.pt"))
    assert before[0] > 0.2

    def logit(score):
        return np.log(score / (1 - score))

    moved = logit(after[0]) - logit(before[0])
    assert moved == pytest.approx(logit(0.35) - logit(0.6), abs=0.05)


def test_between_a_round_and_what_it_started_from(trained, tmp_path):
    ship(trained, tmp_path / "new.pt")
    stored = torch.load(trained, weights_only=False)
    with torch.no_grad():
        for value in stored["model"].state_dict().values():
            value.copy_(value + 1 if value.is_floating_point() else value)
    torch.save(stored, tmp_path / "moved.pt")
    ship(tmp_path / "moved.pt", tmp_path / "old.pt")
    ship(trained, tmp_path / "mean.pt", before=tmp_path / "old.pt", share=0.75)
    new, mean = (
        torch.load(tmp_path / name, weights_only=False)["model"].float().state_dict() for name in ("new.pt", "mean.pt")
    )
    learned = {name: value for name, value in new.items() if value.is_floating_point()}
    assert all(torch.allclose(mean[name], value + 0.25, atol=3e-3) for name, value in learned.items())
    with pytest.raises(ValueError, match=r"--share is 1\.5; it must be above 0 and at most 1"):
        ship(trained, tmp_path / "mean.pt", before=tmp_path / "old.pt", share=1.5)


def test_another_round_starts_from_all_of_the_weights(trained, tmp_path):
    """Ultralytics' own way goes through a network of 80 classes, and loses what tells people from everything else."""
    ship(trained, tmp_path / "people.pt")
    shipped = torch.load(tmp_path / "people.pt", weights_only=False)["model"].float().state_dict()
    trainer = SimpleNamespace(more=tmp_path / "people.pt", data={"nc": 1, "channels": 3})
    begun = BFloat16Trainer.get_model(trainer, "yolo26n.yaml", verbose=False).state_dict()
    assert begun.keys() == shipped.keys()
    assert all(torch.equal(begun[name], value) for name, value in shipped.items())
