"""What is shipped: all of it, small, and careful about what few wear."""

from __future__ import annotations

import numpy as np
import torch
from safetensors.torch import load_file

from training.describer.evaluate import read_tower
from training.describer.ship import RARE, cautious, ship
from training.describer.tower import other_light
from vlm_engine.families.nano_concepts import CONCEPTS
from vlm_engine.families.nano_tower import NanoTower


def few_hats(count: int = 400) -> np.ndarray:
    """Labels of a set in which one of ten wears a hat and one of four sunglasses."""
    concepts = np.zeros((count, len(CONCEPTS)), np.int8)
    concepts[::10, list(CONCEPTS).index("hat")] = 1
    concepts[::4, list(CONCEPTS).index("sunglasses")] = 1
    return concepts


def test_a_rare_thing_is_told_later_and_nothing_else_changes():
    torch.manual_seed(0)
    tower = NanoTower().state_dict()
    after = cautious(tower, few_hats())
    for name, value in tower.items():
        moved = any(name == f"heads.{rare}.3.bias" for rare in RARE)
        assert torch.equal(value, after[name]) != moved
    margin = [float((after[f"heads.{r}.3.bias"] - tower[f"heads.{r}.3.bias"])[1]) for r in ("hat", "sunglasses")]
    assert margin[0] < margin[1] < 0, "the rarer, the more"


def test_what_is_written_is_what_was_trained(tmp_path):
    torch.manual_seed(0)
    tower, words = NanoTower(), {"connector.frame": torch.randn(4, 8), "lora.layers.0.q_proj.up": torch.randn(8, 2)}
    torch.save({"tower": tower.state_dict()}, tmp_path / "last.pt")
    torch.save({"weights": words}, tmp_path / "words.pt")
    np.savez(tmp_path / "train_1.npz", concepts=few_hats())
    out = tmp_path / "models" / "weights.safetensors"
    size = ship([tmp_path / "last.pt"] * 2, tmp_path / "words.pt", tmp_path, out)
    assert size == out.stat().st_size < 40_000_000
    stored = load_file(out)
    torch.testing.assert_close(stored["connector.frame"].float(), words["connector.frame"], rtol=1e-3, atol=1e-3)
    pixels = torch.rand(2, 3, 192, 96) * 2 - 1
    with torch.no_grad():
        before, after = tower.eval()(pixels), read_tower(out).eval()(pixels)
    for name in set(CONCEPTS) - set(RARE):
        torch.testing.assert_close(before.logits[name], after.logits[name], rtol=0.05, atol=0.02)


def test_other_light_changes_most_crops_and_keeps_what_is_darker_darker():
    pixels = torch.full((200, 3, 8, 8), -0.6)
    pixels[:, :, 4:] = 0.6
    seen = other_light(pixels, np.random.default_rng(0))
    assert seen.shape == pixels.shape and float(seen.min()) >= -1.0 and float(seen.max()) <= 1.01
    changed = (seen != pixels).flatten(1).any(1).float().mean()
    assert 0.55 < float(changed) < 0.85
    assert bool((seen[:, :, 4:].mean((1, 2, 3)) > seen[:, :, :4].mean((1, 2, 3))).all())
