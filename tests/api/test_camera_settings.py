"""Adding, changing and removing cameras over the API, with a real store and Valkey."""

from __future__ import annotations

import httpx
import pytest

from pipeline.cli.keys import hash_of
from pipeline.config.overlay import ChangeSet
from pipeline.messages import CameraState
from pipeline.queue import keys
from pipeline.reasons import Reason
from tests.api.conftest import error_of
from tests.api.live_server import LiveServer
from tests.api.station import PASSWORD, Station

NEW = {"id": "gate", "name": "Gate", "url": "rtsp://ann:Gate-s3cret@10.0.0.9:8554/x", "fps": 2}
ADMIN, OPERATOR = "a" * 40, "o" * 40


def ids(operator) -> list[str]:
    return [camera["id"] for camera in operator.get("/api/cameras").json()["cameras"]]


def test_a_camera_is_added_changed_switched_off_and_removed(operator, station):
    added = operator.post("/api/cameras", json=NEW)
    assert added.status_code == 201, added.text
    assert added.headers["location"] == "/api/cameras/gate"
    body = added.json()
    assert (body["id"], body["origin"], body["password_set"], body["stale"]) == ("gate", "api", True, True)
    assert body["settings"] == {"name": "Gate", "url": "rtsp://10.0.0.9:8554/x", "fps": 2, "username": "ann"}
    assert ids(operator) == ["front", "yard", "attic", "gate"]

    changed = operator.patch("/api/cameras/gate", json={"fps": 4, "name": "Back gate"}).json()
    assert (changed["settings"]["fps"], changed["name"], changed["password_set"]) == (4, "Back gate", True)
    off = operator.patch("/api/cameras/gate", json={"enabled": False}).json()
    assert (off["enabled"], off["state"], off["reason"]) == (False, "disabled", Reason.SWITCHED_OFF)

    replaced = operator.put("/api/cameras/gate", json={"url": "rtsp://10.0.0.9:8554/y"}).json()
    assert (replaced["enabled"], replaced["name"], replaced["password_set"]) == (True, "gate", False)

    removed = operator.delete("/api/cameras/gate")
    assert (removed.status_code, removed.content) == (204, b"")
    assert ids(operator) == ["front", "yard", "attic"]
    for method in ("GET", "DELETE"):
        assert operator.request(method, "/api/cameras/gate").status_code == 404
    assert ChangeSet.from_json(station.redis.get(keys.CAMERA_CHANGES)).revision == 5


def test_a_camera_of_the_file_says_what_was_changed_and_can_be_reset(operator):
    changed = operator.patch("/api/cameras/yard", json={"fps": 9}).json()
    assert (changed["origin"], changed["changed"]) == ("file", ["fps"])
    assert operator.delete("/api/cameras/front").status_code == 204
    listed = operator.get("/api/cameras").json()
    assert [camera["id"] for camera in listed["cameras"]] == ["yard", "attic"]
    assert listed["removed"] == ["front"]
    for camera in ("yard", "front"):
        assert operator.post(f"/api/cameras/{camera}/reset").json()["changed"] == []
    assert ids(operator) == ["front", "yard", "attic"]


@pytest.mark.parametrize(
    ("settings", "param", "told"),
    [
        ({**NEW, "fpss": 2}, "fpss", "did you mean 'fps'?"),
        ({**NEW, "fps": "fast"}, "fps", "valid number"),
        ({**NEW, "id": "Not an id"}, "id", "a-z, 0-9"),
        ({**NEW, "id": "../x"}, "id", "a-z, 0-9"),
        ({"url": "rtsp://h/x"}, "id", "missing"),
        ({"id": "gate"}, "url", "missing"),
        ({**NEW, "url": "gopher://h/x"}, "url", "allowed"),
        ({**NEW, "password_file": "/etc/shadow"}, "password_file", "configuration file"),
    ],
)
def test_a_setting_that_is_wrong_is_400_with_its_path(operator, settings, param, told):
    response = operator.post("/api/cameras", json=settings)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == (param, "invalid_camera")
    assert told in error["message"]
    assert "Gate-s3cret" not in response.text
    assert len(ids(operator)) == 3


