"""An RTSP server that answers each verb as the test says: for failures that no working camera shows."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass

SDP = (
    "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r\n"
    "a=rtpmap:96 {codec}/90000\r\na=control:track0\r\n"
)
TRANSPORT = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 7\r\n"


@dataclass(frozen=True)
class Answer:
    """``status`` 0 leaves the request without an answer."""

    status: int = 200
    headers: str = ""
    body: str = ""


def described_as(codec: str) -> Answer:
    return Answer(headers="Content-Type: application/sdp\r\n", body=SDP.format(codec=codec))


WORKING = {
    "OPTIONS": Answer(),
    "DESCRIBE": described_as("H264"),
    "SETUP": Answer(headers=TRANSPORT),
    "PLAY": Answer(),
    "TEARDOWN": Answer(),
}


class ScriptedCamera:
    """Counts the requests of each verb. Never sends a picture."""

    def __init__(self, **answers: Answer) -> None:
        self._answers = {**WORKING, **answers}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.requests: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    def close(self) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            stream = connection.makefile("rwb")
            while head := self._head(stream):
                verb = head[0].split()[0]
                self.requests.append(verb)
                answer = self._answers[verb]
                if not answer.status:
                    continue
                cseq = next(line for line in head if line.lower().startswith("cseq"))
                length = f"Content-Length: {len(answer.body)}\r\n" if answer.body else ""
                text = f"RTSP/1.0 {answer.status} Reason\r\n{cseq}\r\n{answer.headers}{length}\r\n{answer.body}"
                stream.write(text.encode())
                stream.flush()
        except (OSError, ValueError):
            pass

    @staticmethod
    def _head(stream) -> list[str]:
        lines = []
        while (line := stream.readline().decode().rstrip("\r\n")) or not lines:
            if not line:
                return []
            lines.append(line)
        return lines
