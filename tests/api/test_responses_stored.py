"""Responses that are stored: retrieved, continued, listed, cancelled, deleted, and forgotten within bounds."""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseInputMessageItem, ResponseOutputMessage

from api.openai.response_store import ResponseStore, StoredResponse
from api.openai.responses_answer import ResponseAnswer
from api.openai.responses_request import ResponsesRequest
from api.services import Services
from pipeline.cli.keys import hash_of
from pipeline.config import ServerConfig, WatchwordConfig
from tests.api.conftest import MODEL, error_of
from tests.api.gate import held
from tests.api.live_server import LiveServer
from tests.api.pictures import data_url
from tests.api.waiting import until
from vlm_engine.sampling_params import SamplingParams

GREEDY = {"model": MODEL, "temperature": 0.0, "max_output_tokens": 6}
LONG = {"model": MODEL, "temperature": 0.0, "max_output_tokens": 1500, "extra_body": {"ignore_eos": True}}


def respond(client, text="Say something.", **fields) -> Response:
    return client.responses.create(input=text, **{**GREEDY, **fields})


# Retrieve, continue, list, delete ------------------------------------------------------------------------------------


def test_what_was_answered_can_be_retrieved(client):
    answer = respond(client, metadata={"case": "7"})
    assert answer.store is True
    assert client.responses.retrieve(answer.id) == answer


def test_a_stream_can_be_retrieved_once_its_last_event_is_there(client):
    last = list(respond(client, stream=True))[-1]
    assert client.responses.retrieve(last.response.id) == last.response


