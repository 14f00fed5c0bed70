"""An OpenTelemetry collector in this process, for tests that look at spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.waiting import wait_until

SERVER = Span.SPAN_KIND_SERVER


class Seen(NamedTuple):
    """A span, its attributes, and those of the process."""

    span: Span
    attributes: Mapping[str, object]
    resource: Mapping[str, object]

    @property
    def id(self) -> str:
        return self.span.span_id.hex()

    @property
    def parent(self) -> str:
        return self.span.parent_span_id.hex()

    @property
    def links(self) -> list[str]:
        return [one.span_id.hex() for one in self.span.links]


class Collector:
    """Takes spans by OTLP over HTTP. With `hangs`, it never answers until it is closed."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.seen: list[Seen] = []
        self._released = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if hangs:
                    collector._released.wait()
                    return
                if self.headers["content-encoding"] == "gzip":
                    body = gzip.decompress(body)
                collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.environment = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_address[1]}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    def _take(self, request: ExportTraceServiceRequest) -> None:
        for sent in request.resource_spans:
            resource = _plain(sent.resource.attributes)
            for scope in sent.scope_spans:
                self.seen += [Seen(one, _plain(one.attributes), resource) for one in scope.spans]

    def of(self, trace_id: str) -> list[Seen]:
        """The spans of a trace by now."""
        return [one for one in self.seen if one.span.trace_id.hex() == trace_id]

    def trace(self, trace_id: str, *names: str) -> dict[str, Seen]:
        """The spans of a trace by name, once its SERVER span and these are there."""

        def whole() -> dict[str, Seen] | None:
            found = {
                "SERVER" if one.span.kind == SERVER else one.span.name: one
                for one in self.of(trace_id)
            }
            return found if {"SERVER", *names} <= found.keys() else None

        found: dict[str, Seen] | None = wait_until(whole)
        assert found is not None
        return found

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()


def _plain(attributes: Sequence[KeyValue]) -> Mapping[str, object]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value")
        for one in attributes
    }
