"""Checks that every request passes before its route, as pure ASGI."""
