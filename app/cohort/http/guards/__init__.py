"""What every request goes through before its route, as pure ASGI."""
