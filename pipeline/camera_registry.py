"""The cameras as serve knows them: the configuration file's, and over them what the API changed.

The changes are kept in SQL and handed to ingest as a whole, as a document in Redis that is compared every few seconds
and written again where it is missing or another one: so it doesn't matter which side starts first, which restarts, or
whether Redis was flushed. Several serve processes may share one database.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr, ValidationError
from sqlalchemy.exc import SQLAlchemyError

from pipeline.config import CameraConfig
from pipeline.config.camera import SCHEMES
from pipeline.config.file_watch import ConfigFile
from pipeline.config.load import register_camera_secrets
from pipeline.config.overlay import (
    FILE_FIELDS,
    CameraChange,
    CameraInForce,
    CamerasInForce,
    ChangeSet,
    MalformedChanges,
    apply_change,
    in_force,
    plain_settings,
    problem_texts,
    without_login,
)
from pipeline.logs import ThrottledLogger
from pipeline.queue.health import QueueUnavailable, checkpoint
from pipeline.queue.hub import CameraHub
from pipeline.redaction import redact
from pipeline.store.cameras import CameraChanges, Revise

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between two looks at the file."""
SHARE_EVERY = 3
"""Looks at the file for each look at SQL and Redis."""
MAX_CAMERAS = 1000
MAX_SETTINGS_BYTES = 64 * 1024
_URLS = ("url", "substream_url")


class UnknownCamera(LookupError):
    """No camera of that id is in force here."""


class CameraConflict(ValueError):
    """What is asked for doesn't go with the cameras as they are; the text says why."""


