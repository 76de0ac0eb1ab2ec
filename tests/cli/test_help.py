"""--help: complete, worth reading, and there before anybody wonders whether it hangs."""

import subprocess
import sys
import time

import pytest

from pipeline.cli.app import command_names

COMMANDS = [
    "bench",
    "cameras",
    "check",
    "demo",
    "demo-camera",
    "describe",
    "events",
    "ingest",
    "keys",
    "models",
    "queue",
    "serve",
    "trace",
    "tune",
    "up",
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={"COLUMNS": "200"})


def test_the_commands_are_these() -> None:
    assert command_names() == COMMANDS


def test_the_overview_names_each_command_with_a_sentence() -> None:
    output = run("--help").stdout
    for name in COMMANDS:
        (line,) = [line for line in output.splitlines() if line.startswith(f"│ {name} ")]
        assert len(line.split(name, 1)[1].split()) >= 5
    assert "WATCHWORD_SERVER__PORT" in output


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("up", ["--config"]),
        ("demo", ["--port", "--video", "--model", "--weights", "--data-dir"]),
        ("ingest", ["--config"]),
        ("serve", ["--config", "--model", "--host", "--port", "--no-cameras"]),
        ("describe", ["IMAGE...", "--model", "--prompt", "--max-tokens"]),
        ("cameras", ["list", "discover"]),
        ("cameras list", ["--url", "--api-key"]),
        ("cameras discover", ["--timeout", "--interface"]),
        ("check", ["--config", "--timeout"]),
        ("models", ["list", "info", "install"]),
        ("models install", ["NAME", "--revision"]),
        ("events", ["prune"]),
        ("events prune", ["--config", "--dry-run", "--days", "--max-gib"]),
        ("queue", ["--config", "--json", "--watch", "dead"]),
        ("queue dead", ["list", "show", "replay", "drop"]),
        ("queue dead replay", ["ID", "--config", "--all"]),
        ("trace", ["FILE", "--url", "--api-key"]),
        ("bench", ["stall"]),
        ("bench stall", ["--base-url", "--load", "--rate", "--one-tile", "--prompt-tokens", "--seconds", "--out"]),
        ("tune", ["--config", "--model", "--quick", "--budgets", "--targets", "--limit-ms", "--out"]),
        ("demo-camera", ["--host", "--port", "--video", "--fps", "--transport", "--username", "--auth", "--fault"]),
        ("keys", ["new", "hash"]),
    ],
)
def test_each_command_explains_itself_and_its_options(command: str, options: list[str]) -> None:
    result = run(*command.split(), "--help")
    assert result.returncode == 0
    assert all(option in result.stdout for option in options)
    described = [line for line in result.stdout.splitlines() if line.startswith("│")]
    assert all(len(line.strip("│ ").split()) >= 4 for line in described if line.strip("│ *").startswith("--"))


def test_help_is_instant() -> None:
    """The best of three, in CPU time of the child: other processes on the machine don't count."""
    code = (
        "import resource, subprocess, sys; subprocess.run([sys.executable, '-m', 'pipeline.cli', '--help'], stdout=-3);"
    )
    code += "print(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]))"
    times = []
    for _ in range(3):
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        times.append(float(result.stdout))
    assert min(times) < 1.0


def test_nothing_asked_shows_the_help_and_a_wrong_word_says_so() -> None:
    assert "Usage" in run().stdout + run().stderr
    result = run("dmeo")
    assert result.returncode == 2 and "dmeo" in result.stderr
    result = run("--log-level", "loud", "check")
    assert result.returncode == 2 and "loud" in result.stderr


def test_the_version() -> None:
    begun = time.monotonic()
    assert run("--version").stdout.startswith("watchword 0.")
    assert time.monotonic() - begun < 30
