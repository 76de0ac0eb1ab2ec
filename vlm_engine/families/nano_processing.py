"""Pictures as the small describer takes them: one size, whatever they were."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoConfig, AutoTokenizer

from vlm_engine.families.nano_tower import as_pixels

HEIGHT, WIDTH = 192, 96
"""Pixels of what the tower sees: a standing person is about twice as high as wide."""
PADDING = 128


def letterbox(image: NDArray[np.uint8], *, nearest: bool = False) -> NDArray[np.uint8]:
    """The picture scaled into ``[HEIGHT, WIDTH]``, in the middle, its shape kept; what is left over is grey.

    Args:
        image: uint8 ``[h, w, 3]``, or ``[h, w]`` of labels.
        nearest: takes the nearest pixel and pads with 0, for labels.
    """
    height, width = image.shape[:2]
    scale = min(HEIGHT / height, WIDTH / width)
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    how = Image.Resampling.NEAREST if nearest else Image.Resampling.BILINEAR
    scaled = np.asarray(Image.fromarray(image).resize((columns, rows), how))
    out = np.full((HEIGHT, WIDTH, *image.shape[2:]), 0 if nearest else PADDING, np.uint8)
    top, left = (HEIGHT - rows) // 2, (WIDTH - columns) // 2
    out[top : top + rows, left : left + columns] = scaled
    return out


class NanoImageOptions(TypedDict, total=False):
    """What callers say to other families about a picture's size. It is taken and changes nothing: configurations made
    for those work with this one, too."""

    do_image_splitting: bool
    crop_to_patches: bool
    size: dict[str, int]
    min_pixels: int
    max_pixels: int
    min_patches: int
    max_patches: int


class NanoImageProcessor:
    """Pictures -> pixels, all of one size."""

    valid_kwargs = NanoImageOptions

    def __call__(self, images: Sequence[Image.Image]) -> torch.Tensor:
        """Float32 ``[n, 3, HEIGHT, WIDTH]`` from -1 to 1."""
        arrays = [letterbox(np.asarray(image.convert("RGB"))) for image in images]
        return as_pixels(torch.from_numpy(np.stack(arrays)))


class NanoProcessor:
    """Tokenizer and pictures in one, as the engine calls a checkpoint's processor.

    Args:
        tokenizer: the checkpoint's.
        image_tokens: how many tokens a picture is (``NanoConfig.image_tokens``).
    """

    image_token = "<image>"

    def __init__(self, tokenizer: Any, image_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.image_processor = NanoImageProcessor()
        self.image_seq_len = image_tokens
        self.image_token_id = int(tokenizer.convert_tokens_to_ids(self.image_token))
        self.chat_template: str | None = tokenizer.chat_template

    @classmethod
    def from_pretrained(cls, name: str, **options: Any) -> NanoProcessor:
        """Reads a checkpoint's folder. Raises OSError."""
        kept = {key: value for key, value in options.items() if key in ("revision", "cache_dir", "local_files_only")}
        config = AutoConfig.from_pretrained(name, **kept)
        return cls(AutoTokenizer.from_pretrained(name, **kept), config.image_tokens)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the tokenizer, and the file by which transformers finds this class."""
        self.tokenizer.save_pretrained(folder)
        (Path(folder) / "processor_config.json").write_text(json.dumps({"processor_class": type(self).__name__}))

    def apply_chat_template(self, messages: Sequence[Any], **options: Any) -> Any:
        """The tokenizer's."""
        return self.tokenizer.apply_chat_template(messages, **options)

    def __call__(
        self,
        text: Sequence[str],
        images: Sequence[Any] | None = None,
        return_tensors: str = "pt",
        add_special_tokens: bool = False,
        **options: Any,
    ) -> dict[str, torch.Tensor]:
        """Token ids with the placeholders of each picture, and the pixels.

        Args:
            text: one text that holds :attr:`image_token` once for each picture.
            images: pictures, or one list of them.

        Raises:
            ValueError: an option; there are none.
        """
        if options:
            raise ValueError(f"{', '.join(sorted(options))}: this processor has no options")
        pictures = list(images or ())
        if pictures and isinstance(pictures[0], list | tuple):
            pictures = list(pictures[0])
        whole = text[0].replace(self.image_token, self.image_token * self.image_seq_len)
        ids = torch.tensor([self.tokenizer.encode(whole, add_special_tokens=add_special_tokens)])
        return {"input_ids": ids, "pixel_values": self.image_processor(pictures)} if pictures else {"input_ids": ids}
