"""`watchword cameras`: what a running server watches, and devices that really answer a multicast probe."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pipeline.cli.cameras import discover, run_discover, run_list
from pipeline.cli.errors import UsageProblem

GROUP, PORT = "239.255.255.250", 3702
ANSWER = """<?xml version="1.0" encoding="utf-8"?>
<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://schemas.xmlsoap.org/ws/2004/08/addressing"
 xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery" xmlns:dn="http://www.onvif.org/ver10/network/wsdl">
<s:Header><a:RelatesTo>{message}</a:RelatesTo></s:Header><s:Body><d:ProbeMatches><d:ProbeMatch>
<a:EndpointReference><a:Address>urn:uuid:{number}</a:Address></a:EndpointReference>
<d:Types>dn:NetworkVideoTransmitter</d:Types><d:Scopes>{scopes}</d:Scopes>
<d:XAddrs>http://127.0.0.1:9/onvif/device_service</d:XAddrs><d:MetadataVersion>1</d:MetadataVersion>
</d:ProbeMatch></d:ProbeMatches></s:Body></s:Envelope>"""


@contextmanager
def devices(*answers: bytes | str) -> Iterator[list[bytes]]:
    """A device on loopback that joins WS-Discovery's group and answers each probe with all of ``answers``."""
    probes: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        device.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            device.bind((GROUP, PORT))
            membership = socket.inet_aton(GROUP) + socket.inet_aton("127.0.0.1")
            device.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        except OSError as error:
            pytest.skip(f"no multicast on loopback here: {error}")
        device.settimeout(0.2)
        stop = threading.Event()

        def answer() -> None:
            while not stop.is_set():
                try:
                    probe, sender = device.recvfrom(65536)
                except TimeoutError:
                    continue
                probes.append(probe)
                found = re.search(rb"MessageID>([^<]+)<", probe)
                message = found[1].decode() if found else ""
                for number, text in enumerate(answers):
                    data = text if isinstance(text, bytes) else ANSWER.format(
                        message=message, number=number, scopes=text
                    ).encode()  # fmt: skip
                    device.sendto(data, sender)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield probes
        finally:
            stop.set()
            thread.join()


def test_cameras_that_answer_are_listed(capsys):
    pytest.importorskip("onvif", reason="needs the extra 'onvif'")
    front = "onvif://www.onvif.org/name/Front%20door onvif://www.onvif.org/hardware/X1 onvif://www.onvif.org/type/video"
    with devices(front, "onvif://www.onvif.org/name/Yard") as probes:
        assert run_discover(2.0, "127.0.0.1") == 0
    assert b"Probe" in probes[0]
    shown = capsys.readouterr()
    assert "Front door" in shown.out and "X1" in shown.out and "Yard" in shown.out
    assert shown.err.startswith("2 answered")


def test_r20_what_strangers_send_is_shown_without_harm():
    """Names that are no UTF-8, terminal codes, entities that would grow, and no XML at all."""
    pytest.importorskip("onvif", reason="needs the extra 'onvif'")
    bomb = (
        b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
        b'<x xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery"><d:ProbeMatch><d:Scopes>&b;</d:Scopes>'
        b"</d:ProbeMatch></x>"
    )
    scopes = "onvif://www.onvif.org/name/%C3%A4%FF onvif://www.onvif.org/hardware/%1B%5B31mred"
    with devices(scopes, b"<not xml", b"\xff\xfe", bomb):
        found = discover(2.0, "127.0.0.1")
    assert [(camera.name, camera.hardware) for camera in found] == [("\u00e4\ufffd", "?[31mred")]


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "onvif", None)
    with pytest.raises(UsageProblem, match=r"watchword\[onvif\]"):
        discover(1.0)


class Server(BaseHTTPRequestHandler):
    """Stands for a server that wants a key."""

    def do_GET(self) -> None:
        body = b'{"error": {"message": "This server needs an API key."}}'
        self.send_response(401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_refuses_or_is_not_there_is_told(capsys):
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(SystemExit) as ended:
            run_list(url, None)
        server.shutdown()
    assert ended.value.code == 2
    assert "answered 401: This server needs an API key." in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_list(url, None)
    assert "can't be reached" in capsys.readouterr().err


def test_the_commands_are_there():
    run = subprocess.run(
        [sys.executable, "-P", "-m", "pipeline.cli", "cameras", "--help"], capture_output=True, text=True, timeout=120
    )
    assert "list" in run.stdout and "discover" in run.stdout