def test_a_body_that_is_no_settings_is_400(operator):
    for body in (b"", b"[]", b"{", b"5"):
        response = operator.post("/api/cameras", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400, body
        error_of(response)


def test_refusals_say_why(operator):
    again = operator.post("/api/cameras", json={**NEW, "id": "front"})
    assert (again.status_code, error_of(again)["code"]) == (409, "camera_conflict")
    other = operator.patch("/api/cameras/front", json={"id": "gate"})
    assert (other.status_code, error_of(other)["param"]) == (400, "id")
    nobody = operator.put("/api/cameras/nobody", json={"url": "rtsp://h/x"})
    assert (nobody.status_code, error_of(nobody)["code"]) == (404, "camera_not_found")
    theft = operator.patch("/api/cameras/front", json={"url": "rtsp://evil.example/x"})
    assert (theft.status_code, error_of(theft)["param"]) == (400, "password")


def test_r15_no_answer_and_no_log_holds_a_password(operator, station, caplog):
    caplog.set_level("DEBUG")
    operator.post("/api/cameras", json=NEW)
    station.status("gate", CameraState.AUTH_FAILED)
    bad = {"password": "Bad-s3cret", "username": 5}
    answers = [
        operator.patch("/api/cameras/gate", json={"password": "Other-s3cret"}),
        operator.patch("/api/cameras/gate", json=bad),
        operator.put("/api/cameras/gate", json={**NEW, "url": "rtsp://u:Url-s3cret@[bad/x"}),
        operator.post("/api/cameras", json={**NEW, "id": "front"}),
        operator.get("/api/cameras/gate"),
        operator.get("/api/cameras/front"),
        operator.get("/api/cameras"),
        operator.get("/metrics"),
    ]
    assert [answer.status_code for answer in answers] == [200, 400, 400, 409, 200, 200, 200, 200]
    text = caplog.text + "".join(answer.text for answer in answers)
    for secret in ("Gate-s3cret", "Other-s3cret", "Bad-s3cret", "Url-s3cret", PASSWORD):
        assert secret not in text


def test_only_an_admin_changes_cameras_and_sees_their_settings(valkey, tmp_path):
    roles = {ADMIN: "admin", OPERATOR: "operator"}
    station = Station(
        valkey.connection_url,
        tmp_path / "data",
        api_keys=[{"hash": hash_of(key), "roles": [role]} for key, role in roles.items()],
    )
    station.redis.flushall()
    try:
        with LiveServer(station.services) as server, httpx.Client(base_url=server.url, timeout=15) as client:
            requests = [
                ("POST", "/api/cameras", NEW),
                ("PATCH", "/api/cameras/front", {"fps": 2}),
                ("PUT", "/api/cameras/front", {"url": "rtsp://10.0.0.2/x"}),
                ("POST", "/api/cameras/front/reset", None),
                ("DELETE", "/api/cameras/front", None),
            ]
            for method, path, body in [*requests, ("GET", "/api/cameras/front", None)]:
                assert client.request(method, path, json=body).status_code == 401
                key = {"Authorization": f"Bearer {OPERATOR}"}
                refused = client.request(method, path, json=body, headers=key)
                assert (refused.status_code, error_of(refused)["code"]) == (403, "insufficient_role")
            key = {"Authorization": f"Bearer {ADMIN}"}
            answers = [client.request(method, path, json=body, headers=key) for method, path, body in requests]
            assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 204]
    finally:
        station.close()


def test_a_foreign_page_changes_nothing(operator):
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        assert operator.post("/api/cameras", json=NEW, headers=headers).status_code == 403
    form = operator.post("/api/cameras", content=b'{"id": "gate", "url": "rtsp://h/x"}', headers={
        "content-type": "text/plain",
    })  # fmt: skip
    assert form.status_code in (400, 415)
    assert len(ids(operator)) == 3


def test_a_change_is_taken_while_redis_is_away(valkey, tmp_path, free_port):
    station = Station(f"redis://127.0.0.1:{free_port}", tmp_path / "data")
    try:
        with LiveServer(station.services) as server, httpx.Client(base_url=server.url, timeout=30) as client:
            assert client.post("/api/cameras", json=NEW).status_code == 201
        assert "gate" in station.store.cameras.read().cameras
    finally:
        station.close()
