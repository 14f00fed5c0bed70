"""The parts of uvicorn and httptools that the fast path's protocol uses, one by one.

Each failure states what has changed, and what depends on it. Nothing else of uvicorn's internals is
used, so an upgrade that passes here and in test_hot.py is fine.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
import pytest
from uvicorn import Config
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import Server, ServerState

from tests.waiting import until

METHODS = {
    "__init__": (
        ["self", "config", "server_state", "app_state", "_loop"],
        "HotProtocol.__init__ passes on what Server.startup gives to config.http_protocol_class",
    ),
    "connection_made": (["self", "transport"], "HotProtocol puts its own Flow in place after it"),
    "connection_lost": (["self", "exc"], "HotProtocol lets all requests leave before it"),
    "eof_received": (
        ["self"],
        "inherited: a client that ends its sending has left, so its connection closes",
    ),
    "data_received": (["self", "data"], "HotProtocol replaces it: upgrades, limits, refusals"),
    "on_message_begin": (["self"], "HotProtocol._leave_to_asgi has it make the scope"),
    "on_url": (["self", "url"], "inherited: it adds to self.url"),
    "on_header": (["self", "name", "value"], "HotProtocol replaces it"),
    "on_headers_complete": (["self"], "HotProtocol._leave_to_asgi has it make and start a cycle"),
    "on_body": (["self", "body"], "HotProtocol calls it for uvicorn's own requests"),
    "on_message_complete": (["self"], "HotProtocol calls it for uvicorn's own requests"),
    "on_response_complete": (["self"], "HotProtocol replaces it: it starts the next request"),
    "_start_asgi_task": (["self", "cycle", "app"], "HotProtocol starts requests of both kinds"),
    "pause_writing": (["self"], "HotProtocol stops reading, too"),
    "resume_writing": (["self"], "HotProtocol reads and answers on"),
    "shutdown": (["self"], "inherited: it closes, or sets keep_alive of the last cycle"),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_there_with_its_parameters(name: str) -> None:
    """HotProtocol overrides or calls it."""
    parameters, use = METHODS[name]
    method = getattr(HttpToolsProtocol, name, None)
    assert method is not None, f"HttpToolsProtocol.{name} is gone. {use}"
    found = list(inspect.signature(method).parameters)
    assert found == parameters, f"HttpToolsProtocol.{name} takes {found}, not {parameters}. {use}"


def test_no_method_is_new() -> None:
    """A new callback would pass by HotProtocol: look whether it has to do anything there."""
    others = {
        "handle_websocket_upgrade",
        "send_400_response",
        "timeout_keep_alive_handler",
        "_get_upgrade",
        "_should_upgrade",
        "_should_upgrade_to_ws",
        "_unset_keepalive_if_required",
        "_unsupported_upgrade_warning",
    }
    found = {name for name, value in vars(HttpToolsProtocol).items() if callable(value)}
    assert found <= {*METHODS, *others}, "HttpToolsProtocol has new methods"


class Transport(asyncio.Transport):
    """Notes what is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return "close" in self.calls

    def close(self) -> None:
        self.calls.append("close")

    def pause_reading(self) -> None:
        self.calls.append("pause_reading")

    def resume_reading(self) -> None:
        self.calls.append("resume_reading")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def read_and_answer(scope: Any, receive: Any, send: Any) -> None:
    """The smallest application that does everything."""
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


class Noted(HttpToolsProtocol):
    """uvicorn's protocol, noting which of its methods are called, in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.noted: list[str] = []
        super().__init__(*args, **kwargs)


def _noting(name: str) -> Callable[..., Any]:
    def method(self: Noted, *args: Any) -> Any:
        self.noted.append(name)
        return getattr(HttpToolsProtocol, name)(self, *args)

    return method


for _name in METHODS:
    if _name != "__init__":
        setattr(Noted, _name, _noting(_name))


@pytest.fixture
async def connection() -> Noted:
    """A connection of uvicorn's own protocol."""
    config = Config(read_and_answer, log_config=None, ws="none", lifespan="off")
    loop = asyncio.get_running_loop()
    made = Noted(config=config, server_state=ServerState(), app_state={}, _loop=loop)
    made.connection_made(Transport())
    return made


