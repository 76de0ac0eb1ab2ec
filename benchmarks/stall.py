"""Do chats stutter while cameras send pictures? Chat streams against any OpenAI endpoint, alone, then beside cameras.

    python -m benchmarks.stall --base-url http://127.0.0.1:8000/v1 --model NAME --rate 0.1 --out results/stall.json

Each chat asks for ``--tokens`` tokens again and again (one token a chunk). Camera prompts come at fixed times, every
picture another, so that no cache helps; person crops of 191x508, 141x494 and 406x674 pixels by default. Written are
the gaps between a stream's tokens (p50, p90, p99, max), tokens per second, and of the cameras time to first token,
whole time, and how many finished within the drain; and a picture of the gaps over time, both phases.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from openai import AsyncOpenAI
from PIL import Image

SIZES = ((191, 508), (141, 494), (406, 674))


@dataclass
class Phase:
    """What one phase saw. ``gaps``: (seconds since the phase began, gap) of every token but each answer's first."""

    name: str
    seconds: float
    gaps: list[tuple[float, float]] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    whole_times: list[float] = field(default_factory=list)
    sent: int = 0
    unfinished: int = 0

    def summary(self) -> dict[str, Any]:
        gaps = sorted(gap for _, gap in self.gaps)
        return {
            "phase": self.name,
            "gap_ms": {
                name: _ms(gaps, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1))
            },
            "tokens_per_s": round(len(gaps) / self.seconds, 1),
            "cameras": {
                "sent": self.sent,
                "unfinished": self.unfinished,
                "ttft_s_p50": _at(sorted(self.first_tokens), 0.5),
                "e2e_s_p50": _at(sorted(self.whole_times), 0.5),
            },
        }


@dataclass(frozen=True)
class Load:
    """Who asks what. ``rate``: camera prompts a second; ``drain``: seconds they may take after the phase."""

    client: AsyncOpenAI
    model: str
    streams: int
    tokens: int
    rate: float
    drain: float
    camera_body: dict[str, Any]

    async def run(self, phase: Phase, cameras: bool) -> Phase:
        """One phase; chats go on through the drain, but only what happens before it counts."""
        began = time.monotonic()
        chats = [asyncio.create_task(self._chat(i, phase, began)) for i in range(self.streams)]
        prompts: list[asyncio.Task[None]] = []
        while (now := time.monotonic() - began) < phase.seconds:
            if cameras and now >= phase.sent / self.rate:
                prompts.append(asyncio.create_task(self._camera(phase.sent, phase)))
                phase.sent += 1
            await asyncio.sleep(0.01)
        if prompts:
            _, late = await asyncio.wait(prompts, timeout=self.drain)
            phase.unfinished = len(late)
            for task in late:
                task.cancel()
        for task in chats:
            task.cancel()
        await asyncio.gather(*chats, *prompts, return_exceptions=True)
        return phase

    async def _chat(self, number: int, phase: Phase, began: float) -> None:
        turn = 0
        while True:
            turn += 1
            question = f"Tell me a long story, number {number}, part {turn}."
            last: float | None = None
            async for _ in await self._stream(question, self.tokens, {"ignore_eos": True}):
                now = time.monotonic()
                if last is not None and now - began < phase.seconds:
                    phase.gaps.append((now - began, now - last))
                last = now

    async def _camera(self, number: int, phase: Phase) -> None:
        content = [
            {"type": "image_url", "image_url": {"url": _picture(number)}},
            {"type": "text", "text": "Describe the person in this picture."},
        ]
        begun = time.monotonic()
        first = None
        async for _ in await self._stream(content, 40, {"ignore_eos": True, **self.camera_body}):
            first = first or time.monotonic() - begun
        if first is not None:
            phase.first_tokens.append(first)
            phase.whole_times.append(time.monotonic() - begun)

    async def _stream(self, content: Any, tokens: int, body: dict[str, Any]) -> Any:
        """Chunks with text of one greedy answer."""
        chunks = await self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": content}],
            max_tokens=tokens,
            temperature=0.0,
            stream=True,
            extra_body=body,
        )
        return (chunk async for chunk in chunks if chunk.choices and chunk.choices[0].delta.content)


def _picture(number: int) -> str:
    """A data URL of a JPEG that nobody has seen before."""
    rng = np.random.default_rng(number)
    width, height = SIZES[number % len(SIZES)]
    coarse = Image.fromarray(rng.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8))
    buffer = io.BytesIO()
    coarse.resize((width, height)).save(buffer, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _at(ordered: list[float], share: float) -> float | None:
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 3) if ordered else None


def _ms(ordered: list[float], share: float) -> float | None:
    value = _at(ordered, share)
    return None if value is None else round(1000 * value, 1)


def draw(phases: list[Phase], out: Path) -> None:
    """Gap over time, a panel a phase, one scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(phases), figsize=(12, 4), sharey=True, layout="constrained", squeeze=False)
    for panel, phase in zip(panels[0], phases, strict=True):
        panel.semilogy([at for at, _ in phase.gaps], [1000 * gap for _, gap in phase.gaps], ".", markersize=2)
        panel.set_title(phase.name)
        panel.set_xlabel("seconds")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("milliseconds between two tokens")
    figure.savefig(out, dpi=120)


async def measure(options: argparse.Namespace) -> list[Phase]:
    """Warm-up, the chats alone, then beside the cameras."""
    client = AsyncOpenAI(base_url=options.base_url, api_key=options.api_key, timeout=600, max_retries=0)
    body: dict[str, Any] = {"priority": 1} if options.priority else {}
    if options.one_tile:
        body["mm_processor_kwargs"] = {"do_image_splitting": False}
    load = Load(client, options.model, options.streams, options.tokens, options.rate, options.drain, body)
    await load.run(Phase("warm-up", 5), cameras=False)
    alone = await load.run(Phase("alone", options.seconds), cameras=False)
    beside = await load.run(Phase("with cameras", options.seconds), cameras=True)
    await client.close()
    return [alone, beside]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rate", type=float, default=0.1, help="camera prompts a second")
    parser.add_argument("--drain", type=float, default=60.0)
    parser.add_argument("--one-tile", action="store_true", help="mm_processor_kwargs: no image splitting")
    parser.add_argument("--priority", action="store_true", help="send cameras as background (priority: 1)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/stall.json"))
    options = parser.parse_args()
    phases = asyncio.run(measure(options))
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items() if k != "api_key"}
    summaries = [phase.summary() for phase in phases]
    options.out.write_text(json.dumps({"settings": settings, "phases": summaries}, indent=1) + "\n")
    draw(phases, options.out.with_suffix(".png"))
    print(json.dumps(summaries, indent=1))


if __name__ == "__main__":
    main()
