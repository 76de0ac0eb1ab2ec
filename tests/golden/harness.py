"""Runs the engine's core on a loaded checkpoint, and transformers.generate on the same weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vlm_engine import EngineConfig, SamplingParams, preprocess
from vlm_engine.core import EngineCore
from vlm_engine.encoder_cache import EncoderCache
from vlm_engine.image_size import SizeRule
from vlm_engine.intake import Intake
from vlm_engine.loader import Checkpoint, load
from vlm_engine.memory import count_blocks
from vlm_engine.metrics import EngineMetrics
from vlm_engine.outputs import RequestOutput
from vlm_engine.pixel_scale import PixelScale
from vlm_engine.prompt import PreparedPrompt, PriorityClass
from vlm_engine.runner import ModelRunner

TIE = 1e-4
"""Where the reference's two best logits are closer than this, either token is right."""


@dataclass
class Comparisons:
    """What :func:`assert_same` compared: tokens, and outputs that parted from the reference at a tie."""

    tokens: int = 0
    ties: int = 0


COMPARED = Comparisons()


def picture(seed: int, width: int, height: int) -> Image.Image:
    """Patches of strong colours under noise: no two places look alike, so that features put elsewhere are noticed."""
    noise = np.random.default_rng(seed)
    patches = np.kron(noise.integers(0, 200, (-(-height // 12), -(-width // 12), 3)), np.ones((12, 12, 1), int))
    pixels = patches[:height, :width] + noise.integers(0, 55, (height, width, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def user(*parts: Any) -> list[dict[str, Any]]:
    """One user message; strings are text, pictures are pictures, in this order."""
    content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p} for p in parts]
    return [{"role": "user", "content": content}]


@dataclass
class Job:
    """One request for the core, and what came out."""

    prompt: PreparedPrompt
    params: SamplingParams
    request_id: str
    priority_class: PriorityClass = PriorityClass.INTERACTIVE
    outputs: list[RequestOutput] = field(default_factory=list)

    def tokens(self, index: int = 0) -> list[int]:
        return [token for o in self.outputs if o.index == index for token in o.token_ids]

    def text(self, index: int = 0) -> str:
        return "".join(o.text for o in self.outputs if o.index == index)

    @property
    def finish(self) -> RequestOutput:
        return self.outputs[-1]


class Harness:
    """A loaded checkpoint whose prompts are prepared in this process (no thread, no workers).

    Args:
        path: the checkpoint.
        dtype: float32 where tokens are compared with the reference's.
    """

    def __init__(self, path: Path, dtype: str = "float32") -> None:
        self.path = path
        self.config = EngineConfig(model=str(path), dtype=dtype, device="cpu", kv_cache_memory=1 << 24)
        self.checkpoint: Checkpoint = load(self.config)
        self.intake = Intake(self.config, self.checkpoint, 1 << 20)
        if self.checkpoint.family.takes_images:
            self.checkpoint.encoder.pixel_scale = PixelScale.of(self.checkpoint.processor)

    def prepare(self, messages: list[dict[str, Any]], **options: Any) -> PreparedPrompt:
        """As :meth:`VLMEngine.prepare` does it, the workers' code run in this process."""
        rendered = self.intake.chat.render(messages)
        return self.intake.assemble(rendered.pieces, self._process(rendered.images, options))

    def prepare_text(self, text: str, images: list[Image.Image]) -> PreparedPrompt:
        """Without a chat template: a text that holds the family's placeholders."""
        encode = self.checkpoint.tokenizer.encode
        pieces = [encode(t, add_special_tokens=False) for t in text.split(self.checkpoint.processor.image_token)]
        return self.intake.assemble(pieces, self._process(images, {}))

    def _process(self, images: Sequence[Any], options: dict[str, Any]) -> list[preprocess.ProcessedImage]:
        if not images:
            return []
        preprocess._use(self.checkpoint.processor, self.checkpoint.family.name, self.checkpoint.encoder.pixel_scale)
        rule = SizeRule(options=options)
        copies = 2 if len(images) > 1 and self.checkpoint.family.counts_images else 1
        packed = [preprocess._process(image, self.config.max_pixels, rule, copies) for image in images]
        return [
            preprocess.ProcessedImage(p.content_hash, p.token_ids, p.feature_indices, preprocess._unpack(p))
            for p in packed
        ]

    def core(self, **knobs: Any) -> EngineCore:
        """A fresh core over the loaded weights."""
        config = replace(self.config, **knobs)
        cache = EncoderCache(config.encoder_cache_memory)
        core = EngineCore(
            config,
            ModelRunner(self.checkpoint, config, cache, count_blocks(self.checkpoint, config, cache, None)),
            cache,
            EngineMetrics(),
        )
        self.intake = Intake(config, self.checkpoint, core.capacity_tokens)
        return core

    def add(self, core: EngineCore, job: Job) -> None:
        """Hands a job to the core as ``submit`` would."""
        requests = self.intake.requests(job.prompt, job.params, job.request_id, job.priority_class)
        core.check_fits(requests[0])
        core.add(self.intake.sequences(requests, job.outputs.append))

    def run(self, core: EngineCore, *jobs: Job, check: bool = True) -> None:
        """Steps until everything is finished, checking pages and features after every step."""
        for job in jobs:
            self.add(core, job)
        with torch.inference_mode():
            while core.has_work:
                assert core.step(), f"no progress: {core.last_plan}"
                if check:
                    core.check_integrity()

    def greedy(self, messages: list[dict[str, Any]], max_tokens: int = 12, name: str = "r", **options: Any) -> Job:
        """A greedy job that ignores end tokens, so that every run has the same length."""
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return Job(self.prepare(messages, **options), params, name)


class Reference:
    """transformers.generate on the same weights.

    Args:
        path: the checkpoint.
        attention: eager, the plainest; "sdpa" where its score matrices would not fit into memory.
        processor: loaded already, to save time and memory.
    """

    def __init__(self, path: Path, attention: str = "eager", processor: Any | None = None) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

        self.vision = "vision_config" in json.loads((path / "config.json").read_text())
        auto = AutoModelForImageTextToText if self.vision else AutoModelForCausalLM
        self.model = auto.from_pretrained(path, dtype=torch.float32, attn_implementation=attention).eval()
        self.processor = processor or (AutoProcessor if self.vision else AutoTokenizer).from_pretrained(path)
        self.prompt_ids: list[int] = []

    def generate(
        self, messages: list[dict[str, Any]], max_tokens: int, repetition_penalty: float = 1.0, **options: Any
    ) -> tuple[list[int], list[float]]:
        """Greedy tokens, and at each position the distance between the two best logits (before any penalty).

        Args:
            options: of the processor.
        """
        images = [p["image"] for m in messages for p in m["content"] if p["type"] == "image"]
        template = [
            {
                "role": m["role"],
                "content": [{"type": "image"} if p["type"] == "image" else p for p in m["content"]]
                if self.vision
                else "".join(p["text"] for p in m["content"]),
            }
            for m in messages
        ]
        text = self.processor.apply_chat_template(template, add_generation_prompt=True, tokenize=False)
        return self.complete(text, images, max_tokens, repetition_penalty, **options)

    def complete(
        self, text: str, images: list[Any], max_tokens: int, repetition_penalty: float = 1.0, **options: Any
    ) -> tuple[list[int], list[float]]:
        """As :meth:`generate`, for a text that holds the family's placeholders already."""
        if self.vision:
            inputs = self.processor(
                text=[text],
                images=[images] if images else None,
                return_tensors="pt",
                add_special_tokens=False,
                **options,
            )
        else:
            inputs = self.processor(text, return_tensors="pt", add_special_tokens=False)
        self.prompt_ids = inputs["input_ids"][0].tolist()
        with torch.inference_mode():
            out = self.model.generate(
                **inputs,
                do_sample=False,
                repetition_penalty=repetition_penalty,
                min_new_tokens=max_tokens,
                max_new_tokens=max_tokens,
                eos_token_id=None,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = [step[0].topk(2).values for step in out.logits]
        return out.sequences[0, len(self.prompt_ids) :].tolist(), [float(b[0] - b[1]) for b in best]


def assert_same(got: list[int], expected: tuple[list[int], list[float]], compared: Comparisons = COMPARED) -> None:
    """The same tokens; they may part only where the reference's two best logits are a tie, and such places are counted.

    What follows a tie is not comparable: the two go on from different texts.
    """
    tokens, gaps = expected
    for place, (ours, theirs) in enumerate(zip(got, tokens, strict=True)):
        compared.tokens += 1
        if ours != theirs:
            assert gaps[place] < TIE, f"token {place}: {ours} instead of {theirs}, logits {gaps[place]:.6f} apart"
            compared.ties += 1
            return
