"""How many tokens a picture may take: by class of request, by ``detail``, and by what the caller asks.

Tokens are those that take a feature row. Options that a caller gives to the processor replace what class and detail say
about splitting; bounds hold whatever was given, the least of them. :mod:`vlm_engine.image_fit` makes pictures keep to
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlm_engine.errors import ConfigError, InvalidRequestError
from vlm_engine.prompt import ImageDetail, PriorityClass

if TYPE_CHECKING:
    from vlm_engine.config import EngineConfig

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SizeRule:
    """What one picture may take.

    Attributes:
        max_tokens: most tokens; None: what the checkpoint's processor takes of its largest picture.
        splitting: whether a large picture is cut into tiles; None: as the checkpoint does.
        options: of the processor, from the caller; they go before ``splitting``.
    """

    max_tokens: int | None = None
    splitting: bool | None = None
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """What a checkpoint's processor can do.

    Attributes:
        least: fewest tokens of a picture.
        splits: whether it cuts pictures into tiles.
        family: whose processor it is.
    """

    least: int
    splits: bool
    family: str

    def check(self, config: EngineConfig) -> None:
        """Raises :class:`ConfigError` for a class's bound or splitting that the family can't do."""
        for kind in PriorityClass:
            name, bound, splitting = kind.name.lower(), *_of_class(config, kind)
            if bound is not None and bound < self.least:
                raise ConfigError(
                    f"max_image_tokens_{name} is {bound}, a picture takes {self.least} tokens at least with this "
                    f"model (family {self.family})"
                )
            if splitting and not self.splits:
                raise ConfigError(
                    f"image_splitting_{name} is true, but models of family {self.family} don't cut pictures into "
                    f"tiles; max_image_tokens_{name} bounds what they take"
                )

    def rule(
        self,
        config: EngineConfig,
        kind: PriorityClass,
        detail: ImageDetail = "auto",
        options: Options | None = None,
        max_tokens: int | None = None,
    ) -> SizeRule:
        """What a picture of a request may take: the least of what class, detail and caller allow.

        Args:
            kind: of the request; bounds and splitting are configured by class.
            detail: "low": a whole view, no tiles; "high", "original": tiles even where the class has none; "auto": as
                the class has it.
            options: of the processor, from the caller.
            max_tokens: the caller's own bound.

        Raises:
            InvalidRequestError: ``max_tokens`` is less than a picture can take.
        """
        bound, splitting = _of_class(config, kind)
        bounds = [number for number in (bound, max_tokens) if number is not None]
        if max_tokens is not None and max_tokens < self.least:
            raise InvalidRequestError(
                f"max_image_tokens is {max_tokens}, a picture takes {self.least} tokens at least with this model "
                f"(family {self.family})",
                param="max_image_tokens",
            )
        if detail == "low":
            bounds.append(max(self.least, config.low_detail_image_tokens))
            splitting = False
        elif detail in ("high", "original"):
            splitting = True if self.splits else None
        return SizeRule(min(bounds, default=None), splitting, options or {})

    def loosest(self, config: EngineConfig) -> SizeRule:
        """The rule under which no request's picture takes more: start-up profiling goes by it."""
        bounds = [_of_class(config, kind)[0] for kind in PriorityClass]
        known = [bound for bound in bounds if bound is not None]
        return SizeRule(max(known) if len(known) == len(bounds) else None, True if self.splits else None)


def _of_class(config: EngineConfig, kind: PriorityClass) -> tuple[int | None, bool | None]:
    if kind is PriorityClass.BACKGROUND:
        return config.max_image_tokens_background, config.image_splitting_background
    return config.max_image_tokens_interactive, config.image_splitting_interactive
