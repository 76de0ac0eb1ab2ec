"""What reaches the console or the log collector, and how often."""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from pipeline.logs import ThrottledLogger, setup_logging


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, hook, thread_hook = list(root.handlers), root.level, sys.excepthook, threading.excepthook
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.excepthook, threading.excepthook = hook, thread_hook
    logging.captureWarnings(False)


def test_json_lines_carry_extras_and_exceptions_without_credentials(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", json=True)
    try:
        raise OSError("refused: 'rtsp://u:pwd1@h'")
    except OSError:
        logging.getLogger("ingest.camera").exception("open %s", "rtsp://u:pwd1@h", extra={"reason": "auth_failed"})
    entry = json.loads(capsys.readouterr().err)
    assert entry["message"] == "open rtsp://***@h"
    assert (entry["level"], entry["logger"], entry["reason"]) == ("error", "ingest.camera", "auth_failed")
    assert entry["time"].endswith("+00:00")
    assert "OSError: refused: 'rtsp://***@h'" in entry["exception"]
    assert "pwd1" not in json.dumps(entry)


def test_the_plain_format_is_one_line_with_the_exception_below(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("WARNING")
    logging.getLogger("x").info("not said")
    logging.getLogger("x").warning("said")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].endswith("WARNING x: said")


def test_setting_up_twice_says_each_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    setup_logging()
    logging.getLogger("x").info("once")
    assert capsys.readouterr().err.count("once") == 1


def test_libraries_with_handlers_of_their_own_are_filtered_too() -> None:
    setup_logging()
    logger = logging.getLogger("ultralytics")
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        logger.error("1/1: rtsp://u:pwd1@h")
    finally:
        logger.removeHandler(handler)
    # ultralytics, once imported, puts a word before its errors.
    assert [line.removeprefix("ERROR ❌ ") for line in seen] == ["1/1: rtsp://***@h"]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        setup_logging("loud")


@pytest.mark.parametrize("where", ["raise E", "import threading; t = threading.Thread(target=f); t.start(); t.join()"])
def test_uncaught_errors_go_through_the_redactor(where: str) -> None:
    code = f"""
from pipeline.logs import setup_logging
setup_logging()
E = OSError("at rtsp://u:pwd1@h")
def f(): raise E
{where}
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert "OSError: at rtsp://***@h" in run.stderr
    assert "pwd1" not in run.stderr + run.stdout


def test_a_repeating_line_is_said_first_and_then_every_nth_time(caplog: pytest.LogCaptureFixture) -> None:
    """R04: hundreds of lines a minute from one offline camera."""
    throttled = ThrottledLogger(logging.getLogger("test.throttle"), every=20)
    for _ in range(60):
        throttled.warning("front", "camera %s refused", "front")
    throttled.warning("back", "camera %s refused", "back")
    assert [record.getMessage() for record in caplog.records] == [
        "camera front refused",
        "camera front refused (20 times)",
        "camera front refused (40 times)",
        "camera front refused (60 times)",
        "camera back refused",
    ]


def test_after_recovery_the_first_failure_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    throttled = ThrottledLogger(logging.getLogger("test.throttle"), every=100)
    for _ in range(3):
        throttled.warning("front", "refused")
    assert throttled.clear("front") == 3
    assert throttled.clear("front") == 0
    assert throttled.warning("front", "refused")
    assert len(caplog.records) == 2


def test_the_throttle_forgets_the_keys_that_were_quiet_longest() -> None:
    throttled = ThrottledLogger(logging.getLogger("test.throttle"), every=100, max_keys=2)
    for key in ("a", "b", "a", "c"):
        throttled.warning(key, "x")
    assert not throttled.warning("a", "x")
    assert throttled.warning("b", "x")
