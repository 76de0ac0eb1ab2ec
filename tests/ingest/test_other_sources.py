"""Sources besides plain RTSP: HTTP MJPEG, webcams, rtsps."""

from __future__ import annotations

import io
import ssl
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from ingest.demo_camera import DemoCamera
from ingest.source import SourceKind, device_of, file_of, kind_of
from ingest.stream_errors import StreamError
from ingest.webcam import WebcamStream
from pipeline.config import CameraConfig
from pipeline.messages import CameraState
from pipeline.reasons import Reason
from tests.certificates import self_signed
from tests.ingest.conftest import FPS
from tests.ingest.helpers import NumberedClip, number_of, wait_for
from tests.ingest.mjpeg_server import MjpegServer
from tests.ingest.watch import Watch

PATIENT = {"open_timeout_s": 20, "first_frame_timeout_s": 30, "stall_timeout_s": 30}
CLIP = NumberedClip(FPS)


def jpeg(number: int, size: tuple[int, int] = (256, 64), mode: str = "RGB", subsampling: int = 2) -> bytes:
    """Pillow's, with a border of odd size around the numbers."""
    width, height = size
    canvas = np.zeros((height, width, 3), np.uint8)
    canvas[:64, :256] = CLIP.picture(number / FPS)
    out = io.BytesIO()
    Image.fromarray(canvas).convert(mode).save(out, "JPEG", quality=90, subsampling=subsampling)
    return out.getvalue()


# -- HTTP ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "subsampling"), [("RGB", 0), ("RGB", 1), ("RGB", 2), ("L", 0)], ids=["444", "422", "420", "gray8"]
)
def test_r23_mjpeg_of_odd_size_in_every_chroma(mode, subsampling):
    with MjpegServer(lambda number: jpeg(number, (641, 361), mode, subsampling)) as server:
        with Watch(server.url, **PATIENT) as watch:
            watch.wait_for_frames(5)
            frames = list(watch.slot.frames)
            assert watch.reader.health().decoder == "cpu"
        assert {(frame.width, frame.height) for frame in frames} == {(641, 361)}
        numbers = [number_of(frame.image[:64, :256]) for frame in frames]
        assert numbers == sorted(set(numbers))
        wait_for(lambda: server.open == 0, 30, "end of the connection")


def test_r28_the_same_jpeg_again_and_again_is_frozen():
    """Public report: a retained frame of five days ago was captioned as live."""
    still = jpeg(7)
    with MjpegServer(lambda _: still) as server, Watch(server.url, frozen_after_s=0.5, **PATIENT) as watch:
        watch.wait_for_state(CameraState.FROZEN, Reason.FROZEN)
        handed_on = len(watch.slot.frames)
        wait_for(lambda: watch.drops.totals().get("picture_frozen", 0) > 20, 30, "more of the same")
        assert len(watch.slot.frames) == handed_on


def test_an_http_camera_with_a_password(caplog):
    with MjpegServer(jpeg, credentials="us er:p@s/s#") as server:
        with Watch(server.url, username="us er", password="p@s/s#", **PATIENT) as watch:
            watch.wait_for_frames(2)
        with Watch(server.url, username="us er", password="wrong-one", **PATIENT) as watch:
            assert watch.wait_for_state(CameraState.AUTH_FAILED, Reason.AUTH).next_retry
    assert "wrong-one" not in caplog.text
    assert "p@s/s#" not in caplog.text


def test_an_http_camera_that_stalls_is_connected_anew():
    with MjpegServer(jpeg) as server, Watch(server.url, open_timeout_s=20, first_frame_timeout_s=30) as watch:
        watch.wait_for_frames(2)
        server.stalled.set()
        watch.wait_for_state(CameraState.STALLED, Reason.NO_FRAMES)
        server.stalled.clear()
        watch.wait_for_frames(2)
        assert watch.reader.health().reconnects >= 1


@pytest.mark.parametrize(
    ("path", "reason"), [("/nothing", Reason.NOT_FOUND), (None, Reason.REFUSED)], ids=["404", "refused"]
)
def test_an_http_camera_that_is_not_there(path, reason):
    with MjpegServer(jpeg) as server:
        url = server.url.replace("/video", path) if path else "http://127.0.0.1:1/video"
        with Watch(url, retry=30) as watch:
            watch.wait_for_state(CameraState.UNREACHABLE, reason)


# -- Webcam ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "kind", "device", "file"),
    [
        ("webcam:0", SourceKind.WEBCAM, 0, None),
        ("/dev/video12", SourceKind.WEBCAM, 12, None),
        ("/dev/videos/a.mp4", SourceKind.FILE, None, "/dev/videos/a.mp4"),
        ("clip.mp4", SourceKind.FILE, None, "clip.mp4"),
        ("file:///a%20b.mp4", SourceKind.FILE, None, "/a b.mp4"),
        ("RTSPS://h/x", SourceKind.RTSP, None, None),
        ("https://h/video", SourceKind.HTTP, None, None),
    ],
)
def test_the_url_names_the_source(url, kind, device, file):
    assert kind_of(url) is kind
    assert device_of(url) == device
    assert file_of(url) == (Path(file) if file else None)
    CameraConfig(id="cam", url=url)


@pytest.mark.parametrize("url", ["webcam:x", "webcam:", "ftp://h/x"])
def test_what_names_no_source_is_refused(url):
    with pytest.raises(ValueError, match=r"webcam:0|not supported"):
        CameraConfig(id="cam", url=url)


def test_a_webcam_that_is_not_plugged_in_is_told_and_tried_again():
    with Watch("webcam:123", retry=0.01) as watch:
        watch.wait_for_state(CameraState.UNREACHABLE, Reason.NOT_FOUND)
        wait_for(lambda: watch.reader._backoff.failures >= 3, 30, "further attempts")


def test_a_webcams_pictures_come_until_it_is_unplugged(tmp_path):
    """OpenCV reads a file here instead of a device: the same calls, and an end."""
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), FPS, (256, 64))
    for number in range(10):
        writer.write(CLIP.picture(number / FPS))
    writer.release()
    config = CameraConfig(id="cam", url="webcam:0")
    seen = []
    with (
        WebcamStream(config, threading.Event(), lambda _: cv2.VideoCapture(str(path))) as webcam,
        pytest.raises(StreamError) as unplugged,
    ):
        assert webcam.fps == FPS
        for picture in webcam.pictures():
            if picture is not None:
                assert picture.usable
                assert picture.keyframe
                seen.append(number_of(picture.frame.to_ndarray(format="bgr24")))
    assert seen == list(range(10))
    assert unplugged.value.failure.reason is Reason.STREAM_ENDED


# -- rtsps -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed one, as cameras have it."""
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secure_camera(demo, certificate) -> DemoCamera:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return demo(tls=context)


@pytest.mark.parametrize("trust", ["the certificate", "anybody"])
def test_rtsps_by_choice(secure_camera, certificate, trust):
    settings = {"tls_ca_file": certificate[0]} if trust == "the certificate" else {"tls_verify": False}
    assert secure_camera.url.startswith("rtsps://")
    with Watch(secure_camera.url, **settings, **PATIENT) as watch:
        watch.wait_for_frames(5)


def test_a_certificate_that_nobody_vouches_for_is_refused_by_default(secure_camera):
    with Watch(secure_camera.url, retry=30, open_timeout_s=20) as watch:
        watch.wait_for_state(CameraState.UNREACHABLE, Reason.TLS)
        assert watch.slot.frames == []
