"""R21: no frame is used from the first sign of damage to the next clean keyframe."""

from __future__ import annotations

import threading

import av
import numpy as np
import pytest

from ingest.demo_camera.clip import PhotoClip
from ingest.demo_camera.encoder import H264Encoder
from ingest.stream import VideoStream
from ingest.stream_errors import StreamError
from ingest.taint import CLEAN_AFTER_S, Taint, tells_damage
from pipeline.config import CameraConfig

GOP = 10


def test_r21_frames_between_damage_and_the_next_keyframe_are_not_usable(tmp_path):
    """Given a stream whose second group of pictures is damaged in its middle, and whose other groups are whole."""
    path = tmp_path / "damaged.h264"
    path.write_bytes(_stream(pictures=4 * GOP, damaged=range(GOP + 4, GOP + 6)))

    usable = _usable(path)

    assert len(usable) >= 4 * GOP - 2, "libav conceals damage: the frames are there"
    assert all(usable[: GOP + 4])
    assert not any(usable[GOP + 4 : 2 * GOP])
    assert all(usable[2 * GOP :])


def test_r21_a_damaged_keyframe_taints_its_whole_group(tmp_path):
    path = tmp_path / "damaged.h264"
    path.write_bytes(_stream(pictures=3 * GOP, damaged=range(GOP, GOP + 1)))

    usable = _usable(path)

    tainted = [index for index, good in enumerate(usable) if not good]
    assert tainted
    assert set(tainted) <= set(range(GOP - 1, 2 * GOP))
    assert all(usable[2 * GOP :])


def test_a_whole_stream_is_usable_throughout(tmp_path):
    path = tmp_path / "whole.h264"
    path.write_bytes(_stream(pictures=2 * GOP, damaged=range(0)))

    assert all(_usable(path))


def test_nothing_is_usable_before_the_first_keyframe():
    taint = Taint()
    taint.packet(keyframe=False, damaged=False, now=0.0)
    assert not taint.frame(keyframe=False, now=0.0)
    taint.packet(keyframe=True, damaged=False, now=0.1)
    assert taint.frame(keyframe=True, now=0.1)
    assert taint.frame(keyframe=False, now=0.2)


def test_a_keyframe_that_was_decoded_before_the_damage_does_not_clear_it():
    """A decoder with reordering gives a keyframe out after it has read, and found damaged, what follows it."""
    taint = Taint()
    taint.packet(keyframe=True, damaged=False, now=0.0)
    taint.packet(keyframe=False, damaged=True, now=0.1)
    assert not taint.frame(keyframe=True, now=0.1)
    taint.packet(keyframe=True, damaged=False, now=0.2)
    assert taint.frame(keyframe=True, now=0.2)


def test_streams_without_keyframes_come_clean_by_time():
    taint = Taint()
    taint.packet(keyframe=False, damaged=True, now=10.0)
    assert not taint.frame(keyframe=False, now=10.0 + CLEAN_AFTER_S - 1)
    assert taint.frame(keyframe=False, now=10.0 + CLEAN_AFTER_S)


@pytest.mark.parametrize(
    ("line", "damage"),
    [
        ((av.logging.ERROR, "h264", "error while decoding MB 3 4, bytestream -7\n"), True),
        ((av.logging.WARNING, "rtsp", "RTP: missed 3 packets\n"), True),
        ((av.logging.WARNING, "rtsp", "max delay reached. need to consume packet\n"), True),
        ((av.logging.ERROR, "h264", "mmco: unref short failure\n"), False),
        ((av.logging.WARNING, "swscaler", "deprecated pixel format used\n"), False),
        ((av.logging.INFO, "h264", "something of interest\n"), False),
    ],
)
def test_which_log_lines_speak_of_damage(line, damage):
    assert tells_damage([line]) is damage


def _stream(pictures: int, damaged: range) -> bytes:
    clip = PhotoClip(320, 240)
    encoder = H264Encoder(320, 240, fps=10, gop=GOP)
    rng = np.random.default_rng(3)
    data = bytearray()
    for index in range(pictures):
        for nal in encoder.encode(index, clip.picture(3 + index / 10)).nals:
            body = bytearray(nal)
            if index in damaged and nal[0] & 0x1F in (1, 5):
                middle = slice(len(body) // 3, len(body) // 3 + max(4, len(body) // 3))
                noise = rng.integers(1, 255, len(body[middle]), dtype=np.uint8)
                body[middle] = noise.tobytes()
            data += b"\x00\x00\x00\x01" + body
    return bytes(data)


def _usable(path) -> list[bool]:
    usable = []
    config = CameraConfig(id="file", url=str(path))
    with VideoStream(config, threading.Event()) as stream, pytest.raises(StreamError):
        for picture in stream.pictures():
            if picture is not None:
                usable.append(picture.usable)
    return usable
