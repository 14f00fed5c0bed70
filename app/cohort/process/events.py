"""Who hears of an event: each part adds itself, so that none needs those that come after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Event = TypeVar("Event")


class Listeners(Generic[Event]):
    """Calls everybody who was added with each event, in that order."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Event], None]] = []

    def add(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    def __call__(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
