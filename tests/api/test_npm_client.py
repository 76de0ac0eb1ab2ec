"""The official ``openai`` client for Node, where Node and the npm registry are at hand; skipped otherwise."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.api.conftest import MODEL, user
from tests.api.pictures import data_url
from tests.api.waiting import until

SCRIPT = Path(__file__).with_name("openai_client.mjs")
INSTALL_S = 60


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory) -> Path:
    """A folder with the newest client installed from the registry."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("needs Node and npm")
    folder = tmp_path_factory.mktemp("npm")
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0"]
    command += ["--fetch-timeout=10000", "openai@latest"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the npm registry does not answer")
    if done.returncode:
        pytest.skip(f"the npm registry gives no openai package: {done.stderr.strip()[-200:]}")
    shutil.copyfile(SCRIPT, folder / SCRIPT.name)
    return folder


def test_the_npm_client(node_folder, server, client, engine):
    command = ["node", SCRIPT.name, f"{server.url}/v1", MODEL, data_url()]
    done = subprocess.run(command, cwd=node_folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    text = client.chat.completions.create(model=MODEL, messages=user(), temperature=0, max_tokens=8)
    assert found["models"] == [MODEL]
    said = text.choices[0].message.content
    assert found["chat"] == found["chatStream"] == found["response"] == found["responseStream"] == said
    assert found["retrieved"] == said and found["continued"] is True
    assert found["usage"]["completion_tokens"] == 8
    assert found["pictureTokens"] > 64 and found["completion"]
    assert found["events"][0] == "response.created" and found["events"][-1] == "response.incomplete"
    error = found["error"]
    assert (error["kind"], error["status"], error["param"]) == ("BadRequestError", 400, "temperature")
    assert error["id"].startswith("req_")
    until(lambda: not engine._core.has_work)