REQUEST = b"POST /a HTTP/1.1\r\nHost: x\r\ncontent-length: 2\r\n\r\n{}"


async def test_attributes_of_a_connection(connection: Noted) -> None:
    """HotProtocol reads and sets these attributes."""
    kinds = {
        "parser": httptools.HttpRequestParser,  # HotProtocol feeds it, and replaces it on upgrades
        "loop": asyncio.AbstractEventLoop,
        "flow": FlowControl,
        "pipeline": deque,  # the next one last: appendleft and pop
        "connections": set,  # the sweep goes over them
        "server_state": ServerState,
    }
    for name, kind in kinds.items():
        value = getattr(connection, name, None)
        assert isinstance(value, kind), f"HttpToolsProtocol.{name} is {value!r}, no {kind.__name__}"
    assert connection in connection.connections, "connection_made no longer joins connections"
    assert getattr(connection, "cycle", 0) is None, (
        "a new connection's cycle was None: HotProtocol asks for that"
    )
    state = connection.server_state
    assert isinstance(state.default_headers, list), "HotProtocol.send writes default_headers"
    assert state.total_requests == 0, "HotProtocol counts into server_state.total_requests"


async def test_order_of_callbacks(connection: Noted) -> None:
    """The order from the parser to the answer is fixed, for one request and for two at once."""
    connection.noted.clear()
    connection.data_received(REQUEST)
    assert connection.noted == [
        "data_received",
        "on_message_begin",
        "on_url",
        "on_header",
        "on_header",
        "on_headers_complete",
        "_start_asgi_task",  # a cycle starts when its headers are there, not its body
        "on_body",
        "on_message_complete",
    ]
    assert connection.headers == [(b"host", b"x"), (b"content-length", b"2")], "in lower case"
    assert connection.url == b"/a"
    first = connection.cycle
    connection.data_received(REQUEST)
    assert connection.noted[-3:] == ["on_headers_complete", "on_body", "on_message_complete"], (
        "a request whose turn has not come is no longer left in the pipeline"
    )
    assert [cycle for cycle, _ in connection.pipeline] == [connection.cycle]
    connection.noted.clear()
    await _complete(first)
    assert connection.noted == ["on_response_complete", "_start_asgi_task"], (
        "uvicorn no longer starts the next request when one is answered"
    )
    assert not connection.pipeline


async def _complete(cycle: RequestResponseCycle) -> None:
    await until(lambda: cycle.response_complete)


async def test_attributes_of_a_cycle(connection: Noted) -> None:
    """HotProtocol reads and sets these of uvicorn's requests, and HotCycle replaces them."""
    connection.data_received(REQUEST[:-1])
    cycle = connection.cycle
    values = {
        "more_body": True,
        "response_started": False,
        "response_complete": False,
        "disconnected": False,
        "keep_alive": True,
        "chunked_encoding": None,
        "expected_content_length": 0,
    }
    for name, value in values.items():
        found = getattr(cycle, name, None)
        assert found == value, f"RequestResponseCycle.{name} is {found!r}, not {value}"
    assert callable(getattr(cycle.message_event, "set", None)), (
        "RequestResponseCycle.message_event is no event: HotProtocol wakes the application by it"
    )
    connection.data_received(REQUEST[-1:])
    assert not cycle.more_body, "more_body no longer ends with the body"
    await _complete(cycle)
    assert cycle.response_started, "response_started no longer tells of an answer"


async def test_who_is_disconnected_sends_nothing(connection: Noted) -> None:
    """HotProtocol uses this to refuse a broken body instead of uvicorn's request."""
    connection.data_received(REQUEST[:-1])
    cycle = connection.cycle
    cycle.disconnected = True
    cycle.message_event.set()
    assert (await cycle.receive())["type"] == "http.disconnect"
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    assert connection.transport.written == b""  # type: ignore[attr-defined]


