"""What goes into the engine: chat messages with pictures, and what preprocessing makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    import torch


class PriorityClass(IntEnum):
    """INTERACTIVE (a person is reading) goes before BACKGROUND (a camera); lower goes first."""

    INTERACTIVE = 0
    BACKGROUND = 1


class TextPart(TypedDict):
    """``{"type": "text", "text": "..."}``; special tokens written in it are encoded as plain text."""

    type: str
    text: str


ImageDetail = Literal["auto", "low", "high", "original"]
"""How closely a picture is looked at, in OpenAI's words; ``SizeLimits.rule`` says what they mean here."""


class ImagePart(TypedDict):
    """``{"type": "image", "image": ...}``: encoded bytes (JPEG, PNG, WebP, ...) or a ``PIL.Image.Image``."""

    type: str
    image: Any
    detail: NotRequired[ImageDetail]


class Message(TypedDict, total=False):
    """One chat message: ``role``, ``content`` (a string, or parts in their order), tool fields for the template."""

    role: str
    content: str | Sequence[TextPart | ImagePart]
    name: str
    tool_calls: Sequence[Mapping[str, Any]]
    tool_call_id: str
    reasoning_content: str


@dataclass(frozen=True, slots=True, eq=False)
class ImageInput:
    """A picture ready to be encoded, and where its features go.

    Attributes:
        content_hash: 256 bits over decoded pixels, size, mode and every processor option.
        start: index in the prompt of the first token that the picture's block holds.
        token_indices: indices in the prompt that take one feature row each, ascending.
        inputs: tensors for the family's encoder (pixel values, grids), as the checkpoint's processor made them.
    """

    content_hash: bytes
    start: int
    token_indices: tuple[int, ...]
    inputs: Mapping[str, torch.Tensor]

    @property
    def num_tokens(self) -> int:
        """How many feature rows the picture takes."""
        return len(self.token_indices)

    @property
    def end(self) -> int:
        """One past the last token that takes a feature row."""
        return self.token_indices[-1] + 1


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPrompt:
    """A prompt as the engine computes it.

    Attributes:
        token_ids: the whole prompt, placeholders expanded.
        images: in their order in the prompt.
        positions: int64 ``[p, tokens]`` rotary positions (p = 1, or 3 for M-RoPE).
        position_delta: what to add to a token's index to get its position after the prompt (M-RoPE; else 0).
    """

    token_ids: tuple[int, ...]
    images: tuple[ImageInput, ...] = ()
    positions: torch.Tensor | None = None
    position_delta: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
