"""What keeps a caller on a variant, as a request carries it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.rollouts import Sticky


def sticky_key(
    sticky: Sticky, find_header: Callable[[str], str | None], parameters: Mapping[str, object]
) -> str | None:
    """What a request has where a rollout looks; a number or a boolean as JSON writes it.

    `find_header` gives a header, over gRPC a pair of the metadata, by its name. None for none.
    """
    if sticky.header:
        return find_header(sticky.header)
    value = parameters.get(sticky.parameter)
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)
