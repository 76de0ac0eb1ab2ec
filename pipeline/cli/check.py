"""``watchword check``: one table of everything that must be in place; exit code 2 with the reasons when it isn't."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.cli.checks.cameras import check_cameras, check_decoders
from pipeline.cli.checks.deliveries import check_deliveries
from pipeline.cli.checks.finding import Finding, Level, ok
from pipeline.cli.checks.machine import check_data_folder, check_limits, check_pictures
from pipeline.cli.checks.models import check_model, check_weights
from pipeline.cli.checks.redis_server import check_redis
from pipeline.cli.console import progress
from pipeline.config import WatchwordConfig
from pipeline.config.load import load_config

_STYLE = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def run_check(path: Path | None, *, timeout: float) -> int:
    """0: all well; 2: something can't work. Raises ConfigProblem for a configuration that can't be read."""
    config = load_config(path)
    findings = [ok("configuration", str(path) if path else "defaults and environment")]
    with progress("checking") as report:
        for name, look in _looks(config, timeout):
            report(name)
            findings.extend(look())
    _print_table(findings)
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    for finding in problems:
        print(f"watchword: {finding.subject}: {finding.text}", file=sys.stderr)
    return 2 if problems else 0


def _looks(config: WatchwordConfig, timeout: float) -> list[tuple[str, Callable[[], Iterable[Finding]]]]:
    """Quick ones first."""
    return [
        ("data folder", lambda: check_data_folder(config.store)),
        ("pictures", lambda: check_pictures(config.store)),
        ("limits", lambda: check_limits(len(config.cameras))),
        ("redis", lambda: check_redis(config.redis, timeout)),
        ("deliveries", lambda: check_deliveries(config, timeout)),
        ("decoders", lambda: check_decoders(config.cameras)),
        ("cameras", lambda: check_cameras(config.cameras, timeout)),
        ("detector weights", lambda: check_weights(config.detector)),
        ("model", lambda: check_model(config.engine, timeout)),
    ]


def _print_table(findings: list[Finding]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        style = _STYLE[finding.level]
        table.add_row(Text(finding.subject), Text(finding.level.value, style=style), Text(finding.text))
    Console().print(table)