def test_store_false_keeps_nothing(client):
    answer = respond(client, store=False)
    assert answer.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_going_on_is_as_if_everything_had_been_sent_again(client):
    first = respond(client, "Hello", instructions="Be brief.")
    second = respond(client, "And now?", previous_response_id=first.id)
    again = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And now?"},
    ]
    resent = client.responses.create(input=again, **GREEDY)
    assert second.output_text == resent.output_text
    # Instructions aren't carried over.
    assert second.usage.input_tokens == resent.usage.input_tokens
    assert second.previous_response_id == first.id
    third = respond(client, "And then?", previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens


def test_pictures_are_remembered(client):
    content = [{"type": "input_text", "text": "Look."}, {"type": "input_image", "image_url": data_url()}]
    first = client.responses.create(input=[{"role": "user", "content": content}], **GREEDY)
    second = respond(client, "What was it?", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens > 64


def test_input_items_list_the_whole_conversation_by_pages(client):
    first = respond(client, "One")
    second = respond(client, "Two", previous_response_id=first.id)
    listed = client.responses.input_items.list(second.id, order="asc")
    kinds = [(type(item), item.role) for item in listed]
    assert kinds == [
        (ResponseInputMessageItem, "user"),
        (ResponseOutputMessage, "assistant"),
        (ResponseInputMessageItem, "user"),
    ]
    assert listed.data[0].content[0].text == "One" and listed.data[1].id == first.output[0].id
    pages = [item.id for item in client.responses.input_items.list(second.id, limit=1)]  # follows the pages
    assert pages == [item.id for item in reversed(listed.data)]
    assert client.responses.input_items.list(second.id, after="unknown").data == []


def test_a_deleted_response_is_gone(client):
    answer = respond(client)
    client.responses.delete(answer.id)
    for look in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            look(answer.id)
    with pytest.raises(openai.BadRequestError) as refused:
        respond(client, previous_response_id=answer.id)
    assert refused.value.code == "previous_response_not_found" and refused.value.param == "previous_response_id"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true", "stream"),
        ("starting_after=3", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("include[]=x", "include[]"),
    ],
)
def test_what_retrieve_cannot_do_is_400_that_names_it(client, http, query, param):
    response = http.get(f"/v1/responses/{respond(client).id}?{query}")
    assert response.status_code == 400 and error_of(response)["param"] == param


def test_a_bad_id_is_an_error_in_the_usual_shape(http):
    assert http.get("/v1/responses/nothing").status_code == 404
    assert error_of(http.get("/v1/responses/a%20b"))["param"] == "response_id"


# In the background ---------------------------------------------------------------------------------------------------


def test_a_background_response_is_retrieved_when_it_is_done(client):
    begun = respond(client, background=True)
    assert begun.status == "queued" and begun.background is True and begun.output == []
    done = until(lambda: (now := client.responses.retrieve(begun.id)).status == "incomplete" and now)
    assert done.output_text == respond(client).output_text
    assert client.responses.cancel(begun.id) == done  # nothing left to cancel
    assert respond(client, "More", previous_response_id=begun.id).output_text


def test_a_background_response_can_be_cancelled(client, engine):
    with held(engine) as gate:
        begun = client.responses.create(input="Say much.", background=True, **LONG)
        gate.let_one_through()
        until(lambda: client.responses.retrieve(begun.id).status == "in_progress")
        with pytest.raises(openai.BadRequestError) as refused:
            respond(client, previous_response_id=begun.id)
        assert "in_progress" in refused.value.message
        assert client.responses.cancel(begun.id).status == "cancelled"
    assert client.responses.retrieve(begun.id).status == "cancelled"
    until(lambda: engine.metrics.value("num_requests_running") == 0)


def test_deleting_a_background_response_gives_it_up(client, engine):
    with held(engine):
        begun = client.responses.create(input="Say much.", background=True, **LONG)
        client.responses.delete(begun.id)
    until(lambda: engine.metrics.value("num_requests_running") == engine.metrics.value("num_requests_waiting") == 0)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(begun.id)


def test_a_background_stream_says_what_any_stream_says(client):
    events = list(respond(client, background=True, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    plain = [event.type for event in respond(client, stream=True)]
    assert kinds[3:] == plain[2:] and kinds[-1] == "response.incomplete"
    assert client.responses.retrieve(events[-1].response.id) == events[-1].response


def test_a_background_stream_that_broke_is_taken_up_where_it_was(client, engine):
    with held(engine) as gate:
        stream = client.responses.create(input="Say much.", background=True, stream=True, **LONG)
        seen = [next(stream), next(stream)]
        gate.let_one_through()
        while seen[-1].type != "response.output_text.delta":
            gate.let_one_through()
            seen.append(next(stream))
        stream.close()  # the client is gone; the response is not
        begun = seen[0].response
        assert begun.status == "queued"
        again = client.responses.retrieve(begun.id, stream=True)
        assert [next(again) for _ in seen] == seen
        again.close()
        going_on = client.responses.retrieve(begun.id, stream=True, starting_after=seen[-1].sequence_number)
    rest = list(going_on)
    assert [e.sequence_number for e in (*seen, *rest)] == list(range(len(seen) + len(rest)))
    assert rest[-1].type == "response.incomplete" and rest[-1].response.usage.output_tokens == 1500
    said = "".join(e.delta for e in (*seen, *rest) if e.type == "response.output_text.delta")
    assert said == client.responses.retrieve(begun.id).output_text
    # Done, it can still be listened to; behind its end there is nothing.
    assert list(client.responses.retrieve(begun.id, stream=True, starting_after=len(seen) - 1)) == rest
    assert list(client.responses.retrieve(begun.id, stream=True, starting_after=10**6)) == []


def test_cancelling_ends_a_background_stream(client, engine):
    with held(engine) as gate:
        stream = client.responses.create(input="Say much.", background=True, stream=True, **LONG)
        begun = next(stream).response
        gate.let_one_through()
        assert client.responses.cancel(begun.id).status == "cancelled"
        last = list(stream)[-1]
    assert last.type == "response.incomplete" and last.response.status == "cancelled"
    until(lambda: engine.metrics.value("num_requests_running") == 0)


def test_a_background_streams_events_count_as_stored_bytes(client, server):
    store = server.app.state.responses
    plain = respond(client, background=True)
    until(lambda: client.responses.retrieve(plain.id).status == "incomplete")
    streamed = list(respond(client, background=True, stream=True))[-1].response
    sizes = [store._entries[name].size for name in (plain.id, streamed.id)]
    assert sizes[1] > sizes[0] + 1000


def test_only_background_responses_can_be_cancelled(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.cancel(respond(client).id)
    assert refused.value.code == "not_cancellable"


# Whose they are ------------------------------------------------------------------------------------------------------


def test_other_keys_do_not_see_them(engine):
    keys = [{"hash": hash_of("first")}, {"hash": hash_of("second")}]
    config = WatchwordConfig(server=ServerConfig.model_validate({"api_keys": keys}))
    with LiveServer(Services(config, engine, None, None, MODEL)) as server:
        first, second = (OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) for key in ("first", "second"))
        answer = respond(first)
        for look in (second.responses.retrieve, second.responses.delete, second.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                look(answer.id)
        with pytest.raises(openai.BadRequestError):
            respond(second, previous_response_id=answer.id)
        assert first.responses.retrieve(answer.id) == answer


# Bounds --------------------------------------------------------------------------------------------------------------


class SetClock:
    """Time as the test says."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


def stored(name: str, size: int = 10, owner: str = "a") -> StoredResponse:
    asked = ResponsesRequest.model_validate({"input": "x"})
    answer = ResponseAnswer("m", asked, SamplingParams(), id=name)
    return StoredResponse(owner, answer.unfinished("completed"), (), size)


def kept(store: ResponseStore, *owners: str) -> set[str]:
    return {entry.response.id for entry in store._entries.values() if not owners or entry.owner in owners}


def test_beyond_the_number_the_oldest_goes():
    store = ResponseStore(2, 1000, 60)
    for name in ("r1", "r2", "r3"):
        store.put(stored(name))
    assert kept(store) == {"r2", "r3"} and store.size == 20


def test_beyond_the_bytes_the_oldest_go():
    store = ResponseStore(100, 100, 60)
    for name in ("r1", "r2", "r3"):
        store.put(stored(name, 40))
    assert kept(store) == {"r2", "r3"} and store.size == 80
    store.put(stored("r2", 5))  # replaced, not added
    assert store.size == 45


def test_beyond_the_age_they_are_forgotten():
    clock = SetClock()
    store = ResponseStore(100, 1000, 60, clock)
    store.put(stored("r1"))
    clock.seconds = 59.0
    assert store.get("r1", "a").size == 10
    clock.seconds = 60.0
    with pytest.raises(Exception, match="not found"):
        store.get("r1", "a")
    assert len(store) == store.size == 0


def test_whoever_has_most_loses_first():
    store = ResponseStore(100, 100, 60)
    store.put(stored("quiet", 10, "b"))
    for number in range(20):
        store.put(stored(f"loud{number}", 20, "a"))
    assert kept(store, "b") == {"quiet"}
    assert kept(store, "a") == {f"loud{number}" for number in range(16, 20)}


def test_a_server_that_stores_nothing_says_so(engine):
    config = WatchwordConfig(server=ServerConfig(stored_responses=0))
    with LiveServer(Services(config, engine, None, None, MODEL)) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
        assert respond(client).store is False
        for fields in ({"store": True}, {"background": True}):
            with pytest.raises(openai.BadRequestError) as refused:
                respond(client, **fields)
            assert "server.stored_responses" in refused.value.message
