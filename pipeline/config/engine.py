"""The vision-language engine, the describer, the store."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from pipeline.config.base import Section
from pipeline.config.output_schema import OutputSchema
from pipeline.config.prompt_template import PromptTemplate

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
DEFAULT_SYSTEM_PROMPT = (
    "You describe people in pictures of a security camera. Say only what can be seen: clothing and its colours, "
    "what the person carries, posture and activity. Do not guess who somebody is, or their sex, age or origin. "
    "Describe in one or two plain sentences."
)
DEFAULT_PROMPT = "Describe the person in this picture."


class EngineSection(Section):
    """Which model runs, and where. Names shared with vLLM mean the same as there."""

    backend: Literal["inprocess", "openai"] = Field(
        "inprocess", title="Backend", description="The engine in this process, or any OpenAI-compatible server."
    )
    model: str = Field(
        "HuggingFaceTB/SmolVLM-256M-Instruct",
        title="Model",
        description="A local folder, a Hugging Face hub id, or a preset's name (watchword models list).",
    )
    served_model_name: str | None = Field(
        None, title="Served name", description="Name in the API; default: the model's own."
    )
    revision: str | None = Field(None, title="Revision", description="Branch, tag or commit of a hub model.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", title="Data type", description="Of the weights."
    )
    device: str = Field("auto", title="Device", description='"auto", "cpu", "cuda" or "cuda:1".')
    max_num_batched_tokens: int = Field(2048, title="Token budget", description="Most new tokens in a step.", ge=1)
    target_itl_ms: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        "auto",
        title="Target gap",
        description="Milliseconds between two tokens of a running answer; other prompts and pictures get only the time "
        "left. auto: twice what running answers take by themselves. null: only the token budget counts.",
    )
    max_num_seqs: int = Field(64, title="Sequences", description="Most requests that run at once.", ge=1)
    max_model_len: int | None = Field(None, title="Context", description="Most tokens of prompt and output.", ge=2)
    block_size: int = Field(16, title="Block size", description="Tokens in one KV page.", ge=1, le=256)
    kv_cache_memory: int | None = Field(None, title="KV cache bytes", description="Default: from free memory.", ge=1)
    enable_prefix_caching: bool = Field(True, title="Prefix caching", description="Find computed prefixes again.")
    encoder_cache_memory: int = Field(
        256 * 1024 * 1024, title="Encoder cache bytes", description="For the features of pictures seen lately.", ge=1
    )
    encoder_slicing: bool = Field(
        True,
        title="Sliced encoder",
        description="Pictures are encoded in slices that fit between two tokens of running answers; false: in one "
        "piece, to compare with.",
    )
    encoder_pack_patches: int | None = Field(
        None,
        title="Patches of a pack",
        description="Small pictures are encoded together up to so many. Default: 1,024 on a CPU, 16,384 on CUDA.",
        ge=1,
    )
    encoder_side_stream: bool = Field(
        False, title="Side stream", description="On CUDA, slices run on a low-priority stream of their own."
    )
    long_prefill_token_threshold: int = Field(
        0, title="Longest chunk", description="Most prefill tokens of one request in a step; 0: no such bound.", ge=0
    )
    jump_forward: bool = Field(
        True,
        title="Jump forward",
        description="Structured output: text that the grammar leaves no choice about is written at once, and not token "
        "by token; false: to compare with.",
    )
    attention_backend: Literal["auto", "torch", "triton"] = Field(
        "auto", title="Attention", description="Kernels of paged attention: torch (any device) or triton (CUDA)."
    )
    max_pixels: int = Field(
        40_000_000, title="Pixel cap", description="Larger pictures are refused before they are decoded.", ge=4
    )
    preprocess_memory: int | None = Field(
        None,
        title="Worker memory",
        description="Bytes that a picture may take while it is decoded and resized; a worker that would take more "
        "refuses it. Default: 512 MiB and 32 bytes for each of max_pixels.",
        ge=64 * 1024 * 1024,
    )
    preprocess_cpu_s: float = Field(
        60.0, title="Worker time", description="Seconds of processor time for one picture.", gt=0
    )
    max_image_tokens_interactive: int | None = Field(
        None,
        title="Image tokens, chats",
        description="Most tokens that a picture in a chat takes; larger ones are scaled down or cut into fewer tiles. "
        "Default: what the model's own processor makes of it.",
        ge=1,
    )
    max_image_tokens_background: int | None = Field(
        None,
        title="Image tokens, cameras",
        description="The same for crops, and for requests with priority over 0.",
        ge=1,
    )
    image_splitting_interactive: bool | None = Field(
        None,
        title="Splitting, chats",
        description="Whether pictures in chats are cut into tiles, by models that do that. Default: the model's own.",
    )
    image_splitting_background: bool | None = Field(
        None,
        title="Splitting, cameras",
        description="The same for crops, and for requests with priority over 0.",
    )
    low_detail_image_tokens: int = Field(
        256,
        title="Image tokens, low detail",
        description="Most tokens of a picture with detail: low, or one whole view where the model takes more for it.",
        ge=1,
    )
    max_queued_requests: int = Field(256, title="Queue bound", description="Beyond it requests get 429.", ge=1)
    num_threads: int | None = Field(None, title="Threads", description="Torch threads on a CPU.", ge=1)
    base_url: str | None = Field(
        None, title="Base URL", description="Of the OpenAI-compatible server (backend openai)."
    )
    api_key: SecretStr | None = Field(None, title="API key", description="For backend openai; never shown.")


class DescriberConfig(Section):
    """How crops become words."""

    system_prompt: str = Field(
        DEFAULT_SYSTEM_PROMPT,
        title="Instructions",
        description="Shared prefix of every prompt, found in the prefix cache; so it has no placeholders.",
        max_length=8000,
    )
    prompt: PromptTemplate = Field(
        DEFAULT_PROMPT,
        title="Question",
        description="Asked after the picture; may hold {camera}, {camera_id}, {label}, {zones} and {time}.",
    )
    output: Literal["structured", "text"] = Field(
        "structured",
        title="Output",
        description="structured: words and attributes, as output_schema says. text: words alone, in fewer tokens.",
    )
    output_schema: OutputSchema | None = Field(
        None,
        title="Output schema",
        description="JSON schema of structured answers, or the path of a YAML or JSON file; it must have a text "
        "`description`, the event's words. Default: clothing, colours, carried things, posture, activity, confidence.",
    )
    max_tokens: int = Field(
        320, title="Longest answer", description="Tokens per description, attributes included.", ge=1, le=4096
    )
    pictures_per_prompt: int = Field(
        3,
        title="Pictures of a person",
        description="Most pictures of one person in a prompt (first, best and last view), where the model takes "
        "several. 1: only the best. While the image ladder is down, only the best goes.",
        ge=1,
        le=8,
    )
    image_tokens_per_prompt: int = Field(
        1536,
        title="Image tokens of several",
        description="Most image tokens of a prompt with several pictures; each gets an equal share. In-process only.",
        ge=1,
    )
    concurrency: int = Field(
        2, title="At once", description="Crops that one serve process describes at once.", ge=1, le=64
    )
    timeout_s: float = Field(60.0, title="Timeout", description="Longest time for one description.", gt=0)
    on_demand_deadline_s: float = Field(
        600.0,
        title="On-demand deadline",
        description="How long a description that somebody asked for may take to come, in seconds.",
        ge=1,
        le=86_400,
    )
    processor_options: dict[str, bool | int | float | str] = Field(
        {},
        title="Processor options",
        description="For the model's own picture processor, in-process only; do_image_splitting: false makes SmolVLM "
        "read a crop as one tile of 64 tokens instead of ten times as many.",
    )

    image_ladder: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (512, 256, 128, 64),
        title="Image ladder",
        description="Most image tokens of a crop, step by step, while crops wait too long; falling. Empty: off. Steps "
        "below what the model needs for a picture mean that. In-process only.",
        max_length=16,
    )
    image_ladder_age_s: float = Field(
        30.0,
        title="Ladder's limit",
        description="Age of the oldest waiting crop over which a step down is taken.",
        gt=0,
    )
    image_ladder_recovered_age_s: float = Field(
        10.0, title="Ladder's lower limit", description="Age under which it is raised again.", gt=0
    )
    image_ladder_hold_s: float = Field(
        10.0,
        title="Ladder's hold",
        description="Seconds between two steps; so long the queue must be under the lower limit for a step up.",
        gt=0,
    )

    @model_validator(mode="after")
    def _falling(self) -> DescriberConfig:
        steps = self.image_ladder
        if any(later >= earlier for earlier, later in pairwise(steps)):
            raise ValueError(f"image_ladder: the steps {', '.join(map(str, steps))} don't fall")
        if self.image_ladder_recovered_age_s > self.image_ladder_age_s:
            raise ValueError(
                f"image_ladder_recovered_age_s is {self.image_ladder_recovered_age_s:g}, more than "
                f"image_ladder_age_s {self.image_ladder_age_s:g}"
            )
        return self


def _check_bucket(url: str) -> str:
    scheme, _, rest = url.partition("://")
    bucket = rest.partition("/")[0]
    if scheme != "s3":
        raise ValueError("only s3:// is supported, such as s3://bucket/crops")
    if "@" in bucket:
        raise ValueError("no keys in the URL: they belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(f"{bucket!r} is no name of a bucket")
    return url


class StoreConfig(Section):
    """Where events and crops are kept."""

    url: str | None = Field(
        None, title="Database URL", description="SQLAlchemy URL; default: SQLite in the data folder."
    )
    data_dir: Path = Field(Path("data"), title="Data folder", description="Crops and the default database.")
    crops_url: Annotated[str, AfterValidator(_check_bucket)] | None = Field(
        None,
        title="Pictures' URL",
        description="s3://bucket/prefix: pictures go there instead of the data folder; keys and endpoint come from "
        "AWS's own variables. Needs watchword[s3].",
    )
