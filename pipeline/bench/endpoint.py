"""Where requests go: any OpenAI endpoint over HTTP. Light on purpose, for it shares the machine with what it measures.

Extras that not every server knows (``ignore_eos``, ``priority``, token counts in every chunk) are tried once, and those
a server refuses are left out from then on and named in the result.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import httpx

from pipeline.bench.asks import PERSON_SIZES, Ask, picture

ANSWER_TIMEOUT_S = 900.0
"""Longest silence of a server within an answer: peers were seen to stall for minutes."""
REFUSALS = (400, 404, 422)
EXTRAS: Mapping[str, dict[str, Any]] = {
    "ignore_eos": {"ignore_eos": True},
    "priority": {"priority": 1},
    "usage": {"stream_options": {"include_usage": True}},
    "usage in every chunk": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}
ONE_TILE: dict[str, Any] = {"mm_processor_kwargs": {"do_image_splitting": False}}


class EndpointError(RuntimeError):
    """A request was refused or broke; the text says which and why. ``status``: of HTTP, None after the answer began."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer as the server counted them; None where it doesn't say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Endpoint(Protocol):
    """What is measured."""

    async def answer(self, ask: Ask, on_tokens: Callable[[int], None]) -> Usage:
        """Streams one answer; ``on_tokens(n)`` is called as n new tokens arrive. Cancelling it ends the request.

        Raises:
            EndpointError: it was refused or broke.
        """
        ...


class OpenAIEndpoint:
    """``async with await OpenAIEndpoint.open(base_url) as endpoint``.

    Attributes:
        model: the name that is asked for.
        refused: extras that this server doesn't take.
    """

    def __init__(self, client: httpx.AsyncClient, base_url: str, model: str) -> None:
        self.client = client
        self.base_url = base_url
        self.model = model
        self.refused: tuple[str, ...] = ()

    @classmethod
    async def open(
        cls, base_url: str, model: str | None = None, api_key: str | None = None, *, one_tile: bool = False
    ) -> OpenAIEndpoint:
        """Finds the model's name where none is given, and which extras the server takes.

        Args:
            base_url: up to and with ``/v1``.
            model: None takes the first one of ``/models``.
            api_key: sent as a bearer token.
            one_tile: pictures will be asked for in one tile; a server that can't is refused here.

        Raises:
            EndpointError: it can't be reached, or refuses a plain question.
        """
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        client = httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=10), limits=limits)
        endpoint = cls(client, base_url.rstrip("/"), model or "")
        try:
            endpoint.model = model or await endpoint._first_model()
            await endpoint._find_extras(one_tile)
        except BaseException:
            await client.aclose()
            raise
        return endpoint

    @property
    def root(self) -> str:
        """The server's address without ``/v1``."""
        return self.base_url.removesuffix("/v1")

    async def __aenter__(self) -> OpenAIEndpoint:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.aclose()

    async def answer(self, ask: Ask, on_tokens: Callable[[int], None]) -> Usage:
        return await self._stream(self._body(ask), on_tokens)

    def _body(self, ask: Ask) -> dict[str, Any]:
        content: Any = ask.text
        if ask.picture is not None:
            url = "data:image/jpeg;base64," + base64.b64encode(ask.picture).decode()
            content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": ask.text}]
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": ask.max_tokens,
            "temperature": 0.0,
            "stream": True,
        }
        for name, extra in EXTRAS.items():
            if name not in self.refused and (name != "priority" or ask.background):
                body |= extra
        return body | (ONE_TILE if ask.one_tile else {})

    async def _stream(self, body: Mapping[str, Any], on_tokens: Callable[[int], None]) -> Usage:
        counted = _Count(on_tokens)
        try:
            async with self.client.stream("POST", f"{self.base_url}/chat/completions", json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise EndpointError(
                        f"{self.base_url} answered {response.status_code}: {_reason(response)}", response.status_code
                    )
                async for line in response.aiter_lines():
                    data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                    if data == "[DONE]":
                        break
                    if data:
                        counted.take(json.loads(data))
        except httpx.HTTPError as error:
            raise EndpointError(f"{self.base_url}: {type(error).__name__} {error}".rstrip()) from error
        return Usage(counted.prompt_tokens, counted.completion_tokens)

    async def _first_model(self) -> str:
        try:
            response = await self.client.get(f"{self.base_url}/models", timeout=30)
        except httpx.HTTPError as error:
            raise EndpointError(f"{self.base_url} can't be reached: {type(error).__name__}") from error
        if response.status_code != 200:
            raise EndpointError(
                f"{self.base_url}/models answered {response.status_code}: {_reason(response)}", response.status_code
            )
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise EndpointError(f"{self.base_url}/models names no model; give one with --model") from None

    async def _find_extras(self, one_tile: bool) -> None:
        """One short question for each extra, and one with a picture where one tile is wanted."""
        plain = self._body(Ask("Hello.", 2)) | {"stream": True}
        for name in ("ignore_eos", "stream_options"):
            plain.pop(name, None)
        await self._stream(plain, _ignore)
        refused = [name for name, extra in EXTRAS.items() if not await self._takes(plain | extra)]
        self.refused = tuple(refused)
        if one_tile:
            ask = Ask("What is it?", 2, picture(PERSON_SIZES[0], 0), one_tile=True)
            try:
                await self._stream(self._body(ask), _ignore)
            except EndpointError as error:
                raise EndpointError(
                    "pictures in one tile need mm_processor_kwargs (do_image_splitting: false) in requests, and "
                    f"{error}"
                ) from error

    async def _takes(self, body: Mapping[str, Any]) -> bool:
        try:
            await self._stream(body, _ignore)
        except EndpointError as error:
            if error.status in REFUSALS:
                return False
            raise
        return True


class _Count:
    """Tokens of a stream of chunks: by the server's own counts where every chunk has them, else one a chunk of text."""

    def __init__(self, on_tokens: Callable[[int], None]) -> None:
        self._on_tokens = on_tokens
        self._seen = 0
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None

    def take(self, chunk: Mapping[str, Any]) -> None:
        if chunk.get("error"):
            error = chunk["error"]
            raise EndpointError(str(error.get("message", error) if isinstance(error, Mapping) else error))
        usage, choices = chunk.get("usage"), chunk.get("choices") or ()
        if usage:
            self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
            self.completion_tokens = usage.get("completion_tokens", self.completion_tokens)
        if usage and choices and self.completion_tokens is not None:
            new = self.completion_tokens - self._seen
        else:
            delta = choices[0].get("delta", {}) if choices else {}
            new = 1 if any(delta.get(name) for name in ("content", "reasoning_content", "reasoning")) else 0
        if new > 0:
            self._seen += new
            self._on_tokens(new)


def _ignore(_tokens: int) -> None:
    """For questions of which only the answer's being there counts."""


def _reason(response: httpx.Response) -> str:
    try:
        body = response.json()
        error = body.get("error", body)
        return str(error.get("message", error) if isinstance(error, Mapping) else error)[:500]
    except (ValueError, AttributeError):
        return response.text[:200] or "no reason given"
