"""A request's output as an asynchronous iterator, fed from the engine thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from vlm_engine.outputs import RequestOutput


class OutputStream:
    """Pieces of one request's output, in order; ends after every one of its ``n`` sequences has finished.

    Leaving early (``aclose``, or the end of ``async with``) aborts the request.

    Args:
        request_id: the request.
        count: its number of sequences.
        abort: called when the stream is left early.
        num_prompt_tokens: of the whole prompt, pictures included; known before the first piece.
    """

    def __init__(self, request_id: str, count: int, abort: Callable[[str], None], num_prompt_tokens: int = 0) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self._open = count
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[RequestOutput] = asyncio.Queue()

    def deliver(self, output: RequestOutput) -> None:
        """Called by the engine thread."""
        # A loop that is closed has nobody waiting on it.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, output)

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._open == 0:
            raise StopAsyncIteration
        output = await self._pieces.get()
        if output.finish_reason is not None:
            self._open -= 1
        return output

    async def aclose(self) -> None:
        """Aborts the request unless it has finished."""
        if self._open:
            self._open = 0
            self._abort(self.request_id)

    async def __aenter__(self) -> OutputStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