async def test_what_uvicorn_asks_of_a_cycle(connection: Noted) -> None:
    """HotCycle is in `cycle`: shutdown and connection_lost must use only its attributes."""
    asked: set[str] = set()

    class Cycle:
        def __getattr__(self, name: str) -> Any:
            asked.add(name)
            return asyncio.Event() if name == "message_event" else False

    connection.cycle = Cycle()  # type: ignore[assignment]
    connection.shutdown()
    assert connection.cycle.keep_alive is False, "shutdown no longer ends the last cycle"
    connection.connection_lost(None)
    assert connection.cycle.disconnected, "connection_lost no longer tells the last cycle"
    allowed = {"response_complete", "message_event"}
    assert asked <= allowed, f"uvicorn asks a cycle for {asked - allowed}, which HotCycle lacks"
    assert connection.parser is None, "connection_lost no longer lets the parser go, a circle"


async def test_flow_control() -> None:
    """Flow overrides resume_reading and reads both states; the transport gets the changes."""
    transport = Transport()
    flow = FlowControl(transport)
    assert (flow.read_paused, flow.write_paused) == (False, False)
    flow.pause_reading()
    flow.pause_reading()
    assert flow.read_paused
    flow.resume_reading()
    flow.resume_reading()
    assert transport.calls == ["pause_reading", "resume_reading"], "once for each change"
    flow.pause_writing()
    assert flow.write_paused
    flow.resume_writing()
    assert not flow.write_paused


def test_the_server_makes_connections_by_config() -> None:
    """`http=` may be anything that can be called; `Server.startup` calls it by these names."""
    made: list[Any] = []
    config = Config(read_and_answer, http=made.append, log_config=None)  # type: ignore[arg-type]
    config.load()
    assert getattr(config, "http_protocol_class", None) == made.append, (
        "Config no longer passes `http` on"
    )
    source = inspect.getsource(Server.startup)
    for argument in (
        "config=config",
        "server_state=self.server_state",
        "app_state=",
        "_loop=_loop",
    ):
        assert argument in source, f"Server.startup no longer passes {argument}"
    assert "connection.shutdown()" in inspect.getsource(Server.shutdown), (
        "Server.shutdown no longer asks each connection to end"
    )


def test_the_parser_tells_where_an_upgrade_begins() -> None:
    """HotProtocol._decline reads a request that would upgrade once more, from there on."""

    class Nobody: ...

    parser = httptools.HttpRequestParser(Nobody())
    head = b"POST / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as upgrade:
        parser.feed_data(head + b"{}")
    assert upgrade.value.args == (len(head),), "HttpParserUpgrade no longer says where"
    assert parser.should_upgrade()


def test_the_parser_keeps_what_a_callback_raised() -> None:
    """HotProtocol uses it to distinguish a caller's mistakes from bugs of Cohort."""

    class Raising:
        def on_message_begin(self) -> None:
            raise KeyError("why")

    parser = httptools.HttpRequestParser(Raising())
    with pytest.raises(httptools.HttpParserCallbackError) as raised:
        parser.feed_data(REQUEST)
    assert isinstance(raised.value.__context__, KeyError), "its __context__ is no longer the cause"
    assert issubclass(httptools.HttpParserCallbackError, httptools.HttpParserError)
    assert not issubclass(httptools.HttpParserUpgrade, httptools.HttpParserError)


def test_the_parser_is_as_lenient_as_uvicorns() -> None:
    """HotProtocol._decline makes a parser as HttpToolsProtocol does."""
    source = inspect.getsource(httptools_impl.HttpToolsProtocol.__init__)
    assert "httptools.HttpRequestParser(self)" in source
    assert "set_dangerous_leniencies(lenient_data_after_close=True)" in source
