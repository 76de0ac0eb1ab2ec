"""The ingest process itself."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.base import Section


class IngestConfig(Section):
    """The camera side as a process. Changes to `cameras` take effect while it runs, all others at the next start."""

    metrics_host: str = Field(
        "127.0.0.1", title="Metrics host", description="Address on which Prometheus may fetch metrics."
    )
    metrics_port: int | None = Field(
        None, title="Metrics port", description="Of http://HOST:PORT/metrics; 0 takes a free one.", ge=0, le=65535
    )
    watch_added: bool = Field(
        True,
        title="Watch added cameras",
        description="Also watch cameras that were added over the API. With several ingests on one Redis, true in one.",
    )
