"""A headless Chromium spoken to over its debugging pipe (no driver, no extra package)."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


def find_chromium() -> str:
    """The browser's path; skips the test where there is none."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip("needs Chromium (apt-get install chromium) to look at the page")


# The browser reads commands from descriptor 3 and writes answers to 4, whatever our pipes are called.
_ONTO_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, wanted in zip(ends, (3, 4)):
    os.dup2(end, wanted)
    os.close(end)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page. ``errors`` collects what the console, the network and uncaught exceptions complained about."""

    def __init__(self, profile: Path, width: int = 1440, height: int = 900) -> None:
        read_end, to_browser = os.pipe()
        from_browser, write_end = os.pipe()
        command = [find_chromium(), *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ONTO_3_AND_4, str(read_end), str(write_end), *command],
            pass_fds=(read_end, write_end),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_end)
        os.close(write_end)
        self._out, self._in = to_browser, from_browser
        self._buffer = b""
        self._ids = itertools.count(1)
        self._session: str | None = None
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 30
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(raw)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif message.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str(params["args"]))

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        # A page that has just been committed may be empty and yet "complete".
        filled = "document.readyState === 'complete' && document.body?.childElementCount > 0"
        self.until(f"location.protocol !== 'about:' && {filled}")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression (a promise is awaited)."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, script: str, seconds: float = 15.0) -> Any:
        """The value of an expression once it is true; fails with the page's text when that doesn't come about."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            if time.monotonic() > end:
                text = self.run("document.body.innerText")[:2000]
                raise AssertionError(f"not in time: {script}\nerrors: {self.errors}\npage:\n{text}")
            time.sleep(0.05)
        return value

    def press(self, key: str) -> None:
        """Presses and releases a key by name: Tab, Enter, Escape."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def screenshot(self, path: Path, *, full: bool = False) -> None:
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=full)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self._session = None
            self.send("Browser.close")
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
