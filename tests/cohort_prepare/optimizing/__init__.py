"""Models rewritten step by step."""
