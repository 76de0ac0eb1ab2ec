"""The small describer's eyes: EfficientNet-lite0, the parts of the body it finds, and what it tells of each.

Every concept (:mod:`vlm_engine.families.nano_concepts`) looks at the picture through a map of its own; what the map
lets through is averaged and told by a small head. The two colours share one head, which sees the pixels' own colours
under the map beside those of the whole picture, because what is white depends on the light.

EfficientNet-lite: https://blog.tensorflow.org/2020/03/higher-accuracy-on-vision-models-with-efficientnet-lite.html
(EfficientNet, arXiv 1905.11946, without squeeze-and-excitation, with ReLU6). Batch normalisation is folded into the
convolutions before the tower is trained further, so that there is none here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from vlm_engine.families.nano_concepts import COLOURS, CONCEPTS, PARTS

STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
"""Expansion, channels, blocks, stride of the first block, kernel size."""
STEM = 32
TAPS = {1: 24, 2: 40, 4: 112, 6: 320}
"""Stage -> channels, of the stages whose outputs are used: at a fourth, an eighth, a 16th and a 32nd of the size."""
WIDTH = 64
SHADES = 48
"""Channels of the colour features."""
COLOUR_CONCEPTS = tuple(name for name, values in CONCEPTS.items() if values is COLOURS)


class Conv(nn.Module):
    """A convolution with TensorFlow's "same" padding (the odd pixel after, not before), and ReLU6 if wanted."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1, act: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, 0 if stride > 1 else kernel // 2, groups=groups)
        self._pad = (kernel - stride) // 2, (kernel - stride + 1) // 2
        self._act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[n, inputs, h, w]`` -> ``[n, outputs, h / stride, w / stride]``; h and w divisible by the stride."""
        if self.conv.stride[0] > 1:
            before, after = self._pad
            x = F.pad(x, (before, after, before, after))
        x = self.conv(x)
        return F.relu6(x) if self._act else x


class Block(nn.Module):
    """MBConv: expand, depthwise, project; added to its input where the shapes allow."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expansion
        convs = [Conv(inputs, inner, 1, 1)] if expansion > 1 else []
        convs += [Conv(inner, inner, kernel, stride, groups=inner), Conv(inner, outputs, 1, 1, act=False)]
        self.convs = nn.Sequential(*convs)
        self._adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.convs(x)
        return x + out if self._adds else out


class Backbone(nn.Module):
    """EfficientNet-lite0 without its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Conv(3, STEM, 3, 2)
        self.stages = nn.ModuleList()
        channels = STEM
        for expansion, outputs, count, stride, kernel in STAGES:
            blocks = []
            for index in range(count):
                blocks.append(Block(channels, outputs, expansion, kernel, stride if index == 0 else 1))
                channels = outputs
            self.stages.append(nn.Sequential(*blocks))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Features of the stages in TAPS, finest first."""
        x = self.stem(x)
        taps = []
        for index, stage in enumerate(self.stages):
            x = stage(x)
            if index in TAPS:
                taps.append(x)
        return taps


class Refine(nn.Module):
    """A depthwise and a pointwise convolution, added."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Conv2d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)
        self.wide = nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.wide(F.relu(self.deep(x))))


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What the tower makes of n pictures.

    Attributes:
        logits: concept -> float ``[n, values]``.
        parts: logits of PARTS at every fourth pixel, float ``[n, len(PARTS), h / 4, w / 4]``.
        maps: where each concept looked, adding up to one, float ``[n, len(CONCEPTS), h / 4, w / 4]``.
        summary: float ``[n, SUMMARY]``, the whole picture.
    """

    logits: dict[str, torch.Tensor]
    parts: torch.Tensor
    maps: torch.Tensor
    summary: torch.Tensor


SUMMARY = 128


class NanoTower(nn.Module):
    """Pictures -> concepts. See the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.laterals = nn.ModuleList(nn.Conv2d(channels, WIDTH, 1) for channels in TAPS.values())
        self.refines = nn.ModuleList(Refine() for _ in list(TAPS)[:-1])
        self.parts = nn.Conv2d(WIDTH, len(PARTS), 1)
        self.looks = nn.Conv2d(WIDTH + len(PARTS), len(CONCEPTS), 1)
        self.shades = nn.Sequential(nn.Conv2d(3, SHADES, 1), nn.ReLU(), nn.Conv2d(SHADES, SHADES, 1), nn.ReLU())
        self.summary = nn.Linear(TAPS[6], SUMMARY)
        self.colour = _head(2 * SHADES + WIDTH, len(COLOURS))
        self.heads = nn.ModuleDict(
            {
                name: _head(WIDTH + SUMMARY, len(values))
                for name, values in CONCEPTS.items()
                if name not in COLOUR_CONCEPTS
            }
        )

    def forward(self, pixels: torch.Tensor) -> Seen:
        """``pixels``: float ``[n, 3, h, w]``, RGB from -1 to 1, h and w divisible by 32."""
        taps = self.backbone(pixels)
        x = self.laterals[-1](taps[-1])
        for index in range(len(taps) - 2, -1, -1):
            # Nearest: the kernel of bilinear scaling is slow on processors, and the refining layer smooths.
            x = F.interpolate(x, size=taps[index].shape[-2:], mode="nearest") + self.laterals[index](taps[index])
            x = self.refines[index](x)
        parts = self.parts(x)
        maps = self.looks(torch.cat((x, parts.softmax(1)), 1)).flatten(2).softmax(-1)
        shades = self.shades(F.avg_pool2d(pixels, 4))
        deep = torch.einsum("nkp,ncp->nkc", maps, x.flatten(2))
        looked = torch.einsum("nkp,ncp->nkc", maps, shades.flatten(2))
        whole = shades.mean((2, 3))
        summary = F.relu(self.summary(taps[-1].mean((2, 3))))
        logits: dict[str, torch.Tensor] = {}
        for index, name in enumerate(CONCEPTS):
            if name in COLOUR_CONCEPTS:
                logits[name] = self.colour(torch.cat((looked[:, index], whole, deep[:, index]), 1))
            else:
                logits[name] = self.heads[name](torch.cat((deep[:, index], summary), 1))
        return Seen(logits, parts, maps.unflatten(-1, x.shape[-2:]), summary)


def _head(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, outputs))


def as_pixels(images: torch.Tensor) -> torch.Tensor:
    """uint8 ``[n, h, w, 3]`` -> what the tower takes (EfficientNet-lite's scaling)."""
    return (images.permute(0, 3, 1, 2).float().contiguous() - 127.0) / 128.0
