"""Pictures in a bucket: a real S3 server (moto's) over HTTP, the store and its retention over it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pipeline.clock import SystemClock
from pipeline.config.engine import StoreConfig
from pipeline.config.load import ConfigProblem, load_config
from pipeline.config.retention import RetentionConfig
from pipeline.messages import CropKind, TrackPhase
from pipeline.store import EventStore, View
from pipeline.store.crop_files import GRACE_S
from pipeline.store.crop_objects import CropObjects
from tests.pipeline.material import crop_of, jpeg_of, track_of

URL = "s3://watchword-test/some/crops"


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, found as any AWS client finds it."""
    import boto3

    settings = {"ENDPOINT_URL": s3_url, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    client = boto3.client("s3")
    client.create_bucket(Bucket="watchword-test")
    listed = client.list_objects_v2(Bucket="watchword-test").get("Contents", [])
    for entry in listed:
        client.delete_object(Bucket="watchword-test", Key=entry["Key"])
    return URL


@pytest.fixture
def store(bucket: str, tmp_path) -> Iterator[EventStore]:
    opened = EventStore(StoreConfig(data_dir=tmp_path / "data", crops_url=bucket))
    yield opened
    opened.close()


@pytest.fixture
def hours_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object's age can't be set from outside: the clock that it is compared with goes ahead."""
    monkeypatch.setattr("pipeline.store.crop_objects.time.time", lambda real=time.time: real() + GRACE_S + 3600)


def keys_in_bucket() -> list[str]:
    import boto3

    listed = boto3.client("s3").list_objects_v2(Bucket="watchword-test")
    return [entry["Key"] for entry in listed.get("Contents", [])]


def test_pictures_are_kept_by_content_and_read_back(bucket):
    pictures = CropObjects(bucket)
    one = pictures.add(jpeg_of(40))
    assert pictures.add(jpeg_of(40)) == one
    assert keys_in_bucket() == [f"some/crops/{one.sha256[:2]}/{one.sha256}.jpg"]
    assert pictures.read(one.sha256) == jpeg_of(40)
    assert (pictures.size(one.sha256), pictures.read("0" * 64), pictures.size("0" * 64)) == (one.size, None, None)
    assert pictures.folders() == [one.sha256[:2]]


def test_an_event_with_its_pictures_lives_and_goes_with_retention(store, tmp_path, monkeypatch):
    store.apply_track(track_of(TrackPhase.END, final_crop=True))
    store.add_crop(crop_of("f", kind=CropKind.FINAL), jpeg_of(80), (View(jpeg_of(40), 3), View(jpeg_of(160), 12)))
    store.fail_description("f", reason_of_test(), expired=True)
    names = store.pictures("front.a-1")
    assert [store.picture("front.a-1", name) for name in names] == [jpeg_of(40), jpeg_of(80), jpeg_of(160)]
    assert store.read_picture(store.crop("front.a-1")) == jpeg_of(80)
    assert store.crop_path("front.a-1") is None
    assert not (tmp_path / "data" / "crops").exists()

    later = SystemClock().now() + 100 * 86_400
    [doomed] = store.pruner.plan(RetentionConfig(days=30, max_gib=None), later)
    assert doomed.bytes == sum(len(jpeg_of(colour)) for colour in (40, 80, 160))
    assert store.pruner.delete([doomed.id], later).bytes == 0, "young ones stay: a row may just be being written"
    assert len(keys_in_bucket()) == 3
    monkeypatch.setattr("pipeline.store.crop_objects.time.time", lambda: later)
    for strays in list(store.pruner.orphans()):
        store.pruner.delete_orphans(strays)
    assert keys_in_bucket() == []


def reason_of_test():
    from pipeline.reasons import Reason

    return Reason.DEADLINE


def test_r69_only_what_no_event_names_goes(store, bucket, hours_later):
    store.add_crop(crop_of("e"), jpeg_of(40), (View(jpeg_of(80)),))
    stray = CropObjects(bucket).add(jpeg_of(160))
    found = [file for files in store.pruner.orphans() for file in files]
    assert [file.sha256 for file in found] == [stray.sha256]
    assert store.pruner.delete_orphans(found) == stray.size
    assert len(keys_in_bucket()) == 2


def test_what_an_event_names_by_now_stays(store, bucket, hours_later):
    CropObjects(bucket).add(jpeg_of(40))
    found = [file for files in store.pruner.orphans() for file in files]
    store.add_crop(crop_of("e"), jpeg_of(40))
    assert store.pruner.delete_orphans(found) == 0
    assert store.read_picture(store.crop("front.a-1")) == jpeg_of(40)


def test_a_service_that_is_away_or_refuses_is_an_oserror_that_the_describer_waits_for(bucket, monkeypatch):
    CropObjects(bucket).try_out()
    with pytest.raises(OSError):
        CropObjects("s3://no-such-bucket/x").try_out()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(OSError):
        CropObjects(bucket).add(jpeg_of())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("gs://bucket/x", "only s3:// is supported"),
        ("/data/crops", "only s3:// is supported"),
        ("s3://key:word@bucket/x", "no keys in the URL"),
        ("s3://", "'' is no name of a bucket"),
        ("s3://A_B/x", "'A_B' is no name of a bucket"),
    ],
)
def test_a_url_that_is_none_is_refused_with_the_reason(tmp_path, url, said):
    path = tmp_path / "watchword.yaml"
    path.write_text(f"store: {{crops_url: '{url}'}}")
    with pytest.raises(ConfigProblem) as caught:
        load_config(path, {})
    assert said in str(caught.value) and "word@" not in str(caught.value)
