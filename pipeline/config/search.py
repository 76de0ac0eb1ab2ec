"""Search by meaning."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, model_validator

from pipeline.config.base import Section


class SearchConfig(Section):
    """Search by meaning, beside search by words: off unless a server for embeddings is named."""

    embeddings_url: str | None = Field(
        None,
        title="Embeddings' URL",
        description="Base URL of an OpenAI-compatible server with /embeddings, ending in /v1.",
        pattern=r"^https?://.+",
        max_length=2000,
    )
    embeddings_model: str | None = Field(
        None, title="Embeddings' model", description="As the server calls it. Another one: all is embedded anew."
    )
    embeddings_api_key: SecretStr | None = Field(None, title="API key", description="For that server; never shown.")
    batch: int = Field(32, title="Batch", description="Descriptions in one request.", ge=1, le=2048)

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.embeddings_url is None) != (self.embeddings_model is None):
            raise ValueError("embeddings_url and embeddings_model belong together; one of them is missing")
        return self
