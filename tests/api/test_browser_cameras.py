"""Adding, changing, switching off and removing cameras on the page, in a real browser."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pipeline.cli.keys import hash_of
from pipeline.config.overlay import ChangeSet
from pipeline.messages import CameraState
from pipeline.queue import keys
from pipeline.reasons import Reason
from tests.api.browser import Browser, find_chromium
from tests.api.live_server import LiveServer
from tests.api.station import Station

ADMIN, OPERATOR = "a" * 40, "o" * 40
IDS = "[...document.querySelectorAll('[data-camera].camera')].map((c) => c.dataset.camera).join()"
OPEN = "document.querySelector('#camera-dialog').open"
WRONG = "document.querySelector('#camera-wrong:not([hidden])')?.textContent"


@pytest.fixture
def browser(tmp_path):
    find_chromium()
    with Browser(tmp_path / "profile") as browser:
        yield browser


def fill(browser: Browser, **fields: str) -> None:
    for name, value in fields.items():
        browser.run(f"document.querySelector('#camera-form').elements[{name!r}].value = {value!r}")


def click(browser: Browser, selector: str) -> None:
    browser.run(f"document.querySelector({selector!r}).click()")


def settings_of(browser: Browser, camera: str) -> None:
    click(browser, f"[data-camera={camera}] .settings")
    browser.until(f"{OPEN} && !document.querySelector('#camera-save').disabled")


def shared(station: Station) -> ChangeSet:
    return ChangeSet.from_json(station.redis.get(keys.CAMERA_CHANGES))


def shot(browser: Browser, name: str) -> None:
    """Pictures of the page for people to look at, where WATCHWORD_SHOTS names a folder."""
    if folder := os.environ.get("WATCHWORD_SHOTS"):
        browser.screenshot(Path(folder) / name)


def test_a_camera_is_added_changed_switched_off_and_removed(browser, station):
    station.status("front", fps=4.8, frame_age=0.2, width=1280, height=720)
    station.status("yard", CameraState.UNREACHABLE, reason=Reason.REFUSED)
    with LiveServer(station.services) as server:
        browser.open(server.url)
        browser.until(f"{IDS} === 'front,yard,attic'")
        click(browser, "#camera-add")
        browser.until(OPEN)
        shot(browser, "add.png")

        # What the API refuses is said, in its words, at the field that it is about.
        fill(browser, id="gate", url="rtsp://10.0.0.9/x", username="ann", password="Gate-s3cret", fps="2")
        fill(browser, rest='{"idle_aftr_s": 20}')
        click(browser, "#camera-save")
        browser.until(f"{WRONG} === \"idle_aftr_s: unknown key; did you mean 'idle_after_s'?\"")
        assert browser.run("document.activeElement.name") == "rest"
        shot(browser, "refused.png")
        fill(browser, rest='{"idle_after_s": 20')
        click(browser, "#camera-save")
        browser.until(f"{WRONG}?.startsWith('More settings:')")
        fill(browser, rest='{"idle_after_s": 20}')
        click(browser, "#camera-save")
        browser.until(f"!{OPEN} && {IDS} === 'front,yard,attic,gate'")
        gate = shared(station).cameras["gate"]
        assert gate.settings == {
            "idle_after_s": 20, "url": "rtsp://10.0.0.9/x", "username": "ann", "password": "Gate-s3cret", "fps": 2,
        }  # fmt: skip

        # Its settings come back without the password, which stays; only what was changed is sent.
        settings_of(browser, "gate")
        values = "Object.fromEntries(new FormData(document.querySelector('#camera-form')))"
        form = browser.run(values)
        assert (form["url"], form["password"], json.loads(form["rest"])) == (
            "rtsp://10.0.0.9/x", "", {"idle_after_s": 20},
        )  # fmt: skip
        assert browser.run("document.querySelector('#camera-form').elements.password.placeholder") == "unchanged"
        shot(browser, "change.png")
        fill(browser, name="Back gate", rest="")
        browser.run("document.querySelector('#camera-form').elements.enabled.checked = false")
        click(browser, "#camera-save")
        browser.until("document.querySelector('[data-camera=gate] .camera-name')?.textContent === 'Back gate'")
        browser.until("document.querySelector('[data-camera=gate] .placeholder').textContent === 'Switched off'")
        gate = shared(station).cameras["gate"]
        assert gate.settings["password"] == "Gate-s3cret"
        assert "idle_after_s" not in gate.settings

        # A camera of the file: what was changed is told and can be taken back.
        settings_of(browser, "yard")
        fill(browser, fps="9")
        click(browser, "#camera-save")
        browser.until(f"!{OPEN}")
        assert shared(station).cameras["yard"].settings == {"fps": 9}
        settings_of(browser, "yard")
        told = browser.run("document.querySelector('#camera-origin').textContent")
        assert told == "From the configuration file; changed here: fps."
        click(browser, "#camera-reset")
        browser.until(f"!{OPEN}")
        assert "yard" not in shared(station).cameras

        # Removing asks twice; one of the file can be brought back.
        settings_of(browser, "front")
        click(browser, "#camera-remove")
        assert browser.run("document.querySelector('#camera-remove').textContent") == "Really remove"
        click(browser, "#camera-remove")
        browser.until(f"{IDS} === 'yard,attic,gate'")
        shot(browser, "removed.png")
        click(browser, "[data-back=front]")
        browser.until(f"{IDS} === 'yard,attic,gate,front' || {IDS} === 'front,yard,attic,gate'")
        assert all("400" in error for error in browser.errors), browser.errors
        browser.resize(360, 740, mobile=True)
        click(browser, "#camera-add")
        browser.until(OPEN)
        assert browser.run("document.documentElement.scrollWidth") <= 360
        shot(browser, "phone.png")


def test_with_keys_it_takes_an_admins(browser, valkey, tmp_path):
    """The page signs in with a key that may only look on; the change says so and takes another key."""
    roles = {ADMIN: "admin", OPERATOR: "operator"}
    station = Station(
        valkey.connection_url,
        tmp_path / "data",
        api_keys=[{"hash": hash_of(key), "roles": [role]} for key, role in roles.items()],
    )
    station.redis.flushall()

    def sign_in(key: str) -> None:
        browser.until("document.querySelector('#sign-in').open")
        browser.run(f"document.querySelector('#key').value = {key!r}")
        click(browser, "#sign-in button[type=submit]")
        browser.until("!document.querySelector('#sign-in').open")

    try:
        with LiveServer(station.services) as server:
            browser.open(server.url)
            sign_in(OPERATOR)
            browser.until(f"{IDS} === 'front,yard,attic'")
            click(browser, "#camera-add")
            fill(browser, id="gate", url="rtsp://10.0.0.9/x")
            click(browser, "#camera-save")
            browser.until(f"{WRONG} === \"This API key does not have the role 'admin'.\"")
            click(browser, "#camera-other-key")
            sign_in(ADMIN)
            click(browser, "#camera-save")
            browser.until(f"!{OPEN} && {IDS} === 'front,yard,attic,gate'")
            kept = browser.run("JSON.stringify([Object.entries(localStorage), Object.entries(sessionStorage)])")
            assert ADMIN not in kept + browser.run("document.cookie")
    finally:
        station.close()
