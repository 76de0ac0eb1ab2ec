"""The demo camera's bytes: NAL units, RTP packets, session description."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.demo_camera.encoder import NAL_PPS, NAL_SPS, AccessUnit, H264Encoder, nal_type, split_nals
from ingest.demo_camera.rtp import MAX_PAYLOAD, RtpPacketizer, payloads_of
from ingest.demo_camera.rtsp import Datagrams, Interleaved, chosen_transport, session_description


@given(st.integers(1, 23), st.integers(0, 3), st.binary(min_size=0, max_size=6000))
def test_a_nal_unit_comes_together_again_from_its_payloads(kind, importance, body):
    nal = bytes((importance << 5 | kind,)) + body

    payloads = list(payloads_of(nal))

    assert all(len(payload) <= MAX_PAYLOAD for payload in payloads)
    if len(nal) <= MAX_PAYLOAD:
        assert payloads == [nal]
        return
    assert all(nal_type(payload) == 28 for payload in payloads)
    assert [payload[1] >> 6 for payload in payloads] == [2] + [0] * (len(payloads) - 2) + [1]
    first = bytes((payloads[0][0] & 0xE0 | payloads[0][1] & 0x1F,))
    assert first + b"".join(payload[2:] for payload in payloads) == nal


@settings(max_examples=30)
@given(st.integers(0, 65535), st.integers(0, 2**32 - 1), st.lists(st.integers(1, 5000), min_size=1, max_size=4))
def test_sequence_numbers_run_on_and_the_marker_ends_the_picture(sequence, offset, sizes):
    packetizer = RtpPacketizer(1, sequence, offset, fps=10)
    unit = AccessUnit(7, tuple(bytes((0x65,)) * size for size in sizes))

    packets = list(packetizer.packets(unit))

    numbers = [int.from_bytes(packet[2:4], "big") for packet in packets]
    assert numbers == [(sequence + n) & 0xFFFF for n in range(len(packets))]
    assert [packet[1] >> 7 for packet in packets] == [0] * (len(packets) - 1) + [1]
    assert {int.from_bytes(packet[4:8], "big") for packet in packets} == {(offset + 63_000) & 0xFFFFFFFF}


def test_each_keyframe_brings_its_parameter_sets():
    encoder = H264Encoder(64, 48, fps=10, gop=3)
    rng = np.random.default_rng(1)

    units = [encoder.encode(i, rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)) for i in range(7)]

    assert [unit.keyframe for unit in units] == [True, False, False, True, False, False, True]
    for unit in units:
        kinds = {nal_type(nal) for nal in unit.nals}
        assert ({NAL_SPS, NAL_PPS} <= kinds) is unit.keyframe


def test_start_codes_of_both_lengths_are_taken_off():
    assert split_nals(b"\x00\x00\x00\x01\x67ab\x00\x00\x01\x68c") == (b"\x67ab", b"\x68c")


@pytest.mark.parametrize(
    ("header", "allowed", "chosen"),
    [
        ("RTP/AVP/TCP;unicast;interleaved=2-3", ("tcp",), Interleaved(2, 3)),
        ("RTP/AVP;unicast;client_port=5000-5001, RTP/AVP/TCP;unicast;interleaved=4-5", ("tcp",), Interleaved(4, 5)),
        ("RTP/AVP;unicast;client_port=5000-5001, RTP/AVP/TCP;unicast", ("tcp", "udp"), Datagrams(5000, 5001)),
        ("RTP/AVP/TCP;unicast", ("tcp",), Interleaved(0, 1)),
        ("RTP/AVP/TCP;unicast;interleaved=8", ("tcp",), Interleaved(8, 9)),
        ("RTP/AVP/TCP;unicast;interleaved=x-y", ("tcp",), None),
        ("RTP/AVP/TCP;unicast;interleaved=255-256", ("tcp",), None),
        ("RTP/AVP/UDP;unicast;client_port=6000", ("udp",), Datagrams(6000, 6001)),
        ("RTP/AVP;unicast;client_port=99999-100000", ("udp",), None),
        ("RTP/AVP;unicast", ("udp",), None),
        ("RTP/AVP;multicast;client_port=5000-5001", ("udp",), None),
        ("RTP/AVP;unicast;client_port=5000-5001", ("tcp",), None),
        ("", ("tcp", "udp"), None),
    ],
)
def test_transport_headers(header, allowed, chosen):
    assert chosen_transport(header, allowed) == chosen


def test_the_description_names_profile_and_parameter_sets():
    sdp = session_description("127.0.0.1", (bytes.fromhex("6742c01e"), b"\x68x"), fps=0.5, title=b"\xc3\xff")

    assert b"profile-level-id=42C01E" in sdp
    assert b"sprop-parameter-sets=Z0LAHg==,aHg=" in sdp
    assert b"a=framerate:0.5\r\n" in sdp
    assert b"s=\xc3\xff\r\n" in sdp
