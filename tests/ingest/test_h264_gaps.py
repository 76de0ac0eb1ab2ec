"""R21, beyond what the decoder tells: reference pictures that never came."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import av
import pytest
from av.bitstream import BitStreamFilterContext
from av.video.codeccontext import VideoCodecContext
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.demo_camera.encoder import split_nals
from ingest.h264_gaps import FrameNumGaps
from tests.ingest.helpers import NoisyClip, NumberedClip, number_of, wait_for
from tests.ingest.watch import Watch

FPS = 25
PATIENT = {"open_timeout_s": 20, "first_frame_timeout_s": 60, "stall_timeout_s": 60}


def units_of(options: str = "", pixel_format: str = "yuv420p", pictures: int = 60) -> list[bytes]:
    """Access units in decoding order, with a keyframe every twentieth."""
    clip = NumberedClip(FPS)
    context = av.CodecContext.create("libx264", "w")
    assert isinstance(context, VideoCodecContext)
    context.width, context.height, context.pix_fmt = clip.width, clip.height, pixel_format
    context.framerate, context.time_base = Fraction(FPS), Fraction(1, FPS)
    context.options = {
        "preset": "veryfast",
        "x264-params": f"keyint=20:min-keyint=20:scenecut=0:repeat-headers=1:threads=1{options}",
    }
    packets = []
    for number in range(pictures):
        frame = av.VideoFrame.from_ndarray(clip.picture(number / FPS), format="bgr24")
        frame.pts = number
        packets += context.encode(frame)
    return [bytes(packet) for packet in [*packets, *context.encode(None)]]


def is_reference(unit: bytes) -> bool:
    return any(nal[0] & 0x1F in (1, 5) and nal[0] >> 5 & 3 for nal in split_nals(unit))


STREAMS = [
    (":bframes=0", "yuv420p"),
    (":bframes=0:ref=4:slices=4", "yuv420p"),
    (":bframes=3:b-pyramid=normal", "yuv420p"),
    (":bframes=3:b-pyramid=none", "yuv420p"),
    (":bframes=0:cqm=jvt", "yuv420p"),
    (":bframes=0", "yuv444p"),
    (":bframes=0:interlaced=1", "yuv420p"),
    (":bframes=0:intra-refresh=1", "yuv420p"),
]


@pytest.mark.parametrize(("options", "pixel_format"), STREAMS)
def test_a_whole_stream_has_no_gap_and_each_missing_reference_is_one(options, pixel_format):
    units = units_of(options, pixel_format)
    gaps = FrameNumGaps()
    assert not any(gaps.lacks_before(unit) for unit in units)
    followers = 0
    for missing in range(5, 15):
        gaps = FrameNumGaps()
        found = [gaps.lacks_before(unit) for index, unit in enumerate(units) if index != missing]
        assert any(found) is is_reference(units[missing]), f"unit {missing}"
        assert not any(found[:missing])
        followers += found[missing] if is_reference(units[missing]) else 0
    assert followers >= 1, "told at the very next picture"


def test_parameter_sets_may_come_with_the_description_only():
    units = units_of(":bframes=0")
    sets = [nal for nal in split_nals(units[0]) if nal[0] & 0x1F in (7, 8)]
    bare = [
        b"".join(b"\x00\x00\x00\x01" + nal for nal in split_nals(unit) if nal[0] & 0x1F in (1, 5)) for unit in units
    ]
    blind = FrameNumGaps()
    assert not any(blind.lacks_before(unit) for unit in bare[:5] + bare[7:])
    gaps = FrameNumGaps(b"".join(b"\x00\x00\x01" + nal for nal in sets))
    assert [gaps.lacks_before(unit) for unit in bare[:5] + bare[7:]].index(True) == 5


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_nonsense_is_no_gap_and_no_error(data):
    gaps = FrameNumGaps(data)
    assert not gaps.lacks_before(b"\x00\x00\x01" + data)


def test_real_cameras_have_no_gaps(shared_data: Path):
    videos = sorted(path for kind in ("mp4", "mkv") for path in shared_data.rglob(f"*.{kind}"))
    assert videos
    looked_at = 0
    for path in videos:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            if stream.codec_context.name != "h264":
                continue
            annex_b = BitStreamFilterContext("h264_mp4toannexb", stream)
            gaps = FrameNumGaps()
            for packet in itertools.islice(container.demux(stream), 300):
                for filtered in annex_b.filter(packet) if packet.size else []:
                    assert not gaps.lacks_before(bytes(filtered)), path.name
                    looked_at += 1
    assert looked_at > 300


def test_r21_what_follows_a_picture_that_the_camera_left_out_is_not_handed_on(demo):
    camera = demo(source=NoisyClip(FPS), gop=10)
    camera.faults.skip = 0.25
    with Watch(camera.url, **PATIENT) as watch:
        wait_for(lambda: watch.drops.totals().get("frame_tainted", 0) >= 30, 60, "tainted frames")
        wait_for(lambda: len(watch.slot.frames) >= 5, 60, "frames before the gaps")
        handed_on = {number_of(frame.image) for frame in list(watch.slot.frames)}
        assert watch.reader.health().reconnects == 0
    spoilt, tainted = False, set()
    for picture in list(camera.counts.sent):
        spoilt = not picture.keyframe and (spoilt or picture.skipped)
        if spoilt and not picture.skipped:
            tainted.add(picture.index)
    assert len(tainted) >= 20
    assert not handed_on & tainted
