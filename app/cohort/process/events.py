"""Distribution of events: each part adds a listener, so that earlier parts need not know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Event = TypeVar("Event")


class Listeners(Generic[Event]):
    """Calls all listeners with each event, in the order in which they were added."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Event], None]] = []

    def add(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    def __call__(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
