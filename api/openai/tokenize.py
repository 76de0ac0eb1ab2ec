"""``POST /tokenize`` and ``/detokenize`` in vLLM's shapes, and ``GET /version``."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from api.errors import from_engine
from api.openai.chat_request import ChatMessage, engine_messages
from api.openai.fields import Neutral, ProcessorOptions, StrictModel
from api.openai.images import fetcher_of, load_messages
from api.openai.submission import (
    check_model,
    off_loop,
    parse,
    read_json,
    read_object,
    ready_engine,
    validated,
)
from api.page import watchword_version
from api.services import Provided, Services
from api.streaming import unless_gone
from vlm_engine.engine import VLMEngine
from vlm_engine.errors import EngineError
from vlm_engine.prompt import PreparedPrompt

UNSUPPORTED: Neutral = {"chat_template": (), "media_io_kwargs": ({},), "tools": ([],)}


class TokenizeText(StrictModel):
    """Token ids of a text. Special tokens written in it count as plain text, as in completions."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = Field(True, description="Those that the tokenizer puts around a text.")
    return_token_strs: bool | None = None


class TokenizeChat(StrictModel):
    """Token ids of a chat, pictures included."""

    messages: Annotated[tuple[ChatMessage, ...], Field(min_length=1, max_length=10_000)]
    model: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: ProcessorOptions | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(StrictModel):
    """Text of token ids, special ones included."""

    tokens: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...]
    model: str | None = None


class TokenizeResponse(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(BaseModel):
    prompt: str


class VersionResponse(BaseModel):
    version: str


router = APIRouter(tags=["openai"])
public_router = APIRouter(tags=["openai"])


@router.post("/tokenize", summary="Token ids of a text or a chat")
async def tokenize(request: Request, services: Provided) -> TokenizeResponse:
    body = await read_json(request)
    engine = ready_engine(services)
    asked = await off_loop(len(body), lambda: _read(body))
    check_model(asked.model, services)
    try:
        ids = await _token_ids(engine, asked, request, services)
    except EngineError as error:
        renames = {"messages": "prompt"} if isinstance(asked, TokenizeText) else {}
        raise from_engine(error, renames) from error
    strings = engine.tokenizer.convert_ids_to_tokens(ids) if asked.return_token_strs else None
    return TokenizeResponse(count=len(ids), max_model_len=engine.max_model_len, tokens=ids, token_strs=strings)


def _read(body: bytes) -> TokenizeText | TokenizeChat:
    data = read_object(body)
    if "messages" in data:
        return validated(TokenizeChat, data, UNSUPPORTED)
    return validated(TokenizeText, data, UNSUPPORTED)


async def _token_ids(
    engine: VLMEngine, asked: TokenizeText | TokenizeChat, request: Request, services: Services
) -> list[int]:
    if isinstance(asked, TokenizeText):
        return list(await engine.encode(asked.prompt, add_special_tokens=asked.add_special_tokens))
    options = asked.mm_processor_kwargs.model_dump(exclude_none=True) if asked.mm_processor_kwargs else {}
    messages = engine_messages(asked.messages)
    messages = await unless_gone(request, load_messages(messages, fetcher_of(request), services.config))
    prompt: PreparedPrompt = await engine.prepare(
        messages,
        chat_template_kwargs=asked.chat_template_kwargs,
        mm_processor_kwargs=options,
        add_generation_prompt=asked.add_generation_prompt and not asked.continue_final_message,
        continue_final_message=asked.continue_final_message,
    )
    return list(prompt.token_ids)


@router.post("/detokenize", summary="Text of token ids")
async def detokenize(request: Request, services: Provided) -> DetokenizeResponse:
    body = await read_json(request)
    engine = ready_engine(services)
    asked = await off_loop(len(body), lambda: parse(DetokenizeRequest, body, {}))
    check_model(asked.model, services)
    try:
        text = await asyncio.to_thread(engine.decode, asked.tokens)
    except EngineError as error:
        raise from_engine(error) from error
    return DetokenizeResponse(prompt=text)


@public_router.get("/version", summary="This server's version")
async def version() -> VersionResponse:
    return VersionResponse(version=watchword_version())
