"""Pictures are made to keep to a bound on their tokens by options of the checkpoint's own processor.

Counted before the processor runs, by the processor's own arithmetic, in steps from what was asked down to the least
that the family can do:

=================  ====================================================================================================
idefics3, smolvlm  ``size.longest_edge`` by whole tiles, then one tile (``do_image_splitting: false``)
qwen_vl            ``size.longest_edge`` (in pixels: ``max_pixels``), the least size with it where it would be more
internvl           ``max_patches`` (and ``min_patches``), then one tile (``crop_to_patches: false``)
watchword_nano     nothing: every picture takes as many tokens
llava_onevision    the picture scaled down to a smaller grid (its processor and encoder count tokens by the configured
                   grids, so these can't be narrowed), then the whole view alone, as for one picture of several
=================  ====================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from transformers.image_processing_utils import select_best_resolution

from vlm_engine.errors import InvalidRequestError
from vlm_engine.image_size import Options, SizeLimits, SizeRule
from vlm_engine.images import MAX_ASPECT

LARGEST_SIDE = 4096
"""Idefics3's and SmolVLM's processors scale no picture beyond it (``MAX_IMAGE_SIZE`` there)."""
ASPECTS = (1, 6 / 5, 5 / 4, 4 / 3, 3 / 2, 5 / 3, 2, 5 / 2, 3, 4, 5, 6, 12)
"""Width to height of the pictures among which the one that costs most is looked for: shapes of grids of tiles."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a picture is handed to the processor.

    Attributes:
        options: of the processor.
        tokens: what the picture takes then.
        copies: 2 shows it as one of several (``Family.counts_images``).
        size: (width, height) to which it is scaled before; None: as it is.
    """

    options: Options
    tokens: int
    copies: int = 1
    size: tuple[int, int] | None = None


class ImageSizing:
    """Shared part: takes the first candidate that keeps to the bound. Families say what their candidates are.

    Args:
        processor: the checkpoint's.
    """

    family: ClassVar[str]
    splits: ClassVar[bool] = True

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._images = processor.image_processor
        # What the processor gives its image processor when the caller says nothing (InternVL: crop_to_patches).
        self._defaults: Options = dict(getattr(type(processor), "images_kwargs", None) or {})
        self._known = frozenset(getattr(self._images.valid_kwargs, "__annotations__", {}))
        self._most: dict[int, int] = {}

    @property
    def limits(self) -> SizeLimits:
        return SizeLimits(self.least, self.splits, self.family)

    @property
    def least(self) -> int:
        """Fewest tokens that a picture can take, whatever its size."""
        raise NotImplementedError

    def fit(self, width: int, height: int, rule: SizeRule, copies: int = 1) -> Fit:
        """Options with which a picture of ``width`` x ``height`` keeps to the rule; as asked for where that does.

        Raises:
            InvalidRequestError: nothing does, or an option isn't this processor's; with the numbers.
        """
        unknown = sorted(set(rule.options) - self._known)
        if unknown:
            raise InvalidRequestError(
                f"the model's processor (family {self.family}) doesn't know {', '.join(unknown)}",
                param="mm_processor_kwargs",
            )
        options = {**self._split_options(rule.splitting), **rule.options}
        copies = self._copies(rule.splitting, copies)
        for candidate in self._candidates(width, height, options, copies, rule.max_tokens):
            if rule.max_tokens is None or candidate.tokens <= rule.max_tokens:
                return candidate
        raise InvalidRequestError(
            f"a picture of {width}x{height} takes {candidate.tokens} tokens at least with this model (family "
            f"{self.family}) and {dict(rule.options)}; allowed are {rule.max_tokens} (max_image_tokens)",
            param="mm_processor_kwargs" if rule.options else "messages",
        )

    def largest(self, max_pixels: int, rule: SizeRule) -> tuple[int, int]:
        """(width, height) of a picture that costs the encoder as much as any of ``max_pixels`` under the rule."""
        sizes = self._large_sizes(max_pixels)
        both = [size for width, height in sizes for size in ((width, height), (height, width)) if min(size) > 1]
        return max(both, key=lambda size: self.work(size[0], size[1], self.fit(size[0], size[1], rule)))

    def _large_sizes(self, max_pixels: int) -> list[tuple[int, int]]:
        """(width, height) of pictures of which one costs the most, lying or standing."""
        return [(int(math.sqrt(max_pixels * ratio)), int(math.sqrt(max_pixels / ratio))) for ratio in ASPECTS]

    def work(self, width: int, height: int, fit: Fit) -> int:
        """What encoding the picture costs, to compare pictures of one family."""
        return fit.tokens

    def most(self, max_pixels: int) -> int:
        """Tokens of the largest picture with the checkpoint's own options, cut into tiles where the family does so."""
        if max_pixels not in self._most:
            rule = SizeRule(splitting=True if self.splits else None)
            self._most[max_pixels] = self.fit(*self.largest(max_pixels, rule), rule).tokens
        return self._most[max_pixels]

    def _option(self, options: Options, name: str) -> Any:
        if name in options:
            return options[name]
        return self._defaults.get(name, getattr(self._images, name))

    def _unless_own(self, name: str, value: bool | None) -> Options:
        """Empty where the processor does so anyway: the same features, so the same identity."""
        return {} if value is None or value == self._option({}, name) else {name: value}

    def _split_options(self, splitting: bool | None) -> Options:
        return {}

    def _copies(self, splitting: bool | None, copies: int) -> int:
        return copies

    def _candidates(self, width: int, height: int, options: Options, copies: int, bound: int | None) -> Iterator[Fit]:
        """As asked first, then ever fewer tokens; at least one."""
        raise NotImplementedError


