"""Search by meaning: a real server for embeddings over HTTP (a tiny model of a few concepts), both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from pipeline.config.search import SearchConfig
from pipeline.embedder import Embedder, EmbeddingsUnavailable
from pipeline.messages import TrackPhase
from pipeline.store import DescriptionMeta, EventFilter, EventStore
from pipeline.store.vectors import VectorMismatch, unit
from tests.pipeline.material import crop_of, jpeg_of, track_of
from tests.pipeline.openai_server import OpenAIServer
from tests.pipeline.waiting import until

CONCEPTS = (
    {"red", "scarlet", "crimson"},
    {"coat", "jacket", "parka"},
    {"bag", "backpack", "rucksack"},
    {"dog", "puppy"},
)
META = DescriptionMeta("tiny", "ab" * 32, "stop", 1, 0, 1, 0.1, 0.2)


def embedding(text: str) -> list[float]:
    words = set(text.lower().replace(".", " ").split())
    return [float(len(words & concept)) for concept in CONCEPTS] + [0.1]


class EmbeddingServer(OpenAIServer):
    """``asked``: the texts of each request; ``refuse``: answers with 500."""

    def __init__(self) -> None:
        app = FastAPI()
        self.asked: list[list[str]] = []
        self.refuse = False

        @app.post("/v1/embeddings")
        async def embed(request: Request) -> Response:
            body: dict[str, Any] = await request.json()
            if self.refuse:
                return JSONResponse({"error": {"message": "no"}}, 500)
            self.asked.append(body["input"])
            data = [
                {"object": "embedding", "index": n, "embedding": embedding(text)}
                for n, text in enumerate(body["input"])
            ]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            return JSONResponse({"object": "list", "model": body["model"], "data": data[::-1], "usage": usage})

        super().__init__(app)


@pytest.fixture
def embeddings() -> Iterator[EmbeddingServer]:
    server = EmbeddingServer()
    server.start()
    yield server
    server.stop()


def config_of(server: OpenAIServer, model: str = "m1") -> SearchConfig:
    return SearchConfig(embeddings_url=server.base_url, embeddings_model=model, batch=2)


@asynccontextmanager
async def embedding_events(store: EventStore, config: SearchConfig) -> AsyncIterator[Embedder]:
    embedder = Embedder(store, config)
    task = asyncio.create_task(embedder.run())
    try:
        yield embedder
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await embedder.close()


def add(store: EventStore, number: int, words: str, camera: str = "front") -> str:
    track = f"{camera}/a-{number}"
    crop = crop_of(f"{camera}-{number}", camera=camera, track=track, time=1000.0 + number)
    store.add_crop(crop, jpeg_of())
    store.finish_description(crop.crop_id, words, META)
    return store.apply_track(track_of(TrackPhase.END, camera=camera, track=track, last_seen=1001.0 + number)).id


async def find(embedder: Embedder, store: EventStore, text: str, where: EventFilter | None = None, limit: int = 3):
    [vector] = await embedder.embed([text])
    return [event for event, _ in store.vectors.nearest("m1", vector, where or EventFilter(), limit)]


async def test_events_are_found_by_what_their_words_mean(any_store, embeddings):
    coat = add(any_store, 1, "A person in a scarlet parka.")
    bag = add(any_store, 2, "A person with a rucksack.")
    dog = add(any_store, 3, "A puppy.", camera="yard")
    async with embedding_events(any_store, config_of(embeddings)) as embedder:
        await until(lambda: not any_store.vectors.lacking("m1", 10))
        assert (await find(embedder, any_store, "red jacket"))[0] == coat
        assert (await find(embedder, any_store, "dog"))[0] == dog
        assert await find(embedder, any_store, "dog", EventFilter(camera="front"), 1) != [dog]
        assert set(await find(embedder, any_store, "backpack", EventFilter(until=1002.5))) == {coat, bag}
        assert await find(embedder, any_store, "backpack", EventFilter(label="cat")) == []
        # Their words change: so does what they are found by, also for the newest of all.
        any_store.ask_description(dog, 2e9, force=True)
        any_store.finish_description("yard-3", "A crimson bag.", META)
        await until(lambda: not any_store.vectors.lacking("m1", 10))
        assert (await find(embedder, any_store, "red bag"))[0] == dog
    assert all(len(texts) <= 2 for texts in embeddings.asked)


async def test_what_is_deleted_is_found_no_more_and_another_model_means_anew(any_store, embeddings):
    one, two = add(any_store, 1, "A red coat."), add(any_store, 2, "A red bag.")
    async with embedding_events(any_store, config_of(embeddings)) as embedder:
        await until(lambda: not any_store.vectors.lacking("m1", 10))
        assert set(await find(embedder, any_store, "red")) == {one, two}
        assert any_store.pruner.delete([one], 2e9).events == 1
        assert await find(embedder, any_store, "red") == [two]
    assert [event for event, _ in any_store.vectors.lacking("m2", 10)] == [two]
    with pytest.raises(VectorMismatch):
        any_store.vectors.nearest("m1", [1.0, 2.0], EventFilter(), 1)


async def test_a_server_that_is_away_delays_and_loses_nothing(store, embeddings, monkeypatch, caplog):
    monkeypatch.setattr("pipeline.embedder.LOOK_S", 0.05)
    embeddings.refuse = True
    add(store, 1, "A red coat.")
    async with embedding_events(store, config_of(embeddings)) as embedder:
        await until(lambda: "events can't be embedded now" in caplog.text)
        with pytest.raises(EmbeddingsUnavailable):
            await embedder.embed(["red"])
        embeddings.refuse = False
        await until(lambda: not store.vectors.lacking("m1", 10))
        assert await find(embedder, store, "scarlet") == [store.list_events().events[0].id]


def test_words_that_changed_meanwhile_get_no_old_vector(store):
    event = add(store, 1, "A red coat.")
    store.vectors.add("m1", {event: "Other words."}, {event: [1.0, 0.0]})
    assert store.vectors.lacking("m1", 10) == [(event, "A red coat.")]
    for bad in ([0.0, 0.0], [float("nan"), 1.0]):
        with pytest.raises(ValueError):
            unit(bad)
    assert np.allclose(unit([3.0, 4.0]), [0.6, 0.8])


def test_url_and_model_belong_together():
    with pytest.raises(ValueError, match="belong together"):
        SearchConfig(embeddings_url="http://h/v1")
