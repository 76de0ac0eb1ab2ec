"""The demo camera's faults: how they are written, and that they are what they say."""

from __future__ import annotations

import av
import pytest

from ingest.demo_camera import Access, Credentials, DemoCamera, FaultError, Faults, ScheduledFault
from ingest.demo_camera.faults import FAULTS
from pipeline.cli.demo_camera import PASSWORD_VARIABLE, DemoCameraOptions, demo_camera
from pipeline.cli.errors import UsageProblem
from tests.ingest.conftest import FPS
from tests.ingest.helpers import NumberedClip, wait_for
from tests.ingest.test_demo_camera import RawClient, open_av, status


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("stall", ScheduledFault("stall", True)),
        ("stall@10+5", ScheduledFault("stall", True, 10.0, 5.0)),
        ("corrupt=0.4@2.5", ScheduledFault("corrupt", 0.4, 2.5)),
        ("hang=describe,SETUP", ScheduledFault("hang", frozenset({"DESCRIBE", "SETUP"}))),
        ("status=SETUP:461,PLAY:453", ScheduledFault("status", {"SETUP": 461, "PLAY": 453})),
        ("size=640x368@1", ScheduledFault("size", (640, 368), 1.0)),
        ("jump=-1800@3", ScheduledFault("jump", -1800.0, 3.0)),
        ("format=yuv444p", ScheduledFault("format", "yuv444p")),
        ("max-viewers=2", ScheduledFault("max-viewers", 2)),
        ("close@15", ScheduledFault("close", True, 15.0)),
    ],
)
def test_faults_are_written_as_name_value_start_and_length(text, fault):
    assert ScheduledFault.parse(text) == fault


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("explode", "there are close, corrupt"),
        ("corrupt=2", "a share is 0 to 1"),
        ("corrupt", "needs a value"),
        ("stall=3", "takes no value"),
        ("size=3x3", "sides are even"),
        ("size=big", "size=640x368"),
        ("hang=LUNCH", "LUNCH"),
        ("status=SETUP:999", "461"),
        ("stall@soon", "NAME"),
        ("format=rgb", "yuv420p"),
        ("max-viewers=-1", "0 or more"),
    ],
)
def test_what_is_no_fault_is_told_with_what_is_one(text, told):
    with pytest.raises(FaultError, match=told):
        ScheduledFault.parse(text)


def test_every_fault_has_an_attribute_and_an_end(demo):
    camera = DemoCamera(NumberedClip(FPS), fps=FPS)
    values = {"hang": "PLAY", "status": "PLAY:461", "size": "64x64", "format": "gray"}
    for name, kind in FAULTS.items():
        takes_value = "=" in kind.help.split(":")[0]
        fault = ScheduledFault.parse(f"{name}={values.get(name, '1')}" if takes_value else name)
        fault.begin(camera)
        assert not kind.attribute or getattr(camera.faults, kind.attribute) == fault.value
        fault.end(camera)
    assert camera.faults == Faults()


def test_scripted_faults_come_and_go_in_their_time(demo):
    camera = demo(script=[ScheduledFault.parse("status=DESCRIBE:404@0.1"), ScheduledFault.parse("freeze@0+0.1")])
    wait_for(lambda: camera.faults.status_at, 30, "the first fault")
    with pytest.raises(av.error.HTTPNotFoundError):
        open_av(camera)
    wait_for(lambda: not camera.faults.frozen, 30, "the end of the second")


def test_frozen_pictures_are_the_same_to_the_bit_across_keyframes(demo):
    camera = demo(faults=Faults(frozen=True))
    with open_av(camera) as container:
        frames = container.decode(video=0)
        assert len({bytes(next(frames).to_ndarray(format="bgr24")) for _ in range(16)}) == 1


def test_digest_is_md5_of_rfc_7616():
    """The example of RFC 7616, 3.9.1, with its nonce and realm."""
    access = Access(Credentials("Mufasa", "Circle of Life"), "digest")
    access._nonce = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v"
    header = (
        'Digest username="Mufasa", realm="http-auth@example.org", uri="/dir/index.html", algorithm=MD5, '
        'nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", nc=00000001, '
        'cnonce="f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ", qop=auth, response="{}"'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingest.demo_camera.access.REALM", "http-auth@example.org")
        assert access.admits("GET", header.format("8ca523f5e9506fed4657c9700eebdbec"))
        assert not access.admits("GET", header.format("8ca523f5e9506fed4657c9700eebdbed"))
        assert not access.admits("PUT", header.format("8ca523f5e9506fed4657c9700eebdbec"))


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !!!", "Digest", 'Digest username="u"', "Bearer x", "Basic dTp4"]
)
@pytest.mark.parametrize("scheme", ["basic", "digest"])
def test_nonsense_admits_nobody(header, scheme):
    assert not Access(Credentials("u", "p"), scheme).admits("DESCRIBE", header)


def test_without_a_password_only_options_is_answered(demo):
    camera = demo(access=Access(Credentials("u", "p"), "digest"))
    with RawClient(camera) as client:
        assert status(client.ask("OPTIONS")) == 200
        for verb in ("DESCRIBE", "SETUP", "PLAY", "TEARDOWN", "GET_PARAMETER"):
            answer = client.ask(verb)
            assert status(answer) == 401
            assert "WWW-Authenticate: Digest realm=" in answer


def test_udp_ports_are_given_back_when_a_client_leaves(demo):
    camera = demo(transports=("udp",))
    with RawClient(camera) as client:
        answer = client.ask("SETUP", f"{camera.url}/trackID=0", Transport="RTP/AVP;unicast;client_port=50000-50001")
        assert "client_port=50000-50001;server_port=" in answer
        assert int(answer.partition("server_port=")[2].partition("-")[0]) % 2 == 0
    wait_for(lambda: camera.clients == 0, 30, "end of the session")


# -- The command's options -------------------------------------------------------------------------------------------


def test_the_command_builds_the_camera_that_its_options_describe(monkeypatch):
    monkeypatch.setenv(PASSWORD_VARIABLE, "hunter22")
    camera = demo_camera(
        DemoCameraOptions(port=0, fps=25, gop=5, transports=("tcp",), username="u", faults=("size=320x240",))
    )
    camera.start()
    try:
        with av.open(camera.url.replace("://", "://u:hunter22@"), options={"rtsp_transport": "tcp"}) as container:
            frame = next(container.decode(video=0))
            assert (frame.width, frame.height) == (320, 240)
        with pytest.raises(av.error.HTTPUnauthorizedError):
            open_av(camera)
    finally:
        camera.stop()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (DemoCameraOptions(transports=("carrier-pigeon",)), "tcp, udp"),
        (DemoCameraOptions(faults=("explode",)), "--fault"),
        (DemoCameraOptions(scheme="ntlm", username="u"), "basic, digest"),
        (DemoCameraOptions(username="u"), PASSWORD_VARIABLE),
        (DemoCameraOptions(tls_cert=__file__), "--tls-cert"),
    ],
)
def test_options_that_do_not_fit_are_told(options, told, monkeypatch):
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    with pytest.raises(UsageProblem, match=told):
        demo_camera(options)
