"""Which cameras there are, as serve knows them: SQL, the file, and what ingest gets to see."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest

from pipeline.camera_registry import CameraConflict, CameraRegistry, InvalidSettings, UnknownCamera, shown_settings
from pipeline.config import CameraConfig
from pipeline.config.file_watch import ConfigFile
from pipeline.config.load import load_config
from pipeline.config.overlay import CameraChange, ChangeSet
from pipeline.messages import CommandKind
from pipeline.queue import keys
from pipeline.queue.commands import CommandReader
from pipeline.queue.hub import CameraHub
from pipeline.store import EventStore
from tests.pipeline.waiting import until

DOOR = CameraConfig(id="door", name="Door", url="rtsp://10.0.0.2/x", username="ann", password="S3cret-word", fps=3)


@asynccontextmanager
async def registry_on(store, redis_url, redis_config, file=None, cameras=(DOOR,)):
    hub = CameraHub(redis_url, redis_config)
    registry = CameraRegistry(cameras, store.cameras, hub, file)
    keeping = asyncio.create_task(registry.keep())
    try:
        yield registry
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping
        await hub.close()


def shared(client) -> ChangeSet | None:
    text = client.get(keys.CAMERA_CHANGES)
    return ChangeSet.from_json(text) if text is not None else None


async def test_a_change_is_in_sql_in_redis_and_told(store, client, redis_url, redis_config):
    commands = CommandReader(client)
    async with registry_on(store, redis_url, redis_config) as registry:
        found = await registry.add({"id": "yard", "url": "rtsp://u:hidden-one@10.0.0.3/x", "fps": 2})
        assert (found.config.source, found.in_file) == ("rtsp://u:hidden-one@10.0.0.3/x", False)
        changes = store.cameras.read()
        assert changes.cameras["yard"].settings["password"] == "hidden-one"
        assert shared(client) == changes
        assert CommandKind.CAMERAS in [command.kind for command in commands.read(block_ms=1000)]
        assert b"hidden-one" not in b"".join(v for _, f in client.xrange(keys.COMMANDS) for v in f.values())


async def test_changes_survive_a_restart_of_serve(store, redis_url, redis_config, tmp_path):
    async with registry_on(store, redis_url, redis_config) as registry:
        await registry.change("door", {"enabled": False, "password": "another one"})
        await registry.add({"id": "yard", "url": "rtsp://10.0.0.3/x"})
    again = EventStore(store_config_of(tmp_path))
    async with registry_on(again, redis_url, redis_config) as registry:
        assert [camera.id for camera in registry.now.configs] == ["door", "yard"]
        assert registry.now.configs[0].source == "rtsp://ann:another%20one@10.0.0.2/x"
        assert not registry.now.configs[0].enabled
    again.close()


def store_config_of(tmp_path):
    from pipeline.config.engine import StoreConfig

    return StoreConfig(data_dir=tmp_path / "data")


async def test_a_flushed_redis_gets_the_changes_again(store, client, redis_url, redis_config):
    async with registry_on(store, redis_url, redis_config) as registry:
        await registry.change("door", {"fps": 7})
        client.flushall()
        await until(lambda: shared(client) is not None, 20)
        assert shared(client).cameras["door"].settings == {"fps": 7}


async def test_what_another_serve_changed_comes_into_force_here(store, client, redis_url, redis_config):
    async with (
        registry_on(store, redis_url, redis_config) as ours,
        registry_on(store, redis_url, redis_config) as theirs,
    ):
        await asyncio.gather(theirs.change("door", {"fps": 9}), ours.change("door", {"name": "Front"}))
        await until(lambda: ours.now.configs[0].fps == 9 and theirs.now.configs[0].name == "Front", 20)
        await until(lambda: shared(client) == store.cameras.read(), 20)


async def test_a_change_while_redis_is_away_is_kept(store, redis_config, free_port):
    async with registry_on(store, f"redis://127.0.0.1:{free_port}", redis_config) as registry:
        found = await registry.change("door", {"fps": 7})
    assert found.config.fps == 7
    assert store.cameras.read().cameras["door"] == CameraChange({"fps": 7})


async def test_removed_added_and_reset(store, redis_url, redis_config):
    async with registry_on(store, redis_url, redis_config) as registry:
        await registry.remove("door")
        assert registry.now.removed == ("door",)
        with pytest.raises(UnknownCamera):
            await registry.remove("door")
        with pytest.raises(UnknownCamera):
            await registry.change("door", {"fps": 2})
        await registry.add({"id": "door", "url": "rtsp://10.0.0.9/y"})
        with pytest.raises(CameraConflict, match="already"):
            await registry.add({"id": "door", "url": "rtsp://10.0.0.9/y"})
        found = await registry.reset("door")
        assert (found.config, found.changed) == (DOOR, ())

        await registry.add({"id": "yard", "url": "rtsp://10.0.0.3/x"})
        with pytest.raises(CameraConflict, match="DELETE"):
            await registry.reset("yard")
        await registry.remove("yard")
        assert store.cameras.read().cameras["yard"].says_nothing, "an id that the file may use some day"


async def test_replacing_forgets_all_but_the_password(store, redis_url, redis_config):
    async with registry_on(store, redis_url, redis_config) as registry:
        found = await registry.replace("door", {"url": "rtsp://10.0.0.2/other", "username": "ann"})
        assert (found.config.source, found.config.fps) == ("rtsp://ann:S3cret-word@10.0.0.2/other", 5)
        found = await registry.replace("door", {"url": "rtsp://10.0.0.2/other"})
        assert found.config.source == "rtsp://10.0.0.2/other"


async def test_a_kept_password_goes_to_no_other_host(store, redis_url, redis_config):
    """Who may change a camera but not read its password must not have it sent to a server of their own."""
    async with registry_on(store, redis_url, redis_config) as registry:
        for settings in (
            {"url": "rtsp://evil.example/x"},
            {"substream_url": "rtsp://evil.example/x"},
            {"url": "http://10.0.0.2/x"},
        ):
            with pytest.raises(InvalidSettings, match="must be given again"):
                await registry.change("door", settings)
            with pytest.raises(InvalidSettings, match="must be given again"):
                await registry.replace("door", {"url": DOOR.url, "username": "ann", **settings})
        found = await registry.change("door", {"url": "rtsp://evil.example/x", "password": "theirs"})
        assert found.config.source == "rtsp://ann:theirs@evil.example/x"


@pytest.mark.parametrize(
    ("settings", "path", "told"),
    [
        ({"fpss": 2}, "fpss", "did you mean 'fps'?"),
        ({"fps": -1}, "fps", "must be greater than 0"),
        ({"schedule": {"timezone": "UTC", "windows": [{"start": "9"}]}}, "schedule.windows[0].start", "time of day"),
        ({"url": "file:///etc/passwd"}, "url", "configuration file only"),
        ({"url": "/etc/passwd"}, "url", "configuration file only"),
        ({"url": "webcam:0"}, "url", "configuration file only"),
        ({"url": "rtsp://***@10.0.0.2/x"}, "url", "in place of a secret"),
        ({"url": None}, "url", "text"),
        ({"password_file": "/etc/shadow"}, "password_file", "only the configuration file"),
        ({"tls_ca_file": "/etc/shadow"}, "tls_ca_file", "only the configuration file"),
        ({"fps": float("nan")}, "", "can't be stored"),
        ({"name": "\ud800"}, "", "can't be stored"),
        ({"name": "a\0b"}, "", "can't be stored"),
        ({"username": "u" * 100_000}, "", "allowed are 65536"),
    ],
)
async def test_what_is_not_taken_changes_nothing(store, redis_url, redis_config, settings, path, told):
    async with registry_on(store, redis_url, redis_config) as registry:
        with pytest.raises(InvalidSettings) as refused:
            await registry.change("door", settings)
        assert refused.value.problems[0][0] == path
        assert told in str(refused.value)
        assert registry.now.configs == (DOOR,)
    assert store.cameras.read() == ChangeSet()


async def test_settings_can_be_sent_back_as_they_were_shown(store, redis_url, redis_config):
    secret = CameraConfig(
        id="door", url="rtsp://ann:S3cret-word@10.0.0.2/x?password=S3cret-two", tls_ca_file="/ca.pem", fps=2
    )
    async with registry_on(store, redis_url, redis_config, cameras=(secret,)) as registry:
        shown = shown_settings(registry.now.configs[0])
        assert "S3cret" not in str(shown)
        found = await registry.replace("door", {**shown, "fps": 4})
        assert found.config.source == "rtsp://ann:S3cret-word@10.0.0.2/x?password=S3cret-two"
        assert (str(found.config.tls_ca_file), found.config.fps) == ("/ca.pem", 4)


async def test_the_file_is_followed(store, redis_url, redis_config, tmp_path):
    path = tmp_path / "watchword.yaml"
    path.write_text("cameras:\n  - id: door\n    url: rtsp://10.0.0.2/x\n")
    config = load_config(path)
    file = ConfigFile(path, config)
    async with registry_on(store, redis_url, redis_config, file, config.cameras) as registry:
        await registry.change("door", {"fps": 9})
        path.write_text(path.read_text() + "    name: Front\n  - id: yard\n    url: rtsp://10.0.0.3/x\n")
        await until(lambda: registry.now.find("yard") is not None, 20)
        door = registry.now.configs[0]
        assert (door.name, door.fps) == ("Front", 9), "the file's news, and what the API set"
        path.write_text("cameras: 5\n")
        await until(lambda: registry.problem is not None, 20)
        assert "line 1" in registry.problem
        assert len(registry.now.cameras) == 2


async def test_the_describer_asks_the_cameras_own_question(store, redis_url, redis_config):
    async with registry_on(store, redis_url, redis_config) as registry:
        assert registry.config_of("door").prompt is None
        await registry.change("door", {"prompt": "What do they carry?"})
        assert registry.config_of("door").prompt == "What do they carry?"
        assert registry.config_of("nobody") is None
