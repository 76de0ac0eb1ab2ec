"""The demo camera as clients see it: PyAV, OpenCV, and bare sockets."""

from __future__ import annotations

import socket
import time

import av
import cv2
import pytest

from ingest.demo_camera import DemoCamera, PhotoClip
from tests.ingest.helpers import NumberedClip, number_of, wait_for

OPTIONS = {"rtsp_transport": "tcp", "probesize": "65536", "fpsprobesize": "0"}


def open_av(camera: DemoCamera):
    return av.open(camera.url, timeout=(5, 1), options=OPTIONS)


def test_pyav_gets_every_picture_in_order(numbered_camera):
    with open_av(numbered_camera) as container:
        frames = container.decode(video=0)
        numbers = [number_of(next(frames).to_ndarray(format="bgr24")) for _ in range(30)]

    assert numbers == list(range(numbers[0], numbers[0] + 30))
    assert numbers[0] % 5 == 0, "a client starts at a keyframe"
    wait_for(lambda: numbered_camera.clients == 0, what="end of the session")


def test_opencv_gets_pictures(numbered_camera):
    capture = cv2.VideoCapture(numbered_camera.url, cv2.CAP_FFMPEG)
    try:
        assert capture.isOpened()
        first, second = (number_of(capture.read()[1]) for _ in range(2))
    finally:
        capture.release()

    assert second == first + 1


def test_several_clients_share_one_encoder(numbered_camera):
    with open_av(numbered_camera) as one, open_av(numbered_camera) as two:
        assert numbered_camera.viewers == 2
        before = numbered_camera.counts.pictures
        seen = [
            {number_of(f.to_ndarray(format="bgr24")) for f, _ in zip(c.decode(video=0), range(25), strict=False)}
            for c in (one, two)
        ]
        encoded = numbered_camera.counts.pictures - before

    assert len(seen[0] & seen[1]) > 10
    assert encoded < 45, "two clients, one encoding"


def test_the_encoder_rests_while_nobody_looks(numbered_camera):
    wait_for(lambda: numbered_camera.index > 10)

    assert numbered_camera.counts.pictures == 0


def test_the_real_clip_arrives_in_its_size():
    camera = DemoCamera(PhotoClip())
    camera.start()
    try:
        with open_av(camera) as container:
            frame = next(container.decode(video=0))
            assert (frame.width, frame.height) == (640, 480)
            assert container.streams.video[0].average_rate == 10
    finally:
        camera.stop()


def test_stall_sends_nothing_and_resume_goes_on_in_the_same_session(numbered_camera):
    with open_av(numbered_camera) as container:
        stream = container.streams.video[0]
        next(container.decode(stream))
        numbered_camera.stall()
        with pytest.raises(av.error.ExitError):
            for _ in container.decode(stream):
                pass
        assert numbered_camera.viewers == 1
        numbered_camera.resume()
        stalled_at = numbered_camera.index
        wait_for(
            lambda: number_of(next(container.decode(stream)).to_ndarray(format="bgr24")) >= stalled_at, what="new frame"
        )


def test_closed_clients_see_the_end_and_may_come_again(numbered_camera):
    with open_av(numbered_camera) as container:
        frames = container.decode(video=0)
        next(frames)
        numbered_camera.close_clients()
        with pytest.raises((StopIteration, OSError)):
            while True:
                next(frames)
    with open_av(numbered_camera) as container:
        next(container.decode(video=0))


def test_a_client_that_reads_nothing_costs_the_others_nothing(numbered_camera):
    with RawClient(numbered_camera) as lazy, open_av(numbered_camera) as container:
        lazy.play()
        frames = container.decode(video=0)
        numbers = [number_of(next(frames).to_ndarray(format="bgr24")) for _ in range(40)]

    assert numbers == list(range(numbers[0], numbers[0] + 40))


