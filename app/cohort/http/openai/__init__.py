"""OpenAI's HTTP API, for language models."""
