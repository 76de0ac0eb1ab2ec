"""Sections "golden" and "steps": the engine's core over random Llama decoders made on the spot, driven by token ids."""

from __future__ import annotations

import random
import statistics
import time
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from benchmarks.gpu_check import Section
from vlm_engine import EngineConfig, PriorityClass, SamplingParams, attention
from vlm_engine.core import EngineCore
from vlm_engine.encoder_cache import EncoderCache
from vlm_engine.encoder_task import SlicedEncoder
from vlm_engine.families.text import TextFamily
from vlm_engine.loader import Checkpoint
from vlm_engine.metrics import EngineMetrics
from vlm_engine.outputs import RequestOutput
from vlm_engine.request import Request
from vlm_engine.runner import ModelRunner
from vlm_engine.sequence import OutputSequence

TIE = 1e-4
"""Where the reference's two best logits are closer than this, either token is right (DESIGN.md 3.6)."""
TINY = LlamaConfig(
    vocab_size=512,
    hidden_size=192,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=64,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
)
TWO_BILLION = LlamaConfig(
    vocab_size=151_936,
    hidden_size=2048,
    intermediate_size=6144,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=65_536,
    tie_word_embeddings=True,
)


class NoText:
    """A tokenizer for engines that are fed token ids and read for token ids."""

    def decode(self, ids: list[int], **options: object) -> str:
        """Nothing."""
        return ""


@dataclass
class Job:
    """A greedy request of so many tokens, and what came out."""

    name: str
    prompt: list[int]
    max_tokens: int
    outputs: list[RequestOutput] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """Generated so far."""
        return [token for output in self.outputs for token in output.token_ids]


def checkpoint_of(model: LlamaForCausalLM, dtype: torch.dtype, device: torch.device) -> Checkpoint:
    """A model as ``vlm_engine.loader`` would have loaded it."""
    attention.install(model, sub_configs=False)
    family = TextFamily(model)
    return Checkpoint(
        name="random",
        config=model.config,
        family=family,
        encoder=SlicedEncoder(family, model, patch_size=1, rows=4096),
        tokenizer=NoText(),
        processor=None,
        generation=GenerationConfig(),
        dtype=dtype,
        device=device,
    )


def make_core(checkpoint: Checkpoint, num_blocks: int, **knobs: Any) -> EngineCore:
    """A core with so many KV pages."""
    config = EngineConfig(model="random", **knobs)
    cache = EncoderCache(config.encoder_cache_memory)
    return EngineCore(config, ModelRunner(checkpoint, config, cache, num_blocks), cache, EngineMetrics())


def add(core: EngineCore, job: Job, arrival: int) -> None:
    """Hands a job to the core."""
    request = Request(
        key=job.name,
        request_id=job.name,
        index=0,
        token_ids=list(job.prompt),
        num_prompt=len(job.prompt),
        params=SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True),
        priority_class=PriorityClass.INTERACTIVE,
        arrival=arrival,
        max_total=len(job.prompt) + job.max_tokens,
        block_size=core.config.block_size,
        arrival_time=time.monotonic(),
    )
    core.check_fits(request)
    core.add([OutputSequence.create(request, NoText(), frozenset(), 0, job.outputs.append)])


# Golden ---------------------------------------------------------------------------------------------------------------


def run_golden(section: Section) -> None:
    """Greedy float32 tokens of both backends equal plain recomputation with transformers, however the work is cut."""
    device = torch.device(section.device)
    torch.manual_seed(0)
    reference = LlamaForCausalLM._from_config(deepcopy(TINY), attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if parameter.ndim == 2 and ".layers." in name:
                parameter.mul_(6.0)  # Otherwise a tiny model repeats its last token, whatever it saw.
    reference = reference.to(device)
    model = LlamaForCausalLM(deepcopy(TINY)).eval().to(device)
    model.load_state_dict(reference.state_dict())
    checkpoint = checkpoint_of(model, torch.float32, device)
    rng = random.Random(0)
    lengths, count = ((5, 40, 130, 700), 16) if section.on_gpu else ((3, 20), 3)
    prompts = [[rng.randrange(512) for _ in range(length)] for length in lengths]
    expected = [generate(reference, prompt, count) for prompt in prompts]
    compared = []
    for backend in ("torch", "triton"):
        for chunk in (1, 7, 16, 64, 2048) if section.on_gpu else (7, 64):
            what = f"{backend}, chunks of {chunk}"
            if section.has_time(what):
                _compare(section, checkpoint, backend, chunk, prompts, expected)
                compared.append(what)
    section.results |= {"compared": compared, "prompts": lengths, "tokens": count}


def generate(model: LlamaForCausalLM, prompt: list[int], count: int) -> list[tuple[int, float]]:
    """Greedy tokens without any cache, each with the distance between the two best logits."""
    ids, chosen = list(prompt), []
    with torch.inference_mode():
        for _ in range(count):
            best = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0, -1].topk(2)
            chosen.append((int(best.indices[0]), float(best.values[0] - best.values[1])))
            ids.append(chosen[-1][0])
    return chosen


