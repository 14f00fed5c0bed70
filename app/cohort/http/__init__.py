"""The HTTP API: every route is decode, call, encode."""
