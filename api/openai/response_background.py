"""Responses that are made in the background, whether or not anybody listens, and what is remembered of each."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import dataclass

from fastapi import Request
from openai.types.responses import Response as OpenAIResponse

from api.errors import ApiError
from api.openai.response_log import EventLog
from api.openai.response_store import Item, ResponseStore, StoredResponse
from api.openai.responses_answer import ResponseAnswer
from api.openai.submission import Deadline, Gathered, pieces
from vlm_engine.stream import OutputStream

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of a response, and where; ``store`` is None when it is not kept."""

    store: ResponseStore | None
    owner: str
    context: tuple[Item, ...]
    size: int

    def keep(
        self, response: OpenAIResponse, task: asyncio.Task[None] | None = None, log: EventLog | None = None
    ) -> None:
        """Stores the response as it stands."""
        if self.store is not None:
            size = self.size + len(response.model_dump_json(exclude_unset=True)) + (log.size if log else 0)
            self.store.put(StoredResponse(self.owner, response, self.context, size, task=task, log=log))

    def replace(self, response: OpenAIResponse) -> None:
        """Stores the new state of a response that is still known; one that was deleted stays so."""
        if self.store is None:
            return
        try:
            entry = self.store.get(response.id, self.owner)
        except ApiError:
            return
        self.keep(response, entry.task, entry.log)


def in_background(
    request: Request,
    stream: OutputStream,
    answer: ResponseAnswer,
    memory: Memory,
    deadline: Deadline,
    log: EventLog | None,
) -> OpenAIResponse:
    """Begins the work and gives the response as it stands, queued. The request's slot is left when the work ends.

    Args:
        log: told every event of the response's stream; None when it can't be streamed.
    """
    queued = answer.unfinished("queued")
    if log is not None:
        log.add(answer.queued(queued))
    request.state.slot.keep()
    task = asyncio.create_task(_work(stream, answer, memory, deadline, log), name=answer.id)
    task.add_done_callback(lambda _: request.state.slot.leave())
    memory.keep(queued, task, log)
    return queued


async def _work(
    stream: OutputStream, answer: ResponseAnswer, memory: Memory, deadline: Deadline, log: EventLog | None
) -> None:
    """A background response from its first piece to its end, each state seen in the store and told to the log."""
    gathered = Gathered.empty(1)
    try:
        async with aclosing(pieces(stream, deadline)) as source:
            async for piece in source:
                if not gathered.num_prompt_tokens:
                    begun = answer.unfinished("in_progress")
                    memory.replace(begun)
                    if log is not None:
                        log.add(answer.begun(begun))
                gathered.add(piece)
                if log is not None:
                    log.add(answer.piece(piece))
        response = answer.whole(gathered)
        # Nobody who listens runs before it is stored too.
        if log is not None:
            log.add(answer.closing(response))
        memory.replace(response)
    except ApiError as error:
        _log.warning("Response %s failed in the background: %s", answer.id, error.message)
        if log is not None:
            log.add([answer.failed(error)])
        memory.replace(answer.unfinished("failed", error))
    except asyncio.CancelledError:
        cancelled = answer.unfinished("cancelled")
        if log is not None:
            log.add(answer.closing(cancelled))
        memory.replace(cancelled)
    finally:
        if log is not None:
            log.end()
        await stream.aclose()
