"""``POST /v1/completions``: the request as it comes in."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag

from api.errors import invalid
from api.openai.fields import (
    PROMPT_LOGPROBS,
    VLLM_EXTRAS,
    IgnoredFields,
    Neutral,
    SamplingFields,
    StreamOptions,
    TokenId,
    check_prompt_logprobs,
    check_stream_options,
)
from api.openai.structured import ChatFormat, StructuredFields

UNSUPPORTED: Neutral = {
    **{name: neutral for name, neutral in VLLM_EXTRAS.items() if name not in ("echo", "prompt_logprobs")},
    "prompt_embeds": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
}

DEFAULT_MAX_TOKENS = 16
"""The OpenAI API's own default, unlike that of chats."""

MAX_PROMPTS = 128
MAX_OUTPUTS = 256

Prompt = str | tuple[int, ...]


def _as_prompts(value: Any) -> Any:
    """The four forms in one: a text, texts, token ids, lists of token ids."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return (tuple(value),)
    return value


Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[tuple[TokenId, ...], Field(min_length=1)]
PromptItem = Annotated[
    Annotated[Text, Tag("~text")] | Annotated[Tokens, Tag("~tokens")],
    # Tags begin with ``~`` so that error paths leave them out.
    Discriminator(lambda value: "~text" if isinstance(value, str) else "~tokens"),
]
_Listed = Annotated[list[PromptItem], Field(min_length=1, max_length=MAX_PROMPTS)]


class CompletionRequest(StructuredFields, SamplingFields, IgnoredFields):
    """A text to go on with. ``model`` may be left out: there is one."""

    prompt: Annotated[
        tuple[PromptItem, ...],
        Field(min_length=1, max_length=MAX_PROMPTS),
        BeforeValidator(_as_prompts, json_schema_input_type=Text | Tokens | _Listed),
    ]
    model: str | None = None
    response_format: ChatFormat | None = None
    best_of: int | None = Field(None, ge=1, le=20, description="Of so many candidates the n likeliest are returned.")
    echo: bool | None = Field(None, description="The prompt before the text, with its log-probabilities if asked for.")
    logprobs: int | None = Field(None, ge=0, le=20)
    prompt_logprobs: int | None = Field(None, ge=0, le=20, description=PROMPT_LOGPROBS)
    max_tokens: int | None = Field(
        None, ge=0, description=f"{DEFAULT_MAX_TOKENS} when not given; 0 with echo only: nothing is added."
    )
    n: int | None = Field(None, ge=1, le=128)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def count(self) -> int:
        """Choices for each prompt."""
        return self.n or 1

    @property
    def candidates(self) -> int:
        """Outputs for each prompt, of which ``count`` are returned."""
        return self.best_of or self.count

    @property
    def generates(self) -> bool:
        """Whether anything is to follow the prompt."""
        return self.max_tokens != 0

    @property
    def scored(self) -> int | None:
        """Alternatives for each of the prompt's tokens that the engine is to give; None: the prompt isn't scored."""
        wanted = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((count for count in wanted if count is not None), default=None)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk: only when asked."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def usage_in_chunks(self) -> bool:
        """Whether every chunk carries the counts so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def check(self) -> None:
        """Raises a 400 for fields that contradict each other."""
        check_stream_options(self.stream_options, self.stream)
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "mm_processor_kwargs"):
            if getattr(self, name) is not None:
                raise invalid(f"{name} belongs to chats; a completion has neither template nor pictures.", param=name)
        check_prompt_logprobs(self.prompt_logprobs, self.stream)
        if self.max_tokens == 0 and not self.echo:
            raise invalid("max_tokens is 0, allowed is 1 or more; 0 with echo: true only.", param="max_tokens")
        if self.candidates < self.count:
            raise invalid(f"best_of is {self.best_of}, less than n, which is {self.count}.", param="best_of")
        if self.stream and self.candidates > self.count:
            raise invalid("best_of can't be streamed: the best are known at the end only.", param="best_of")
        outputs = len(self.prompt) * self.candidates
        if outputs > MAX_OUTPUTS:
            raise invalid(
                f"{len(self.prompt)} prompts with {self.candidates} outputs each are {outputs}, "
                f"allowed are {MAX_OUTPUTS}.",
                param="best_of" if self.best_of else "n",
            )
