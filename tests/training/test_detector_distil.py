"""What a teacher adds: nothing for a learner that sees as it does, and more the further away it is."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import nn

from training.detector.distil import LAYERS, Tutor, hint_loss, outputs_of, quick, walk


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """A network of the teacher's architecture, saved as ultralytics saves one, and itself."""
    from ultralytics import YOLO

    torch.manual_seed(0)
    made = YOLO("yolo26n.yaml")
    path = tmp_path_factory.mktemp("teacher") / "teacher.pt"
    made.save(path)
    return path, YOLO(str(path)).model.float()


def answers(network: nn.Module, images: torch.Tensor):
    """The learner's outputs in single precision, its normalisation as when it is used."""
    network.eval()
    network.model[-1].training = True
    with torch.no_grad(), outputs_of(network) as seen, quick():
        told = network(images)["one2one"]
    return dict(seen), {name: told[name].float() for name in ("scores", "boxes")}


def test_the_loss_is_smallest_for_the_teacher_itself_and_nothing_is_left_behind(untrained):
    path, network = untrained
    tutor = Tutor(path)
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    seen, told = answers(network, images)
    told["scores"] = told["scores"][:, :1]
    assert set(seen) == set(LAYERS)
    assert not any(module._forward_hooks for module in network.modules()), "a network with hooks can't be saved"
    own = float(tutor.loss(images, seen, told))
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    far_seen, far_told = answers(other, images)
    far_told["scores"] = far_told["scores"][:, :1]
    assert own < float(tutor.loss(images, far_seen, far_told))
    for number in LAYERS:
        assert float(hint_loss(seen[number].float(), tutor.look(images)[0][number])) < 1e-3


def test_who_knows_the_means_alone_is_one_away():
    theirs = (
        torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(3))
        * torch.tensor([1.0, 5.0, 0.5])[None, :, None, None]
        + 2
    )
    means = theirs.mean((0, 2, 3), keepdim=True).expand_as(theirs)
    assert float(hint_loss(means, theirs)) == pytest.approx(1.0, abs=0.02)
    assert float(hint_loss(theirs, theirs)) == 0.0


def test_stage_by_stage_each_goes_on_from_what_it_is_shown(untrained):
    _, network = untrained
    network.eval()
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        whole, told = walk(network, images)
        again, said = walk(network, images, whole)
        for number in LAYERS:
            assert torch.equal(whole[number], again[number])
        assert torch.equal(told["scores"], said["scores"]) and torch.equal(told["boxes"], said["boxes"])
        broken = copy.deepcopy(network)
        for parameter in broken.model[0].parameters():
            parameter.zero_()
        apart, said = walk(broken, images, whole)
        assert not torch.equal(apart[LAYERS[0]], whole[LAYERS[0]])
        for number in LAYERS[1:]:
            assert torch.equal(apart[number], whole[number]), "a stage waits for the one below it"
        assert torch.equal(told["scores"], said["scores"])
        fallen, _ = walk(broken, images)
        assert not torch.equal(fallen[LAYERS[-1]], whole[LAYERS[-1]])


def test_the_stages_learn_and_a_run_goes_on_where_it_was_cut_off(untrained, tmp_path, monkeypatch):
    import cv2
    import numpy as np
    from ultralytics import YOLO

    from training.detector import stages

    rng = np.random.default_rng(0)
    pictures = tmp_path / "set" / "images" / "train"
    pictures.mkdir(parents=True)
    for number in range(4):
        cv2.imwrite(str(pictures / f"{number}.jpg"), rng.integers(0, 255, (80, 90, 3)).astype(np.uint8))
    monkeypatch.setattr(stages, "SIZES", {"apart": (64,), "together": (64,)})
    monkeypatch.setattr(stages, "BATCH", {"apart": 2, "together": 2})
    monkeypatch.setattr(stages, "TELL_EVERY_S", 0.0)
    monkeypatch.setattr(stages, "WARM_UP", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)

    class Cut(Exception):
        pass

    def cut(*_: object) -> None:
        raise Cut

    runs = tmp_path / "runs"
    with monkeypatch.context() as once:
        once.setattr(stages, "KEEP_EVERY_S", 0.0)
        keep = stages._keep
        once.setattr(stages, "_keep", lambda *of: (keep(*of), of[2]["step"] == 3 and cut()))
        with pytest.raises(Cut):
            stages.learn(tmp_path / "set", runs, untrained[0], {"apart": 30, "together": 2})
    kept = torch.load(runs / "stages_state.pt", weights_only=True)
    assert (kept["phase"], kept["step"], len(kept["curve"])) == ("apart", 3, 3)

    out = stages.learn(tmp_path / "set", runs, untrained[0], {"apart": 30, "together": 2})
    kept = torch.load(runs / "stages_state.pt", weights_only=True)
    assert kept["phase"] == "done"
    steps = [row["step"] for row in kept["curve"] if row["phase"] == "apart"]
    assert steps == list(range(1, 31))
    assert kept["curve"][len(steps) - 1]["22"] < kept["curve"][0]["22"]
    head = YOLO(str(out)).model.model[-1]
    assert torch.equal(head.cv3[0][2].weight, head.one2one_cv3[0][2].weight)