def test_a_stopped_camera_refuses_and_its_port_can_be_taken_again(numbered_camera):
    port = int(numbered_camera.url.rpartition(":")[2].partition("/")[0])
    numbered_camera.stop()
    numbered_camera.stop()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    again = DemoCamera(NumberedClip(25), port=port)
    again.start()
    again.stop()


def test_a_port_that_is_taken_is_an_error_at_start(numbered_camera):
    port = int(numbered_camera.url.rpartition(":")[2].partition("/")[0])

    with pytest.raises(OSError, match="in use"):
        DemoCamera(NumberedClip(25), port=port).start()


class RawClient:
    """RTSP by hand."""

    def __init__(self, camera: DemoCamera) -> None:
        self.url = camera.url
        host, _, port = camera.url.split("/")[2].partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=3)
        self.number = 0
        self.session = ""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_) -> None:
        self.socket.close()

    def ask(
        self, verb: str, url: str | None = None, cseq: bool = True, version: str = "RTSP/1.0", **headers: str
    ) -> str:
        """The answer's head; what comes interleaved before it is skipped."""
        self.number += 1
        lines = [f"{verb} {url or self.url} {version}"]
        lines += [f"CSeq: {self.number}"] if cseq else []
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        answer = self.read_answer()
        if cseq:
            assert f"CSeq: {self.number}\r\n" in answer
        return answer

    def read_answer(self) -> str:
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            byte = self.socket.recv(1)
            if not byte:
                raise ConnectionError("closed")
            if not data and byte == b"$":
                size = int.from_bytes(self.exactly(3)[1:], "big")
                self.exactly(size)
                continue
            data += byte
        return data.decode()

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.socket.recv(size - len(data))
        return data

    def play(self) -> None:
        answer = self.ask("SETUP", f"{self.url}/trackID=0", Transport="RTP/AVP/TCP;unicast;interleaved=0-1")
        self.session = answer.partition("Session: ")[2].partition(";")[0]
        assert " 200 " in self.ask("PLAY", Session=self.session)


def status(answer: str) -> int:
    return int(answer.split(" ")[1])


def test_requests_that_do_not_fit_are_refused_with_the_codes_of_rfc_2326(numbered_camera):
    with RawClient(numbered_camera) as client:
        assert status(client.ask("PLAY")) == 455
        assert status(client.ask("DESCRIBE", client.url + "x")) == 404
        assert status(client.ask("SETUP", Transport="RTP/AVP;multicast;port=5000-5001")) == 461
        assert status(client.ask("RECORD")) == 501
        assert status(client.ask("OPTIONS", version="RTSP/2.0")) == 505
        assert status(client.ask("OPTIONS", cseq=False)) == 400
        client.play()
        assert status(client.ask("PLAY", Session="wrong")) == 454
        assert status(client.ask("TEARDOWN", Session="wrong")) == 454
        assert status(client.ask("TEARDOWN", Session=client.session)) == 200
        with pytest.raises((ConnectionError, TimeoutError)):
            client.ask("OPTIONS")


def test_keep_alives_are_answered_between_pictures_and_rtcp_is_ignored(numbered_camera):
    with RawClient(numbered_camera) as client:
        client.play()
        client.socket.sendall(b"$\x01\x00\x08" + b"\x80\xc9\x00\x01\x00\x00\x00\x00")
        assert status(client.ask("GET_PARAMETER", Session=client.session)) == 200
        assert status(client.ask("GET_PARAMETER", Session=client.session, **{"Content-Length": "0"})) == 200


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\xff" * 9 + b"\r\n\r\n", b"A" * 70_000]
)
def test_what_is_not_rtsp_ends_that_connection_only(numbered_camera, garbage):
    with RawClient(numbered_camera) as client:
        client.socket.sendall(garbage)
        deadline = time.monotonic() + 3
        try:
            while client.socket.recv(4096):
                assert time.monotonic() < deadline
        except ConnectionError:
            pass
    with RawClient(numbered_camera) as client:
        assert status(client.ask("OPTIONS")) == 200
