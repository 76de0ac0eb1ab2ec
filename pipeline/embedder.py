"""Gives described events an embedding, so that they are found by meaning too."""

from __future__ import annotations

import asyncio
import logging
from typing import NoReturn

import openai

from pipeline.config.search import SearchConfig
from pipeline.store import EventStore
from pipeline.store.patience import StoreLink

log = logging.getLogger(__name__)

LOOK_S = 2.0
LONGEST_PAUSE_S = 60.0
TIMEOUT_S = 30.0


class EmbeddingsUnavailable(Exception):
    """The server for embeddings can't be reached or refuses; the text says which, without the key."""


class Embedder:
    """Asks an OpenAI-compatible server. While it is away events are found by words as ever, and embedded later."""

    def __init__(self, store: EventStore, config: SearchConfig) -> None:
        """Raises ValueError when no server is configured."""
        if config.embeddings_url is None or config.embeddings_model is None:
            raise ValueError("search.embeddings_url and search.embeddings_model are not set")
        self.model = config.embeddings_model
        self._store = store
        self._batch = config.batch
        key = config.embeddings_api_key.get_secret_value() if config.embeddings_api_key is not None else "none"
        self._client = openai.AsyncOpenAI(
            base_url=config.embeddings_url, api_key=key, max_retries=0, timeout=openai.Timeout(TIMEOUT_S, connect=5.0)
        )
        self._storing = StoreLink("embedder")

    async def run(self) -> NoReturn:
        """Until cancelled."""
        failures = 0
        while True:
            lacking = await self._storing.until_done(lambda: self._store.vectors.lacking(self.model, self._batch))
            if not lacking:
                await asyncio.sleep(LOOK_S)
                continue
            words = dict(lacking)
            try:
                vectors = await self.embed(list(words.values()))
                by_event = dict(zip(words, vectors, strict=True))
                await self._storing.until_done(lambda: self._store.vectors.add(self.model, words, by_event))  # noqa: B023
            except (EmbeddingsUnavailable, ValueError) as error:
                if failures % 10 == 0:
                    log.warning("events can't be embedded now (%d in a row): %s", failures + 1, error)
                failures += 1
                await asyncio.sleep(min(LONGEST_PAUSE_S, LOOK_S * 2.0 ** min(failures, 10)))
            else:
                failures = 0

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text. Raises :class:`EmbeddingsUnavailable`."""
        try:
            answer = await self._client.embeddings.create(model=self.model, input=texts, encoding_format="float")
        except openai.APIStatusError as error:
            raise EmbeddingsUnavailable(f"the server for embeddings answered {error.status_code}") from error
        except openai.OpenAIError as error:
            raise EmbeddingsUnavailable(f"the server for embeddings failed ({type(error).__name__})") from error
        vectors = [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]
        if len(vectors) != len(texts):
            raise EmbeddingsUnavailable(f"the server gave {len(vectors)} embeddings for {len(texts)} texts")
        return vectors

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()
