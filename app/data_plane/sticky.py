"""The sticky key, which keeps a caller on a variant, as found in a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.rollouts import Sticky


def sticky_key(
    sticky: Sticky, find_header: Callable[[str], str | None], parameters: Mapping[str, object]
) -> str | None:
    """Find a request's sticky key; None where it has none.

    sticky: The header or parameter that holds the key.
    find_header: Returns a header, or over gRPC a metadata value, by its name.
    parameters: The request's parameters; a number or a boolean is written as in JSON.
    """
    if sticky.header:
        return find_header(sticky.header)
    value = parameters.get(sticky.parameter)
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)
