"""Our reader against RTSP that others wrote: GStreamer's gst-rtsp-server, with H.264 and H.265 over TCP and UDP."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import pytest
from av.video.codeccontext import VideoCodecContext

from pipeline.messages import CameraState
from pipeline.reasons import Reason
from tests.ingest.helpers import NumberedClip, number_of
from tests.ingest.watch import Watch, online

FPS = 25
GOP = 5
PICTURES = 25
PATIENT = {"open_timeout_s": 20, "first_frame_timeout_s": 30, "stall_timeout_s": 30}
SYSTEM_PYTHON = Path("/usr/bin/python3")
SERVER = Path(__file__).with_name("gst_server.py")
NEEDED = (
    "import gi; [gi.require_version(n, '1.0') for n in ('Gst', 'GstRtsp', 'GstRtspServer')]; "
    "from gi.repository import Gst, GstRtspServer; Gst.init(None); "
    "assert all(Gst.ElementFactory.find(e) for e in ('appsrc', 'rtph264pay', 'rtph265pay'))"
)
ENCODERS = {"h264": ("libx264", "x264-params"), "h265": ("libx265", "x265-params")}


@pytest.fixture(scope="module", autouse=True)
def gst_installed() -> None:
    if not SYSTEM_PYTHON.is_file() or subprocess.run([SYSTEM_PYTHON, "-c", NEEDED], capture_output=True).returncode:
        pytest.skip(
            "needs Debian's gir1.2-gst-rtsp-server-1.0, python3-gi and gstreamer1.0-plugins-good for /usr/bin/python3"
        )


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``encoded(codec)`` -> folder with the numbered clip, one access unit a file."""
    made: dict[str, Path] = {}

    def get(codec: str) -> Path:
        if codec not in made:
            made[codec] = tmp_path_factory.mktemp(codec)
            for number, unit in enumerate(_access_units(codec)):
                (made[codec] / f"{number:05d}").write_bytes(unit)
        return made[codec]

    return get


@pytest.fixture(scope="module")
def servers(encoded) -> Iterator[Callable[[str], str]]:
    """``servers(codec)`` -> URL of a server that all tests of the codec share."""
    running: dict[str, str] = {}
    with ExitStack() as stack:

        def url_of(codec: str) -> str:
            if codec not in running:
                running[codec] = stack.enter_context(_serving(encoded(codec), codec))
            return running[codec]

        yield url_of


@contextmanager
def _serving(folder: Path, codec: str, *credentials: str) -> Iterator[str]:
    command = [SYSTEM_PYTHON, SERVER, folder, codec, str(FPS), *credentials]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"rtsp://127.0.0.1:{int(process.stdout.readline())}/gst"
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def _access_units(codec: str) -> list[bytes]:
    encoder, parameters = ENCODERS[codec]
    clip = NumberedClip(FPS)
    context = av.CodecContext.create(encoder, "w")
    assert isinstance(context, VideoCodecContext)
    context.width, context.height, context.pix_fmt = clip.width, clip.height, "yuv420p"
    context.framerate, context.time_base = Fraction(FPS), Fraction(1, FPS)
    own = ":log-level=none:pools=1:frame-threads=1" if codec == "h265" else ""
    context.options = {
        "preset": "ultrafast",
        "tune": "zerolatency",
        parameters: f"keyint={GOP}:min-keyint={GOP}:scenecut=0:repeat-headers=1{own}",
    }
    packets = []
    for number in range(PICTURES):
        frame = av.VideoFrame.from_ndarray(clip.picture(number / FPS), format="bgr24")
        frame.pts = number
        packets += context.encode(frame)
    return [bytes(packet) for packet in [*packets, *context.encode(None)]]


@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize("codec", ["h264", "h265"])
def test_every_codec_over_every_transport(servers, codec, transport):
    with Watch(servers(codec), transport=transport, fps=60, **PATIENT) as watch:
        watch.wait_for_frames(PICTURES + 10)
        frames = list(watch.slot.frames)
        health = watch.reader.health()
    assert online(health)
    assert (health.width, health.height) == (256, 64)
    assert health.reconnects == 0
    assert watch.drops.totals().get("frame_tainted", 0) == 0, "nothing of a sound stream is taken for damaged"
    numbers = [number_of(frame.image) for frame in frames]
    steps = [(later - earlier) % PICTURES for earlier, later in pairwise(numbers)]
    # On a busy machine pictures come in bursts, which are thinned out to the wanted rate.
    assert all(1 <= step <= GOP for step in steps), "in order"
    assert steps.count(1) >= len(steps) // 3, "not keyframes alone"


def test_r12_a_foreign_digest(encoded):
    with _serving(encoded("h264"), "h264", "viewer", "p@ss:w/rd") as url:
        with Watch(url, username="viewer", password="p@ss:w/rd", **PATIENT) as watch:
            watch.wait_for_frames(3)
        with Watch(url, username="viewer", password="wrong-one", **PATIENT) as watch:
            watch.wait_for_state(CameraState.AUTH_FAILED, Reason.AUTH)


def test_r03_a_foreign_server_that_goes_away_is_noticed(encoded):
    with ExitStack() as server:
        url = server.enter_context(_serving(encoded("h265"), "h265"))
        with Watch(url, retry=0.2, **PATIENT) as watch:
            watch.wait_for_frames(3)
            server.close()
            watch.wait_for_state(CameraState.UNREACHABLE, Reason.REFUSED)


def test_a_path_that_a_foreign_server_lacks(servers):
    with Watch(servers("h264") + "x", retry=30, open_timeout_s=20) as watch:
        watch.wait_for_state(CameraState.UNREACHABLE, Reason.NOT_FOUND)