def _compare(
    section: Section,
    checkpoint: Checkpoint,
    backend: str,
    chunk: int,
    prompts: list[list[int]],
    expected: list[list[tuple[int, float]]],
) -> None:
    """All prompts together, then all once more: on prefix hits."""
    core = make_core(
        checkpoint, 512, attention_backend=backend, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 4)
    )
    for turn in ("cold", "warm"):
        jobs = [Job(f"{turn} {i}", prompt, len(expected[i])) for i, prompt in enumerate(prompts)]
        for arrival, job in enumerate(jobs):
            add(core, job, arrival)
        with torch.inference_mode():
            while core.has_work:
                core.step()
        core.check_integrity()
        for job, reference in zip(jobs, expected, strict=True):
            for place, (ours, (theirs, gap)) in enumerate(zip(job.tokens, reference, strict=True)):
                if ours != theirs:
                    if gap >= TIE:
                        section.failures.append(
                            f"{backend}, chunks of {chunk}, {turn}, prompt of {len(job.prompt)}: token {place} is "
                            f"{ours} instead of {theirs}, logits {gap:.5f} apart"
                        )
                    break


# Steps ----------------------------------------------------------------------------------------------------------------


def run_steps(section: Section) -> None:
    """Milliseconds of whole steps of a decoder of about 2 billion parameters in bfloat16, eager, with each backend."""
    device = torch.device(section.device)
    torch.manual_seed(0)
    config, dtype = (TWO_BILLION, torch.bfloat16) if section.on_gpu else (TINY, torch.float32)
    with device:
        model = LlamaForCausalLM._from_config(config, dtype=dtype).eval().requires_grad_(False)
    section.results["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    checkpoint = checkpoint_of(model, dtype, device)
    records: list[dict[str, Any]] = []
    section.results["steps"] = records
    plans = [("decodes", n, 1024, 0, 2048) for n in (1, 8, 32, 64)] + [("decodes", 8, 8192, 0, 2048)]
    plans += [("prefill", 0, 0, 8192, budget) for budget in (256, 512, 2048)]
    plans += [("mixed", 8, 1024, 8192, budget) for budget in (256, 512, 1024)]
    if not section.on_gpu:
        plans = [("decodes", 2, 20, 0, 64), ("mixed", 1, 10, 40, 16)]
    for plan in plans:
        for backend in ("triton", "torch"):
            if section.has_time(f"{backend} {plan}", need=6.0):
                record = {"backend": backend} | _time_steps(checkpoint, backend, *plan)
                records.append(record)
                print(record, flush=True)


def _time_steps(
    checkpoint: Checkpoint, backend: str, kind: str, decodes: int, context: int, prompt: int, budget: int
) -> dict[str, Any]:
    """Brings decodes to their context, then times decode steps, or the prefill of a prompt (beside the decodes)."""
    rng = random.Random(0)
    vocabulary = checkpoint.config.vocab_size

    def tokens(count: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(count)]

    pages = (decodes * (context + 256) + prompt + 256) // 16 + decodes + 16
    core = make_core(
        checkpoint,
        pages,
        attention_backend=backend,
        max_num_batched_tokens=max(budget, 2 * decodes),
        max_num_seqs=max(decodes + 1, 1),
        enable_prefix_caching=False,
    )
    jobs = [Job(f"decode {i}", tokens(context), 200) for i in range(decodes)]
    with torch.inference_mode():
        for i, job in enumerate(jobs):
            add(core, job, i)
        while not all(job.tokens for job in jobs):
            core.step()
        for _ in range(3 if decodes else 0):
            _timed_step(core)
        if prompt:
            longest = Job("prefill", tokens(prompt), 1)
            add(core, longest, decodes)
            times = []
            while not longest.outputs:
                times.append(_timed_step(core))
        else:
            times = [_timed_step(core) for _ in range(20)]
    record: dict[str, Any] = {
        "kind": kind,
        "decodes": decodes,
        "context": context,
        "median_ms": statistics.median(times),
    }
    if prompt:
        record |= {"prompt": prompt, "budget": budget, "first_ms": times[0], "last_ms": times[-1], "steps": len(times)}
    return record


def _timed_step(core: EngineCore) -> float:
    """Milliseconds of one step; sampling ends in a synchronisation, but a step that samples nothing doesn't."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.synchronize()
    started = time.perf_counter()
    core.step()
    if on_gpu:
        torch.cuda.synchronize()
    return round(1000 * (time.perf_counter() - started), 3)
