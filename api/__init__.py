"""The HTTP side: OpenAI-compatible endpoint, operator API, operator page, health, metrics."""
