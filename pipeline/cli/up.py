"""``watchword up``: ingest and serve as two supervised processes, with an embedded Valkey where none is named."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from pipeline.child import ChildSpec
from pipeline.cli.parts import part
from pipeline.cli.signals import on_stop_signals
from pipeline.config.load import load_config
from pipeline.embedded_redis import EmbeddedValkey
from pipeline.supervisor import Supervisor

VALKEY_STOP_S = 1.5


def run_up(path: Path) -> int:
    """Exit code of the supervisor. Raises ConfigProblem before anything is started, EmbeddedValkeyError."""
    config = load_config(path)
    environ = dict(os.environ)
    with ExitStack() as open_parts:
        if not config.redis.is_named:
            valkey = EmbeddedValkey(config.store.data_dir / "valkey")
            environ["WATCHWORD_REDIS__URL"] = valkey.start()
            open_parts.callback(valkey.stop, VALKEY_STOP_S)
        supervisor = Supervisor(up_parts(path, environ))
        with on_stop_signals(supervisor.stop, supervisor.reload):
            return supervisor.run()


def up_parts(path: Path, environ: dict[str, str]) -> list[ChildSpec]:
    """Both parts read the same file; what must not stand there comes to them by ``environ``."""
    return [part(name, "--config", str(path), environ=environ) for name in ("ingest", "serve")]
