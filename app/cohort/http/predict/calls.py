"""The simple API: `POST /predict`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial

from cohort.codec import (
    PredictRequest,
    are_large,
    check_id,
    decode_inputs,
    encode_prediction,
    encode_simple,
    read_seconds,
)
from cohort.codec.files import File, files_work, form_files, read_files, whole_body
from cohort.codec.labels import read_top
from cohort.codec.multipart import split_parts
from cohort.codec.naming import UNNAMED, Naming, naming_of
from cohort.codec.npy import NPY, write_npy
from cohort.codec.tables import CELL_WORK, Table, has_columns, join_columns, table_of_rows
from cohort.errors import InvalidInput, UnsupportedMedia, quoted, quoted_names
from cohort.http.calls import JSON, NO_QUERY, Encoded, Read, Route, RowForm, is_large
from cohort.http.media import FORM, TEXT, asks_for_npy, is_json, is_plain, media_type
from cohort.http.predict.rows import begins_json, read_predict_rows, read_text_rows
from cohort.http.version_headers import version_headers
from cohort.serving import Headers, Lease, Outputs
from cohort.tensors import BY_NAME, Array, Arrays, TensorSpec

FORM_AT_ONCE = 8192
"""Bytes of a form that are read on the event loop: at most 1 ms, if the form has only parts."""


class PredictCall(PredictRequest):
    """One call of the simple API. Names in the path win; the body may repeat them."""

    label: str | None = None
    beside = 0
    as_npy = False  # True if the response is a .npy file
    top = 0  # labels per row; 0 if not requested
    _positions: Sequence[int] = ()
    naming: Naming = UNNAMED  # adds labels or boxes to the response

    def decode_work(self, lease: Lease) -> int:
        """Return 0 except for a table: the body was parsed on the codec thread, or is short."""
        return CELL_WORK * self.rows_bytes

    def is_large(self, outputs: Outputs) -> bool:
        """Return True if writing the response takes long."""
        if are_large(outputs):
            return True
        return self.naming is not UNNAMED and self.naming.is_long(outputs)

    def decode(self, lease: Lease) -> Arrays:
        """Make arrays in the version's types. Raises InvalidInput."""
        self._positions = lease.select(self.outputs)
        self._take_top()
        served = lease.served
        self.naming = naming_of(served.labellers, served.detectors, self._positions, self.top)
        if self.as_npy:
            if self.top:
                raise InvalidInput(f"'top' requests labels, which Accept: {NPY} cannot carry")
            check_one_array([lease.served.outputs[position] for position in self._positions])
        return self.read_inputs(lease.only_input if self.single else lease.inputs_for(self.names))

    def _take_top(self) -> None:
        """Read the parameter `top`. Raises InvalidInput if the query has a different value."""
        if (value := self.parameters.get("top")) is None:
            return
        top = read_top("parameters.top", value)
        if self.top not in (0, top):
            raise InvalidInput(f"the query has top={self.top}, but the body has {top}")
        self.top = top

    @property
    def names(self) -> Collection[str]:
        """Return the names of the inputs or columns."""
        return self.inputs if self._table is None else self._table.names or ()

    @cached_property
    def _table(self) -> Table | None:
        return None if self.rows is None else table_of_rows(self.rows)

    def read_inputs(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make arrays from the inputs. Raises InvalidInput."""
        if self._table is not None:
            return self._table.decode(specs)
        if not self.single and has_columns(self.inputs, specs):
            return {specs[0].name: join_columns(self.take_inputs(), specs[0])}
        return decode_inputs(self, specs)

    def encode(self, lease: Lease, outputs: Outputs) -> Encoded:
        """Write the response. Raises if an output cannot be written in the requested form."""
        if self.as_npy:
            return Encoded(
                write_npy(outputs[self._positions[0]], partial(lease.check_time, self.timeout)),
                version_headers(lease.version, lease.variant, NPY),
            )
        return self.write(lease, outputs)

    def by_name(self, lease: Lease, outputs: Outputs) -> Mapping[str, Array]:
        """Return the requested outputs."""
        specs = lease.served.outputs
        return {specs[position].name: outputs[position] for position in self._positions}

    def write(self, lease: Lease, outputs: Outputs) -> Encoded:
        """Write the response in JSON. Raises InferenceFailed if JSON cannot carry an output."""
        write = encode_simple if self.single else encode_prediction
        check = partial(lease.check_time, self.timeout)
        body = write(
            model=lease.model,
            version=lease.version,
            variant=lease.variant or None,
            id=self.id,
            outputs=self.by_name(lease, outputs),
            named=self.naming.write(outputs, check),
            inference_time=lease.seconds,
            check=check,
        )
        return Encoded(body, JSON)


class FilesCall(PredictCall):
    """A call whose inputs are files. One unnamed file is answered like `input`."""

    def __init__(self, files: Sequence[File]) -> None:
        super().__init__({}, single=len(files) == 1 and files[0].name is None)
        self._files = files

    @property
    def names(self) -> Collection[str]:
        """Return the names of the inputs."""
        return {file.name or "" for file in self._files}

    def decode_work(self, lease: Lease) -> int:
        """Return the work of decoding. It is 0 for files that are used as arrays directly."""
        return files_work(self._files)

    def read_inputs(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make arrays from the files. Raises InvalidInput."""
        return read_files(self._files, specs)


def check_one_array(outputs: Sequence[TensorSpec]) -> None:
    """Raise InvalidInput unless there is one output and a .npy file can carry it."""
    if len(outputs) != 1:
        names = quoted_names(spec.name for spec in outputs)
        raise InvalidInput(
            f"Accept: {NPY} returns one output, not {names}; "
            f"choose one, such as ?outputs={outputs[0].name}"
        )
    datatype = BY_NAME[outputs[0].datatype]
    if datatype.kind == "text" or not datatype.numpy_native:
        raise InvalidInput(
            f"output {quoted(outputs[0].name)} is {datatype.name}, which a .npy file cannot carry"
        )


def predict_route(
    model: str | None = None,
    version: str | None = None,
    query: Mapping[str, str] = NO_QUERY,
    *,
    parser: Callable[[Headers], Callable[[bytes], PredictCall]] | None = None,
) -> Route:
    """Return how bodies are read at a path.

    model, version: Names in the path. Default: None.
    query: Fields that a file cannot carry: model, version, outputs, id, timeout_ms and top.
    parser: Returns a function that makes a call of a body, for the headers. Default: as for
        /predict.
    """

    def from_document(document: object, body: bytes) -> PredictCall:
        return named(PredictCall.from_document(document, body))

    def named(call: PredictCall) -> PredictCall:
        if model is not None:
            call.model = _same("model", model, call.model)
        if version is not None:
            call.version = _same("version", version, call.version)
        if query:
            _apply(query, call)
        return call

    def reader(headers: Headers) -> Read:
        parse = (parser or body_parser)(headers)
        as_npy = asks_for_npy(headers)

        def read(body: bytes) -> PredictCall:
            call = named(parse(body))
            call.as_npy = as_npy
            return call

        return read

    def rows(headers: Headers) -> RowForm | None:
        if not ASKED_BY_QUERY.isdisjoint(query) or parser is not None or not is_plain(headers):
            return None
        read = read_text_rows if media_type(headers) == TEXT else read_predict_rows
        if "top" not in query:
            return RowForm(read, from_document)
        try:
            top = read_top("'top'", query["top"])
        except InvalidInput:
            return None  # reading the body raises the reason
        return RowForm(partial(read, top=top), from_document)

    known = query.get("model") if model is None else model
    return Route(known, reader, rows, version, takes_long)


def body_parser(headers: Headers) -> Callable[[bytes], PredictCall]:
    """Return the parser for a body's media type. Raises UnsupportedMedia."""
    media = media_type(headers)
    if media == TEXT:
        return _parse_text
    if is_json(media):
        return PredictCall.parse
    read = file_parser(headers)
    return lambda body: FilesCall(read(body))


def _parse_text(body: bytes) -> PredictCall:
    """Read JSON, which browsers may send as text, or the text of the model's only input."""
    if begins_json(body):
        return PredictCall.parse(body)
    return FilesCall(whole_body(body, TEXT))


def file_parser(headers: Headers) -> Callable[[bytes], list[File]]:
    """Return the function that reads files from a body, by media type. Raises UnsupportedMedia."""
    media = media_type(headers)
    if media == FORM:
        content_type = headers.get("content-type") or ""
        return lambda body: form_files(split_parts(body, content_type))
    if media.startswith("multipart/"):
        raise UnsupportedMedia(f"this route accepts multipart/form-data, not {quoted(media)}")
    return lambda body: whole_body(body, media)


def takes_long(headers: Headers, body: bytes) -> bool:
    """Return True if parsing `body` takes long. A file becomes an array later."""
    media = media_type(headers)
    if media == FORM:
        return len(body) > FORM_AT_ONCE
    return is_json(media) and is_large(headers, body)


def _apply(query: Mapping[str, str], call: PredictCall) -> None:
    """Add the query's fields to a call. Raises InvalidInput if the call has different values."""
    if "outputs" in query and call.outputs is None:
        call.outputs = query["outputs"].split(",")
    if "timeout_ms" in query and call.timeout is None:
        try:
            milliseconds = float(query["timeout_ms"])
        except ValueError:
            shown = quoted(query["timeout_ms"])
            raise InvalidInput(f"'timeout_ms' must be a number, got {shown}") from None
        call.timeout = read_seconds(milliseconds)
    if "top" in query:
        call.top = read_top("'top'", query["top"])
    for key in ("model", "version", "id"):
        if (value := query.get(key)) is None:
            continue
        given = getattr(call, key)
        if given is not None and given != value:
            raise InvalidInput(
                f"the query names {key} {quoted(value)} but the path or body names {quoted(given)}"
            )
        setattr(call, key, value)
    check_id(call.id)


def match_predict(path: str, query: Mapping[str, str] = NO_QUERY) -> Route | None:
    """Return the route of a path of the simple API without escapes, or None for any other."""
    if path == "/predict":
        return predict_route(query=query)
    found = PREDICT_PATH.fullmatch(path)
    return predict_route(found["model"], found["version"], query) if found else None


PREDICT_PATH = re.compile(
    r"/models/(?P<model>[\w.-]+)(/versions/(?P<version>\w+))?/predict", re.ASCII
)


ASKED_BY_QUERY = frozenset({"model", "version", "outputs", "id", "timeout_ms"})
"""Fields of a query, except `top`. All others are ignored."""


def _same(what: str, path: str, body: str | None) -> str:
    if body is not None and path != body:
        raise InvalidInput(
            f"the path names {what} {quoted(path)} but the body names {quoted(body)}"
        )
    return path
