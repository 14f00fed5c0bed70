"""The HTTP face: every route is decode, call, encode."""
