"""R75: which decoder reads a stream, and what happens where the wanted one is not there."""

from __future__ import annotations

import logging

import av
import pytest
from av.codec.hwaccel import HWAccel, hwdevices_available

from ingest.decoder import DecoderDevices
from pipeline.config import CameraConfig
from pipeline.messages import CameraState
from pipeline.reasons import Reason
from tests.ingest.watch import Watch

PATIENT = {"open_timeout_s": 20, "first_frame_timeout_s": 30, "stall_timeout_s": 30}


def cuda_works() -> bool:
    try:
        return bool(av.CodecContext.create("h264", "r", hwaccel=HWAccel("cuda")).is_hwaccel)
    except (av.error.FFmpegError, OSError):
        return False


without_gpu = pytest.mark.skipif(cuda_works(), reason="this machine has a GPU that decodes")


@without_gpu
def test_r75_auto_falls_back_to_the_cpu_with_one_warning_for_all_cameras(numbered_camera, caplog):
    caplog.set_level(logging.WARNING, "ingest.decoder")
    devices = DecoderDevices()
    with (
        Watch(numbered_camera.url, decode="auto", devices=devices, **PATIENT) as one,
        Watch(numbered_camera.url, decode="auto", devices=devices, **PATIENT) as two,
    ):
        for watch in (one, two):
            watch.wait_for_frames(3)
            assert watch.reader.health().decoder == "cpu"
    warnings = [record.getMessage() for record in caplog.records if record.name == "ingest.decoder"]
    assert len(warnings) == 1
    assert "uses the CPU" in warnings[0]


@without_gpu
def test_r75_cuda_by_name_is_cuda_or_nothing(numbered_camera):
    with Watch(numbered_camera.url, decode="cuda", retry=30, **PATIENT) as watch:
        health = watch.wait_for_state(CameraState.UNSUPPORTED, Reason.DECODER)
        assert health.next_retry is not None, "tried again: a driver may come back"
        assert watch.slot.frames == []


@pytest.mark.parametrize("device", ["vaapi", "drm"])
def test_r75_a_device_that_this_build_or_codec_lacks_is_told_with_those_it_has(numbered_camera, device, caplog):
    with Watch(numbered_camera.url, decode=device, retry=30, **PATIENT) as watch:
        watch.wait_for_state(CameraState.UNSUPPORTED, Reason.DECODER)
    expected = f"{device}: decodes no h264" if device in hwdevices_available() else f"{device}: this build of PyAV has"
    assert expected in caplog.text


@pytest.mark.skipif(not cuda_works(), reason="needs a GPU that decodes H.264")
@pytest.mark.parametrize("decode", ["auto", "cuda"])
def test_a_gpu_decodes_the_same_pictures(numbered_camera, decode):
    with Watch(numbered_camera.url, decode=decode, **PATIENT) as watch:
        watch.wait_for_frames(10)
        assert watch.reader.health().decoder == "cuda"


def test_a_decoder_that_nobody_has_is_refused_by_the_configuration():
    with pytest.raises(ValueError, match="decode"):
        CameraConfig(id="cam", url="rtsp://h/x", decode="magic")
