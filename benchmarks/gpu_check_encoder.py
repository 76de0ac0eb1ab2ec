"""Section "encoder": a random SmolVLM tower in slices, against one piece; what slicing and a side stream cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

from benchmarks.gpu_check import Section
from vlm_engine import attention
from vlm_engine.calibration import measure_encoder
from vlm_engine.encoder_cache import ImageFeatures, join_features
from vlm_engine.encoder_cost import EncoderCost
from vlm_engine.encoder_lane import CudaLane, Lane, make_lane
from vlm_engine.encoder_task import EncoderItem, SlicedEncoder
from vlm_engine.families.idefics3 import Idefics3Family

Inputs = dict[str, torch.Tensor]
TILES = 13
"""Of a person crop with splitting on."""
TEXT = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 64,
}


class Tower:
    """A tower with its encoder; what :func:`measure_encoder` asks of a runner.

    Args:
        rows: of a group inside a layer.
        slicing: False encodes in one piece.
    """

    def __init__(
        self, vision: dict[str, int], dtype: torch.dtype, device: torch.device, rows: int, slicing: bool
    ) -> None:
        torch.manual_seed(0)
        config = SmolVLMConfig(vision_config=vision, text_config=TEXT, scale_factor=4, image_token_id=63)
        model = SmolVLMForConditionalGeneration._from_config(config).to(dtype).to(device).eval()
        attention.install(model, sub_configs=True)
        self.device, self.dtype, self.side = device, dtype, vision["image_size"]
        self.encoder = SlicedEncoder(Idefics3Family(model), model, vision["patch_size"], rows, slicing)

    def picture(self, tiles: int) -> Inputs:
        """Processor outputs of a picture of so many tiles."""
        pixels = torch.randn(1, tiles, 3, self.side, self.side, generator=torch.Generator().manual_seed(tiles))
        return {"pixel_values": pixels.to(self.dtype).to(self.device)}

    def encoder_items(self, inputs: Inputs) -> list[EncoderItem]:
        """As :class:`vlm_engine.runner.ModelRunner`."""
        return self.encoder.items(inputs)

    def start_encode(self, items: Sequence[EncoderItem]) -> Any:
        """As :class:`vlm_engine.runner.ModelRunner`."""
        return self.encoder.start(items)

    def encode(
        self, lane: Lane, inputs: Inputs, pack: int, cost: EncoderCost | None = None
    ) -> tuple[ImageFeatures, float]:
        """All items in packs of so many; features, and the predicted seconds of all slices."""
        items = self.encoder.items(inputs)
        parts: list[ImageFeatures] = []
        predicted = 0.0
        for start in range(0, len(items), pack):
            task = self.encoder.start(items[start : start + pack])
            features = None
            while features is None:
                predicted += cost.predict(task.next) if cost else 0.0
                features = lane.run(task.next, task.advance)
            parts += features
        lane.join()
        return join_features(parts), predicted


def run(section: Section) -> None:
    """Exactness in float32, then times in bfloat16."""
    device = torch.device(section.device)
    vision = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    vision |= {"image_size": 512, "patch_size": 16}
    if not section.on_gpu:
        vision |= {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        vision["image_size"] = 128
    with torch.inference_mode():
        whole = Tower(vision, torch.float32, device, 4096, slicing=False)
        sliced = Tower(vision, torch.float32, device, 23 if not section.on_gpu else 300, slicing=True)
        if not hasattr(sliced.encoder, "cutter"):
            section.skipped.append("slices inside a picture: the package greenlet is not installed")
        _compare(section, whole, sliced, make_lane(device, side_stream=False))
        if section.has_time("times", 8.0):
            dtype = torch.bfloat16 if section.on_gpu else torch.float32
            _time(section, Tower(vision, dtype, device, 4096, False), Tower(vision, dtype, device, 4096, True))


def _compare(section: Section, whole: Tower, sliced: Tower, lane: Lane) -> None:
    picture = whole.picture(3)
    expected, _ = whole.encode(lane, picture, 3)
    section.results["largest_feature"] = float(expected.rows.abs().max())
    for pack in (1, 3):
        features, _ = sliced.encode(lane, picture, pack)
        worst = float((features.rows - expected.rows).abs().max())
        section.results[f"largest_difference_packs_of_{pack}"] = worst
        if not worst < 1e-4:
            section.failures.append(f"encoder: packs of {pack} differ by {worst} from one piece")


def _time(section: Section, whole: Tower, sliced: Tower) -> None:
    device = whole.device
    lane = make_lane(device, side_stream=False)
    cost = measure_encoder(sliced, lane, [sliced.picture(1)] * 2)  # type: ignore[arg-type]
    tiles = TILES if section.on_gpu else 2
    picture = whole.picture(tiles)
    results: dict[str, Any] = {"tiles": tiles}
    results["one_piece_ms"] = _median(device, lambda: whole.encode(lane, picture, tiles))
    results["packs_of_1_ms"] = _median(device, lambda: sliced.encode(lane, picture, 1))
    results["packs_of_16_ms"] = _median(device, lambda: sliced.encode(lane, picture, 16))
    results["predicted_packs_of_1_ms"] = round(1000 * sliced.encode(lane, picture, 1, cost)[1], 3)
    if section.on_gpu and section.has_time("side stream", 4.0):
        results["decoder_kernels_ms"] = _beside(device, sliced, picture)
    section.results["times"] = results


def _beside(device: torch.device, tower: Tower, picture: Inputs) -> dict[str, float]:
    """Small products on the main stream (a stand-in for decode steps): alone, with slices before them, beside them."""
    left = torch.randn(8, 4096, device=device, dtype=tower.dtype)
    right = torch.randn(4096, 4096, device=device, dtype=tower.dtype)

    def decode() -> None:
        for _ in range(60):
            torch.mm(left, right)

    def with_slices(lane: Lane) -> float:
        torch.cuda.synchronize(device)
        task = tower.encoder.start(tower.encoder.items(picture))
        for _ in range(4):
            lane.run(task.next, task.advance)
        started = time.perf_counter()
        decode()
        torch.cuda.current_stream(device).synchronize()
        seconds = time.perf_counter() - started
        task.abort()
        torch.cuda.synchronize(device)
        return seconds

    same, side = CudaLane(device, side_stream=False), CudaLane(device, side_stream=True)
    return {
        "alone": _median(device, decode),
        "same_stream": round(1000 * statistics.median(with_slices(same) for _ in range(7)), 3),
        "side_stream": round(1000 * statistics.median(with_slices(side) for _ in range(7)), 3),
    }


def _median(device: torch.device, work: Any) -> float:
    times: list[float] = []
    for _ in range(6):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return round(1000 * statistics.median(times[1:]), 3)
