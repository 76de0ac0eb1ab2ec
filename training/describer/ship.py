"""What training has made, as it is shipped: ``python -m training.describer.ship --tower T --words W --set S --out O``.

Tower, connector and the decoder's change in float16, in one safetensors file; :mod:`pipeline.models.nano` puts them
together with SmolLM2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from training.describer.tower import class_weights

RARE = ("hat", "sunglasses")
"""Few wear them, and a wrong one in every third sentence is worse than a missed one."""
CAUTION = 3.0
"""So many times the weight that training gave them is taken back: of four hats told on street photographs, three were
there with 1, nearly all with 3."""


def cautious(tower: dict[str, torch.Tensor], concepts: NDArray[np.int8]) -> dict[str, torch.Tensor]:
    """Takes back what training did for the rare ones, and more: weighing values in the loss shifts their logits by the
    logarithm of the weights (Menon et al., arXiv 2007.07314).

    Args:
        concepts: int8 ``[n, len(CONCEPTS)]``, of the training set.
    """
    shifted, weights = dict(tower), class_weights(concepts)
    for name in RARE:
        bias = f"heads.{name}.3.bias"
        shifted[bias] = tower[bias] - CAUTION * torch.log(weights[name])
    return shifted


def mean_of(towers: Sequence[Path]) -> dict[str, torch.Tensor]:
    """The mean of several rounds' weights, each of which went on from another (model soups, arXiv 2203.05482)."""
    states = [torch.load(path, map_location="cpu", weights_only=True)["tower"] for path in towers]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def ship(towers: Sequence[Path], words: Path, folder: Path, out: Path) -> int:
    """Bytes of the file. ``towers``, ``words``: what the trainings left; ``folder``: the set of crops."""
    seen = mean_of(towers)
    concepts = [np.load(path)["concepts"] for path in sorted(folder.glob("train_*.npz"))]
    seen = cautious(seen, np.concatenate(concepts))
    said: dict[str, torch.Tensor] = torch.load(words, map_location="cpu", weights_only=True)["weights"]
    whole = {f"tower.{name}": value for name, value in seen.items()} | said
    out.parent.mkdir(parents=True, exist_ok=True)
    # The connector's sharpness and floor are thresholds of a few digits, its words have the decoder's own precision.
    save_file({name: value.half().contiguous() for name, value in whole.items()}, out)
    return out.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tower", type=Path, nargs="+", required=True, help="last.pt; of several the mean")
    parser.add_argument("--words", type=Path, required=True, help="words.pt of training.describer.words")
    parser.add_argument("--set", dest="folder", type=Path, required=True, help="what training.describer.crops wrote")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    print(f"{options.out}: {ship(options.tower, options.words, options.folder, options.out) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
