"""The cameras in force: the file's, and over them what the API changed."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pipeline.config import CameraConfig
from pipeline.config.overlay import CameraChange, ChangeSet, MalformedChanges, in_force, plain_settings

DOOR = CameraConfig(id="door", name="Door", url="rtsp://ann:s%40cret@10.0.0.2/x", fps=3, tls_ca_file="/ca.pem")
YARD = CameraConfig(id="yard", url="rtsp://10.0.0.3/x")


def test_a_change_lies_over_the_file_key_by_key():
    found = in_force([DOOR, YARD], {"door": CameraChange({"fps": 8.0, "enabled": False})})
    door = found.find("door")
    assert door is not None
    assert (door.config.fps, door.config.enabled, door.config.name, door.in_file) == (8.0, False, "Door", True)
    assert door.changed == ("enabled", "fps")
    assert found.cameras[1].config == YARD


def test_a_whole_change_stands_alone_but_for_the_files_that_only_the_file_may_name():
    found = in_force([DOOR], {"door": CameraChange({"url": "rtsp://10.0.0.9/y"}, whole=True)}).configs[0]
    assert (found.name, found.fps, found.username) == ("", 5.0, None)
    assert str(found.tls_ca_file) == "/ca.pem"


def test_a_login_in_the_url_becomes_fields_and_is_the_same_login():
    plain = plain_settings(DOOR)
    assert (plain["url"], plain["username"], plain["password"]) == ("rtsp://10.0.0.2/x", "ann", "s@cret")
    changed = in_force([DOOR], {"door": CameraChange({"url": "rtsp://10.0.0.2/other"})}).configs[0]
    assert changed.source == "rtsp://ann:s%40cret@10.0.0.2/other"


def test_added_cameras_come_after_the_files_and_may_be_left_to_another_ingest():
    changes = {
        "b": CameraChange({"url": "rtsp://h/b"}, whole=True),
        "a": CameraChange({"url": "rtsp://h/a"}, whole=True),
    }
    assert [camera.id for camera in in_force([YARD], changes).configs] == ["yard", "a", "b"]
    assert [camera.id for camera in in_force([YARD], changes, with_added=False).configs] == ["yard"]


def test_a_removed_camera_stays_away_and_a_change_to_none_adds_none():
    found = in_force([DOOR, YARD], {"door": CameraChange(removed=True), "gone": CameraChange({"fps": 2})})
    assert [camera.id for camera in found.configs] == ["yard"]
    assert found.removed == ("door",)


def test_a_change_that_no_longer_fits_costs_its_own_camera_at_most():
    changes = {
        "door": CameraChange({"fpss": 2}),
        "new": CameraChange({"fps": 2, "password": "S3cret-word", "username": "u"}, whole=True),
    }
    found = in_force([DOOR, YARD], changes)
    assert found.configs == (DOOR, YARD)
    assert found.problems["door"] == "fpss: unknown key; did you mean 'fps'?"
    assert found.problems["new"].startswith("url is missing")
    assert "S3cret" not in str(found.problems)


def test_a_password_takes_the_place_of_a_password_file():
    base = CameraConfig(id="door", url="rtsp://h/x", username="u", password_file="/run/secrets/door")
    found = in_force([base], {"door": CameraChange({"password": "new one"})}).configs[0]
    assert found.source == "rtsp://u:new%20one@h/x"


def test_changes_go_through_json():
    changes = ChangeSet(7, {"a": CameraChange({"url": "rtsp://h/ü"}, whole=True), "b": CameraChange(removed=True)})
    assert ChangeSet.from_json(changes.to_json()) == changes
    quiet = ChangeSet(8, {"a": CameraChange()})
    assert ChangeSet.from_json(quiet.to_json()) == ChangeSet(8, {})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"revision": 1}', '{"revision": 1, "cameras": {"a": 5}}', b"\xff"])
def test_nonsense_is_no_set_of_changes(text):
    with pytest.raises(MalformedChanges):
        ChangeSet.from_json(text)


def test_the_password_file_is_read_when_it_is_needed(tmp_path):
    secret = tmp_path / "secret"
    camera = CameraConfig(id="a", url="rtsp://h/x", username="u", password_file=secret)
    with pytest.raises(OSError):
        _ = camera.source
    secret.write_text("first\n")
    assert camera.source == "rtsp://u:first@h/x"
    secret.write_text("second")
    assert camera.source == "rtsp://u:second@h/x"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"username": "u", "password": "p", "password_file": "/x"}, "not both"),
        ({"password": "p"}, "needs a username"),
    ],
)
def test_passwords_that_would_not_be_used_are_refused(settings, told):
    with pytest.raises(ValidationError, match=told):
        CameraConfig(id="a", url="rtsp://h/x", **settings)