class InvalidSettings(ValueError):
    """``problems``: ``(path, text)`` of each thing that is wrong, without secrets."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(text for _, text in problems))
        self.problems = tuple(problems)


class CameraRegistry:
    """For one event loop. Methods that change something return when SQL has it; ingest hears of it at once, or when
    Redis is back. They raise ``SQLAlchemyError`` and the errors above."""

    def __init__(
        self,
        cameras: Sequence[CameraConfig],
        changes: CameraChanges,
        hub: CameraHub,
        file: ConfigFile | None = None,
    ) -> None:
        """``cameras``: the file's, as they are now. Reads SQL, so it blocks for a moment."""
        self._file_cameras = tuple(cameras)
        self._store = changes
        self._hub = hub
        self._file = file
        self._changes = ChangeSet()
        self._failures = ThrottledLogger(log)
        self._reload_now = False
        self._sharing = asyncio.Lock()  # what is shared later is never older
        self._ahead: bytes | None = None
        self._told: Mapping[str, str] = {}
        self.now = CamerasInForce()
        """The cameras in force."""
        self._adopt(changes.read())

    @property
    def problem(self) -> str | None:
        """What is wrong with the configuration file since its last good version, with the line; None: nothing."""
        return self._file.problem if self._file is not None else None

    def config_of(self, camera: str) -> CameraConfig | None:
        """The settings in force, for the describer; None for a camera that isn't known here."""
        found = self.now.find(camera)
        return found.config if found is not None else None

    async def add(self, given: Mapping[str, Any]) -> CameraInForce:
        """A new camera from its settings, ``id`` among them."""
        camera = given.get("id")
        if not isinstance(camera, str):
            raise InvalidSettings([("id", "id is missing (a-z, 0-9, _ and -, at most 64)")])

        def work(_: CameraChange, changes: ChangeSet) -> CameraChange:
            there = in_force(self._file_cameras, changes.cameras)
            if there.find(camera) is not None:
                raise CameraConflict(f"There is a camera '{camera}' already; PUT or PATCH changes it.")
            if len(there.cameras) >= MAX_CAMERAS:
                raise CameraConflict(f"There are {MAX_CAMERAS} cameras, the bound.")
            change = CameraChange(_cleaned(given, None), whole=True)
            self._validate(camera, change)
            return change

        await self._revise(camera, work)
        return self._found(camera)

    async def replace(self, camera: str, given: Mapping[str, Any]) -> CameraInForce:
        """New settings in place of all there are. A password can't be read back, so one that isn't given stays as long
        as the user name does."""

        def work(_: CameraChange, changes: ChangeSet) -> CameraChange:
            current = self._current(camera, changes)
            settings = _cleaned(given, current.config)
            before = plain_settings(current.config)
            if "password" not in settings and settings.get("username") == before.get("username") is not None:
                password = before.get("password")
                if isinstance(password, SecretStr | str):
                    settings["password"] = _plain(password)
                    _refuse_other_host(settings, before)
            change = CameraChange(settings, whole=True)
            self._validate(camera, change)
            return change

        await self._revise(camera, work)
        return self._found(camera)

    async def change(self, camera: str, given: Mapping[str, Any]) -> CameraInForce:
        """Sets the given keys and leaves the others."""

        def work(old: CameraChange, changes: ChangeSet) -> CameraChange:
            current = self._current(camera, changes)
            settings = _cleaned(given, current.config)
            before = plain_settings(current.config)
            if "password" not in settings and (before.get("password") or before.get("password_file")):
                _refuse_other_host({**before, **settings}, before)
            change = replace(old, settings={**old.settings, **settings})
            self._validate(camera, change)
            return change

        await self._revise(camera, work)
        return self._found(camera)

    async def remove(self, camera: str) -> None:
        """The camera isn't watched any more; what it saw stays."""

        def work(_: CameraChange, changes: ChangeSet) -> CameraChange:
            return CameraChange(removed=self._current(camera, changes).in_file)

        await self._revise(camera, work)

    async def reset(self, camera: str) -> CameraInForce:
        """Forgets what the API changed: the file's settings hold again, also of one that was removed."""

        def work(_: CameraChange, changes: ChangeSet) -> CameraChange:
            if not any(known.id == camera for known in self._file_cameras):
                self._current(camera, changes)
                raise CameraConflict(f"Camera '{camera}' is not in the configuration file; DELETE removes it.")
            return CameraChange()

        await self._revise(camera, work)
        return self._found(camera)

    def reload_file(self) -> None:
        """Has the configuration file read at the next look, changed or not. May be called by a signal handler."""
        self._reload_now = True

    async def keep(self) -> None:
        """Follows the file and the other serve processes, and sees to it that ingest has the changes. Without end."""
        look = 0
        while True:
            checkpoint()
            if self._file is not None:
                await self._look_at_file(self._file)
            if look % SHARE_EVERY == 0:
                await self._share()
            look += 1
            await asyncio.sleep(LOOK_S)

    async def _look_at_file(self, file: ConfigFile) -> None:
        wanted, self._reload_now = self._reload_now, False
        if await asyncio.to_thread(file.reload if wanted else file.poll):
            self._file_cameras = file.config.cameras
            self._take_effect()

    async def _share(self) -> None:
        try:
            self._adopt(await asyncio.to_thread(self._store.read))
            async with self._sharing:
                await self._share_if_other()
        except QueueUnavailable:
            pass  # the hub's log has it; the next look tries again
        except SQLAlchemyError as error:
            name = type(error).__name__
            self._failures.log(logging.WARNING, name, "cameras: the database can't be read (%s)", name)

    async def _share_if_other(self) -> None:
        shared = await self._hub.shared_camera_changes()
        text = self._changes.to_json()  # as they are now: an answer may have changed them meanwhile
        if shared == text.encode():
            return
        if shared is not None and shared != self._ahead and _revision(shared) > self._changes.revision:
            # Another serve was faster. If it is so at the next look too, then it is from another database.
            self._ahead = shared
            return
        await self._hub.share_camera_changes(text)

    async def _revise(self, camera: str, work: Revise) -> None:
        self._adopt(await asyncio.to_thread(self._store.revise, camera, work))
        log.info("camera %s: changed over the API", camera)
        try:
            async with self._sharing:
                await self._hub.share_camera_changes(self._changes.to_json())
        except QueueUnavailable:
            log.warning("camera %s: ingest hears of the change when Redis is back", camera)

    def _found(self, camera: str) -> CameraInForce:
        found = self.now.find(camera)
        if found is None:
            raise UnknownCamera(camera)
        return found

    def _adopt(self, changes: ChangeSet) -> None:
        if changes.revision < self._changes.revision:
            return  # read before a change that is known already
        self._changes = changes
        self._take_effect()

    def _take_effect(self) -> None:
        self.now = in_force(self._file_cameras, self._changes.cameras)
        register_camera_secrets(self.now.configs)
        for camera, text in self.now.problems.items():
            if self._told.get(camera) != text:
                log.error("camera %s: what the API changed is not in force: %s", camera, text)
        self._told = self.now.problems

    def _current(self, camera: str, changes: ChangeSet) -> CameraInForce:
        found = in_force(self._file_cameras, changes.cameras).find(camera)
        if found is None:
            raise UnknownCamera(camera)
        return found

    def _validate(self, camera: str, change: CameraChange) -> None:
        base = next((known for known in self._file_cameras if known.id == camera), None)
        try:
            register_camera_secrets([apply_change(camera, base, change)])
        except ValidationError as error:
            raise InvalidSettings(problem_texts(error)) from None


