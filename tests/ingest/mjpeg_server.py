"""A camera that speaks HTTP: multipart MJPEG, as nearly every IP camera and ESP32 has it."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MjpegServer:
    """``picture(number)`` gives a JPEG; ``stalled`` stops the pictures and keeps the connection."""

    def __init__(self, picture: Callable[[int], bytes], fps: float = 25, credentials: str = "") -> None:
        self.stalled = threading.Event()
        self.sent = 0
        self.open = 0
        self._closing = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = "Basic " + base64.b64encode(credentials.encode()).decode()
                if credentials and self.headers.get("Authorization") != wanted:
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="camera"')
                    self.end_headers()
                    return
                if self.path != "/video":
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
                self.end_headers()
                server.open += 1
                try:
                    while not server._closing.wait(1 / fps):
                        if server.stalled.is_set():
                            continue
                        jpeg = picture(server.sent)
                        server.sent += 1
                        head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                        self.wfile.write(head.encode() + jpeg + b"\r\n")
                except OSError:
                    pass
                finally:
                    server.open -= 1

            def log_message(self, *_) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def __enter__(self) -> MjpegServer:
        return self

    def __exit__(self, *_) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/video"