class Idefics3Sizing(ImageSizing):
    """Scaled (up, too) to ``size.longest_edge``, sides rounded up to whole tiles; beside several a whole view."""

    family = "idefics3"

    @property
    def least(self) -> int:
        return int(self._processor.image_seq_len)

    def _split_options(self, splitting: bool | None) -> Options:
        return self._unless_own("do_image_splitting", splitting)

    def _candidates(self, width: int, height: int, options: Options, copies: int, bound: int | None) -> Iterator[Fit]:
        yield Fit(options, self._tokens(width, height, options), copies)
        if not self._option(options, "do_image_splitting"):
            return
        tile, edge = self._tile(options), self._option(options, "size")["longest_edge"]
        for tiles in range((edge or LARGEST_SIDE) // tile, 1, -1):
            smaller = {**options, "size": {"longest_edge": tiles * tile}}
            yield Fit(smaller, self._tokens(width, height, smaller), copies)
        yield Fit({**options, "do_image_splitting": False}, self.least, copies)

    def _tile(self, options: Options) -> int:
        return int(self._option(options, "max_image_size")["longest_edge"])

    def _tokens(self, width: int, height: int, options: Options) -> int:
        if not self._option(options, "do_image_splitting"):
            return self.least
        tile, size = self._tile(options), self._option(options, "size")
        if size["longest_edge"]:
            width, height = _scaled(width, height, size["longest_edge"])
        else:
            width, height = size["width"], size["height"]
        aspect = width / height
        if width >= height:
            columns = math.ceil(width / tile)
            rows = math.ceil(int(columns * tile / aspect) / tile)
        else:
            rows = math.ceil(height / tile)
            columns = math.ceil(int(rows * tile * aspect) / tile)
        tiles = rows * columns
        return self.least * (tiles + 1 if tiles > 1 else 1)


def _scaled(width: int, height: int, edge: int) -> tuple[int, int]:
    """``get_resize_output_image_size`` of Idefics3's image processor, for numbers instead of a picture."""
    aspect = width / height
    if width >= height:
        width, height = edge, int(edge / aspect)
        height += height % 2
    else:
        width, height = int(edge * aspect), edge
        width += width % 2
    width, height = max(width, 1), max(height, 1)
    aspect = width / height
    if width >= height and width > LARGEST_SIDE:
        width, height = LARGEST_SIDE, int(LARGEST_SIDE / aspect)
    elif height > width and height > LARGEST_SIDE:
        width, height = int(LARGEST_SIDE * aspect), LARGEST_SIDE
    return max(width, 1), max(height, 1)


class QwenVLSizing(ImageSizing):
    """Native resolution between two areas; there are no tiles to split into."""

    family = "qwen_vl"
    splits = False

    @property
    def least(self) -> int:
        return 1

    def _candidates(self, width: int, height: int, options: Options, copies: int, bound: int | None) -> Iterator[Fit]:
        size = dict(self._option(options, "size"))
        least = options.get("min_pixels") or size["shortest_edge"]
        most = options.get("max_pixels") or size["longest_edge"]
        if least > most:
            raise InvalidRequestError(
                f"min_pixels is {least}, more than max_pixels {most}", param="mm_processor_kwargs"
            )
        rest = {name: value for name, value in options.items() if name not in ("size", "min_pixels", "max_pixels")}

        def at(area: int, floor: int = 1) -> Fit:
            sides = {"shortest_edge": max(floor, min(least, area)), "longest_edge": min(most, area)}
            return Fit({**rest, "size": sides}, self._tokens(width, height, sides), copies)

        asked = at(most)
        if {"size", "min_pixels", "max_pixels"}.isdisjoint(options):
            asked = replace(asked, options=options)
        yield asked
        if bound is None or bound < 1:
            return
        # A caller's own least size is kept; the checkpoint's is lowered with the most.
        floor = least if {"size", "min_pixels"} & set(options) else 1
        # More area never takes fewer tokens but for rounding; thin pictures take more than their area says.
        low, high = floor, max(floor, bound * self._factor**2)
        if at(high, floor).tokens <= bound:
            low = high
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (middle, high) if at(middle, floor).tokens <= bound else (low, middle)
        yield at(low, floor)

    def largest(self, max_pixels: int, rule: SizeRule) -> tuple[int, int]:
        # Sides are rounded, so that a thin picture can take more patches than its area has.
        side, factor = math.sqrt(max_pixels), self._factor
        rounded = (side / factor) ** 2 + (math.sqrt(MAX_ASPECT) + 1) * side / factor / 2 + 1
        bound = min(rule.max_tokens or math.inf, self._option({}, "size")["longest_edge"] // factor**2, int(rounded))
        bound = max(1, int(bound))
        rows = range(max(1, math.ceil(math.sqrt(bound / MAX_ASPECT))), math.isqrt(bound) + 1)
        most = max(rows, key=lambda n: (bound // n * n, n))
        return bound // most * factor, most * factor

    @property
    def _factor(self) -> int:
        return int(self._images.patch_size * self._images.merge_size)

    def _tokens(self, width: int, height: int, size: Mapping[str, int]) -> int:
        edges = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
        return int(self._images.get_number_of_image_patches(height, width, edges) // self._images.merge_size**2)


class InternVLSizing(ImageSizing):
    """The grid of at most ``max_patches`` tiles whose shape is closest, and a whole view beside more than one."""

    family = "internvl"

    @property
    def least(self) -> int:
        return int(self._processor.image_seq_length)

    def _split_options(self, splitting: bool | None) -> Options:
        return self._unless_own("crop_to_patches", splitting)

    def _candidates(self, width: int, height: int, options: Options, copies: int, bound: int | None) -> Iterator[Fit]:
        yield Fit(options, self._tokens(width, height, options), copies)
        if not self._option(options, "crop_to_patches"):
            return
        fewest = self._option(options, "min_patches")
        for patches in range(self._option(options, "max_patches") - 1, 1, -1):
            smaller = {**options, "max_patches": patches, "min_patches": min(fewest, patches)}
            yield Fit(smaller, self._tokens(width, height, smaller), copies)
        yield Fit({**options, "crop_to_patches": False}, self.least, copies)

    def _tokens(self, width: int, height: int, options: Options) -> int:
        merged = {**self._defaults, **options}
        return self.least * int(self._images.get_number_of_image_patches(height, width, merged))


class LlavaOnevisionSizing(ImageSizing):
    """A whole view and the unpadded tiles of the grid that fits best; one of several pictures is a whole view only."""

    family = "llava_onevision"

    @property
    def least(self) -> int:
        # A newline follows the whole view; the "default" strategy leaves the class token out.
        strategy = self._processor.vision_feature_select_strategy
        return int(self._processor.num_image_tokens) + (0 if strategy == "default" else 1)

    def _copies(self, splitting: bool | None, copies: int) -> int:
        return max(copies, 2) if splitting is False else copies

    def _candidates(self, width: int, height: int, options: Options, copies: int, bound: int | None) -> Iterator[Fit]:
        if "image_grid_pinpoints" in options:
            raise InvalidRequestError(
                "image_grid_pinpoints can't be changed: the model's encoder counts tokens by the checkpoint's own",
                param="mm_processor_kwargs",
            )
        if copies > 1:
            yield Fit(options, self.least, copies)
            return
        yield Fit(options, self._tokens(width, height))
        scales = {min(columns / width, rows / height) for rows, columns in self._images.image_grid_pinpoints}
        for scale in sorted((scale for scale in scales if scale < 1), reverse=True):
            smaller = max(1, int(width * scale)), max(1, int(height * scale))
            yield Fit(options, self._tokens(*smaller), size=smaller)
        yield Fit(options, self.least, copies=2)

    def _tokens(self, width: int, height: int) -> int:
        size = self._images.size
        count = self._processor._get_number_of_features(height, width, size["height"], size["width"])
        return int(count) - (1 if self._processor.vision_feature_select_strategy == "default" else 0)

    def _large_sizes(self, max_pixels: int) -> list[tuple[int, int]]:
        # Thin pictures can have a large grid with few tokens, most of it padding.
        sides = {side for grid in self._images.image_grid_pinpoints for side in grid}
        thin = [(side, int(side / ratio)) for side in sides for ratio in (*ASPECTS, 24, 50, MAX_ASPECT)]
        return super()._large_sizes(max_pixels) + [size for size in thin if size[0] * size[1] <= max_pixels]

    def work(self, width: int, height: int, fit: Fit) -> int:
        """Tiles: large grids are scaled down to few tokens only after they were encoded."""
        if fit.copies > 1:
            return 1
        width, height = fit.size or (width, height)
        rows, columns = select_best_resolution((height, width), self._images.image_grid_pinpoints)
        size = self._images.size
        return 1 + int(rows // size["height"]) * int(columns // size["width"])


class NanoSizing(ImageSizing):
    """One size, one number of tokens."""

    family = "watchword_nano"
    splits = False

    @property
    def least(self) -> int:
        return int(self._processor.image_seq_len)

    def _candidates(self, width: int, height: int, options: Options, copies: int, bound: int | None) -> Iterator[Fit]:
        # The options are other families' (NanoImageOptions): whatever they ask for, there is this one size.
        yield Fit({}, self.least, copies)


SIZINGS: Mapping[str, type[ImageSizing]] = {
    sizing.family: sizing for sizing in (Idefics3Sizing, QwenVLSizing, InternVLSizing, LlavaOnevisionSizing, NanoSizing)
}
"""By the name of the family (``Family.name``)."""
