"""Credentials never survive as text: a table from public reports (R14 to R16) and properties over random passwords."""

import json
import logging
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.redaction import HIDDEN, RedactingFilter, redact, register_secret

PASSWORDS = [
    "S3cret", "p@ss", "p@@ss", "p:w", "p#w0rd", "p?w0rd", "p/w0rd", "p%w0rd", "p%21", "^caret^", "ex!cl", "a&b=c",
    "quo'te", 'dou"ble', "back\\slash", "ümläut", "日本語", "a+b", "$HOME", "%40%40", "100%",
]  # fmt: skip


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("scheme", ["rtsp", "rtsps", "redis", "rediss", "http", "https", "postgresql+psycopg"])
def test_user_info_of_any_url_is_hidden_raw_and_encoded(scheme: str, password: str) -> None:
    raw = f"{scheme}://admin:{password}@cam.local:554/stream1"
    encoded = f"{scheme}://admin:{quote(password, safe='')}@cam.local:554/stream1"
    for url in (raw, encoded):
        for line in (url, f"opening {url} failed", f"'{url}'", f'{{"url":"{url}","x":1}}', f"({url})"):
            hidden = redact(line)
            assert f"{scheme}://{HIDDEN}@cam.local:554/stream1" in hidden
            assert password not in hidden
            assert quote(password, safe="") not in hidden
            assert "admin" not in hidden


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_url_that_is_itself_percent_encoded_is_hidden(password: str) -> None:
    url = f"rtsp://admin:{quote(password, safe='')}@cam/x"
    once, twice = quote(url, safe=""), quote(quote(url, safe=""), safe="")
    for line in (once, twice, f"http://proxy/?src={once}&a=1"):
        assert quote(quote(password, safe=""), safe="") not in redact(line)
        assert "admin" not in redact(line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # R15: the line of ffmpeg that leaked in Frigate #5798.
        (
            "rtsp://u:pw@h/x: Protocol not found\nDid you mean file:rtsp://u:p%21w@h/x",
            "rtsp://***@h/x: Protocol not found\nDid you mean file:rtsp://***@h/x",
        ),
        # R16: what str() of PyAV's errors looks like.
        (
            "[Errno 111] Connection refused: 'rtsp://user:S3cret@127.0.0.1:18551/x'",
            "[Errno 111] Connection refused: 'rtsp://***@127.0.0.1:18551/x'",
        ),
        ("redis://:pw@127.0.0.1:6379/0", "redis://***@127.0.0.1:6379/0"),
        ("unix://u:pw@/run/valkey.sock?db=0", "unix://***@/run/valkey.sock?db=0"),
        ("https://t0ken@git.example/x", "https://***@git.example/x"),
        ("rtsp://a:b@h1/x,rtsp://c:d@h2/y", "rtsp://***@h1/x,rtsp://***@h2/y"),
        ("rtsp:\\/\\/u:pw@h\\/x", "rtsp:\\/\\/***@h\\/x"),
        ("no route to admin:pw@10.0.0.5:554", "no route to ***@10.0.0.5:554"),
        ("no route to admin:p@ss/w@10.0.0.5:554", "no route to ***@10.0.0.5:554"),
        ("http://cam/snap.jpg?user=a&password=pw1&c=2", "http://cam/snap.jpg?user=a&password=***&c=2"),
        ('{"api_key": "abc", "n": 1}', '{"api_key": "***", "n": 1}'),
        ("Authorization: Basic YWRtaW46cHc=", "Authorization: ***"),
        ('Authorization: Digest username="u", response="6629fae4"\r\nCSeq: 4', "Authorization: ***\r\nCSeq: 4"),
        ("sent Bearer abcdef123456 along", "sent Bearer *** along"),
        ("key sk-abcdefghijklmnop1234 is wrong", "key *** is wrong"),
    ],
)
def test_lines_from_reports(line: str, expected: str) -> None:
    assert redact(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "camera front: ONLINE 1280x720 h264 15.0 fps",
        "http://127.0.0.1:8000/v1 answers",
        "rtsp://cam.local:554/stream1 opened",
        '{"url":"rtsp://cam/x","owner":"bob@example.com"}',
        "max_tokens=5 password=None api_key: null",
        "basic information about the bearer",
        "2025-11-29T16:55:36.500+00:00 file C:/x",
        "see http://h/?mail=bob%40example.com",
    ],
)
def test_lines_without_secrets_stay_as_they_are(line: str) -> None:
    assert redact(line) == line


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=6, max_size=20)


@given(_TEXT, _TEXT)
def test_no_password_without_quotes_and_spaces_survives(user: str, password: str) -> None:
    """A quote before a comma or colon ends a URL in prose; passwords with quotes are hidden by registering them."""
    user, password = (text.replace("'", "").replace('"', "").replace("//", "") for text in (user, password))
    hidden = redact(f"error at rtsp://{user}:Q7{password}Z9@host/x: refused")
    assert "Q7" not in hidden and "Z9" not in hidden
    assert redact(hidden) == hidden


def test_a_registered_secret_is_hidden_in_every_spelling() -> None:
    register_secret('h" #un/t\\er%2')
    secret = 'h" #un/t\\er%2'
    for form in (secret, quote(secret, safe=""), quote(secret), json.dumps(secret), repr(secret), quote(quote(secret))):
        assert redact(f"value <{form}> here").replace('"', "").replace("'", "") == f"value <{HIDDEN}> here"


def test_a_registered_secret_of_three_letters_does_not_eat_the_log() -> None:
    register_secret("the")
    assert redact("the camera") == "the camera"


def _record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    logger = logging.getLogger("test.redaction")
    record = logger.makeRecord(logger.name, logging.ERROR, "f.py", 1, message, args, None, extra=extra or None)
    RedactingFilter().filter(record)
    return record


def test_the_filter_covers_arguments_and_extras() -> None:
    record = _record("open %s: %r", "rtsp://u:pwd1@h", OSError("rtsp://u:pwd1@h"), camera="rtsp://u:pwd1@h")
    assert "pwd1" not in record.getMessage() + record.camera  # type: ignore[attr-defined]


def test_the_filter_covers_the_exception_its_causes_and_the_stack() -> None:
    try:
        try:
            raise OSError("rtsp://u:inner1@h")
        except OSError as error:
            raise ValueError("at redis://:outer1@h") from error
    except ValueError as error:
        logger = logging.getLogger("test.redaction")
        record = logger.makeRecord("x", 40, "f.py", 1, "failed", (), (type(error), error, error.__traceback__))
        record.stack_info = "Stack: rtsp://u:stack1@h"
    RedactingFilter().filter(record)
    text = logging.Formatter().format(record)
    assert "ValueError: at redis://***@h" in text
    assert not any(secret in text for secret in ("inner1", "outer1", "stack1"))


def test_a_wrong_format_string_costs_no_line() -> None:
    assert "rtsp://***@h" in _record("%d cameras", "rtsp://u:pw@h").getMessage()


def test_long_lines_take_linear_time() -> None:
    picture = "data:image/jpeg;base64," + "Ab0/+" * 200_000
    assert redact(picture + " x@y") == picture + " x@y"
