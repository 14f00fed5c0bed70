"""The process as an ASGI application, and what it imports before it serves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from cohort.process.lifespan import LaterApplication
from cohort.process.service import Service
from tests.waiting import PATIENCE, iterations, until

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LATER = ("fastapi", "starlette", "grpc", "google.protobuf", "httpx", "jwt", "cryptography")
"""Modules that take long to import, and that the first answer does not need."""


class Parts:
    """A service that records its calls, and the application's maker."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.loaded = asyncio.Event()
        self.core = self.registry = self
        self.control_plane = self
        self.draining = True
        self.failing: Exception | None = None
        self.may_end = threading.Event()
        self.may_end.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """As the service's."""
        if self.failing is not None:
            raise self.failing
        self.calls.append("started")
        yield
        self.calls.append("stopped")

    async def first_loaded(self) -> None:
        """As the registry's."""
        await self.loaded.wait()

    def make(self, service: Service) -> ASGIApp:
        """Build an application that answers with its path."""
        assert cast(object, service) is self
        self.calls.append("made")
        self.may_end.wait(PATIENCE)
        if self.failing is not None:
            raise self.failing

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "answer", "path": scope["path"]})

        return answer


class Asked:
    """One scope: what the server sends, and what it was sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.coming: asyncio.Queue[Message] = asyncio.Queue()

    async def send(self, message: Message) -> None:
        """As ASGI's."""
        self.sent.append(message)

    def begin(self, application: LaterApplication, kind: str, path: str = "") -> asyncio.Task[None]:
        """Let the application have the scope."""
        answering: Callable[..., Awaitable[None]] = application
        return asyncio.ensure_future(
            _awaited(answering({"type": kind, "path": path}, self.coming.get, self.send))
        )

    @property
    def kinds(self) -> list[str]:
        """Return the types of the sent messages."""
        return [message["type"] for message in self.sent]


async def _awaited(answer: Awaitable[None]) -> None:
    await answer


def application_of(parts: Parts) -> LaterApplication:
    """Return the application, over the parts."""
    return LaterApplication(cast(Service, parts), parts.make)


async def test_the_routes_are_built_once_the_first_models_are_loaded() -> None:
    """They are not built before, since that would take the processor from loading."""
    parts, life = Parts(), Asked()
    running = life.begin(application_of(parts), "lifespan")
    life.coming.put_nowait({"type": "lifespan.startup"})
    await until(lambda: life.kinds == ["lifespan.startup.complete"])
    assert parts.calls == ["started"]
    parts.loaded.set()
    await until(lambda: parts.calls == ["started", "made"])
    life.coming.put_nowait({"type": "lifespan.shutdown"})
    await running
    assert life.kinds[1:] == ["lifespan.shutdown.complete"]
    assert parts.calls == ["started", "made", "stopped"]


async def test_requests_that_need_the_routes_have_them_built_once_and_wait() -> None:
    """This holds while models are loading, since health is such a route."""
    parts = Parts()
    application = application_of(parts)
    first, second = Asked(), Asked()
    await asyncio.gather(
        first.begin(application, "http", "/a"), second.begin(application, "http", "/b")
    )
    assert [*first.sent, *second.sent] == [
        {"type": "answer", "path": "/a"},
        {"type": "answer", "path": "/b"},
    ]
    assert parts.calls == ["made"]


async def test_a_caller_who_leaves_does_not_end_the_building() -> None:
    """The others wait for the same."""
    parts = Parts()
    parts.may_end.clear()
    application = application_of(parts)
    leaving, staying = Asked(), Asked()
    gone = leaving.begin(application, "http", "/a")
    stays = staying.begin(application, "http", "/b")
    await until(lambda: parts.calls == ["made"])
    gone.cancel()
    await iterations()
    parts.may_end.set()
    await stays
    assert gone.cancelled()
    assert staying.sent == [{"type": "answer", "path": "/b"}]


async def test_building_is_tried_again_after_it_failed() -> None:
    """Building may fail because no file descriptor is left for reading a module."""
    parts = Parts()
    application = application_of(parts)
    parts.failing = OSError("too many open files")
    with pytest.raises(OSError, match="too many"):
        await Asked().begin(application, "http", "/a")
    parts.failing = None
    asked = Asked()
    await asked.begin(application, "http", "/a")
    assert asked.kinds == ["answer"]


async def test_a_service_that_cannot_start_is_a_failed_startup() -> None:
    """The server then exits."""
    parts, life = Parts(), Asked()
    parts.failing = ValueError("no port")
    life.coming.put_nowait({"type": "lifespan.startup"})
    with pytest.raises(ValueError, match="no port"):
        await life.begin(application_of(parts), "lifespan")
    assert life.kinds == ["lifespan.startup.failed"]
    assert "no port" in life.sent[0]["message"]


def test_what_the_first_answer_does_not_need_is_imported_later() -> None:
    """`cohort serve` imports no framework, no gRPC and no cryptography before it listens."""
    code = (
        "import sys, cohort.cli, cohort.process.server\n"
        f"print([name for name in {LATER} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_serving_grpc_does_not_need_its_library() -> None:
    """`grpcio` and its packages of health and reflection are the tests' own."""
    names = ["grpc", "grpc_health", "grpc_reflection", "cohort.rpc.server"]
    known = f"*(name in sys.modules for name in {names})"
    code = f"import sys, cohort.process.rpc; print({known})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False False True\n"