def _revision(shared: bytes) -> int:
    try:
        return ChangeSet.from_json(shared).revision
    except MalformedChanges:
        return -1


def shown_settings(camera: CameraConfig) -> dict[str, Any]:
    """What the API shows of the camera's settings: those that were set, URLs without credentials, never a password."""
    shown: dict[str, Any] = {}
    plain = CameraConfig.model_validate(plain_settings(camera))
    for key, value in plain.model_dump(mode="json", exclude_unset=True).items():
        if key not in ("id", "password"):
            shown[key] = redact(value) if key in _URLS and value is not None else value
    return shown


def _cleaned(given: Mapping[str, Any], current: CameraConfig | None) -> dict[str, Any]:
    """What a client sent, with nothing in it that the API may not set. Raises InvalidSettings."""
    _refuse_unstorable(given)
    settings = {key: value for key, value in given.items() if key != "id"}
    shown = shown_settings(current) if current is not None else {}
    before = plain_settings(current) if current is not None else {}
    problems = [
        (key, f"{key} names a file of the machine that runs ingest: only the configuration file may set it")
        for key in FILE_FIELDS
        if settings.get(key) is not None and settings[key] != shown.get(key)
    ]
    for key in FILE_FIELDS:
        settings.pop(key, None)
    for key in _URLS:
        url = settings.get(key)
        if not isinstance(url, str):
            continue
        if url == shown.get(key):
            settings[key] = before[key]  # sent back as it was shown, which may be without a secret of its query
        elif "***" in url:
            problems.append((key, f"{key} holds *** in place of a secret: give all of it, or leave the key out"))
        elif _scheme(url) not in SCHEMES:
            problems.append(
                (key, f"{key}: allowed here are {', '.join(SCHEMES)}; files and webcams in the configuration file only")
            )
    if problems:
        raise InvalidSettings(problems)
    return without_login(settings)


def _scheme(url: str) -> str:
    """In lower case; empty for what is no URL."""
    try:
        return urlsplit(url).scheme.lower()
    except ValueError:
        return ""


def _refuse_unstorable(given: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(given, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except ValueError:  # NaN and infinity, and half of a surrogate pair
        raise InvalidSettings([("", "the settings hold a number or a character that can't be stored")]) from None
    if "\\u0000" in text:
        raise InvalidSettings([("", "the settings hold the character U+0000, which can't be stored")])
    if size > MAX_SETTINGS_BYTES:
        raise InvalidSettings([("", f"the settings take {size} bytes, allowed are {MAX_SETTINGS_BYTES}")])


def _refuse_other_host(after: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """A password that isn't given anew is never sent to a host that it wasn't given for."""
    known = {_host(before.get(key)) for key in _URLS}
    for key in _URLS:
        host = _host(after.get(key))
        if host is not None and host not in known:
            text = f"password: {key} names another host or scheme, so it must be given again, or be null"
            raise InvalidSettings([("password", text)])


def _host(url: Any) -> tuple[str, str | None] | None:
    """Encryption and host of a URL; the port may change."""
    if not isinstance(url, str):
        return None
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.hostname


def _plain(secret: SecretStr | str) -> str:
    return secret.get_secret_value() if isinstance(secret, SecretStr) else secret
