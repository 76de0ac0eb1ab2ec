"""The demo clip: real people who come, stay and leave."""

from __future__ import annotations

from itertools import pairwise

import av
import numpy as np
import pytest

from ingest.demo_camera import PhotoClip, VideoFileSource
from ingest.demo_camera.clip import WAYPOINTS, ClipError, window_at


def test_the_picture_depends_on_the_time_alone_and_repeats():
    clip = PhotoClip()

    assert np.array_equal(clip.picture(5.0), PhotoClip().picture(5.0))
    assert np.array_equal(clip.picture(5.0), clip.picture(5.0 + clip.duration))
    assert not np.array_equal(clip.picture(5.0), clip.picture(10.0))
    assert clip.picture(0.0).shape == (clip.height, clip.width, 3)


def test_the_window_moves_without_jumps_except_at_the_cuts():
    cuts = [a.seconds for a, b in pairwise(WAYPOINTS) if a.photo != b.photo]
    for step in range(int(PhotoClip.duration * 10) - 1):
        before, after = window_at(step / 10), window_at((step + 1) / 10)
        if before[0] != after[0]:
            assert any(step / 10 < cut <= (step + 1) / 10 for cut in cuts)
        else:
            assert max(abs(a - b) for a, b in zip(before[1:], after[1:], strict=True)) < 60


def test_people_are_found_enter_and_leave(openvino_detector):
    clip = PhotoClip()

    def people(seconds: float) -> int:
        rows = openvino_detector.detect([clip.picture(seconds)])[0]
        return int(((rows[:, 4] >= 0.35) & (rows[:, 5] == 0)).sum())

    assert [people(t) for t in (0.0, 1.0, 17.0, 18.5, 19.5, 34.0, 34.9)] == [0] * 7
    assert people(5.0) >= 2
    assert people(13.0) >= 2
    assert people(21.0) >= 1
    assert people(30.0) == 2


def test_a_video_file_plays_in_its_own_time_and_repeats(tmp_path):
    path = _video(tmp_path / "grey.mp4", levels=(0, 60, 120, 180, 240), fps=5, size=(65, 49))
    source = VideoFileSource(path)

    assert (source.width, source.height) == (64, 48)
    shown = [round(float(source.picture(second / 10).mean()) / 60) for second in range(0, 20)]
    assert shown == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] * 2


def test_what_is_no_video_is_refused(tmp_path):
    text = tmp_path / "notes.mp4"
    text.write_text("no video")

    with pytest.raises(ClipError, match=r"notes\.mp4"):
        VideoFileSource(text)
    with pytest.raises(ClipError, match="not a file"):
        VideoFileSource(tmp_path / "absent.mp4")


def _video(path, levels, fps, size):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.width, stream.height, stream.pix_fmt = size[0], size[1], "yuv444p"
        for level in levels:
            picture = np.full((size[1], size[0], 3), level, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path
