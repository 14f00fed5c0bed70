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
"""Bytes of a form that are read on the event loop: a millisecond, if they are all parts."""


class PredictCall(PredictRequest):
    """One call of the simple API. What the path says counts, and the body says the same."""

    label: str | None = None
    beside = 0
    as_npy = False  # whether the response is a .npy file
    top = 0  # how many labels of each row are asked for; 0: nothing was said
    _positions: Sequence[int] = ()
    naming: Naming = UNNAMED  # what names the outputs

    def decode_work(self, lease: Lease) -> int:
        """None but for a table: what is not parsed on the codec thread is short."""
        return CELL_WORK * self.rows_bytes

    def is_large(self, outputs: Outputs) -> bool:
        """Whether writing the response takes long."""
        if are_large(outputs):
            return True
        return self.naming is not UNNAMED and self.naming.is_long(outputs)

    def decode(self, lease: Lease) -> Arrays:
        """Make arrays as the version wants them. Raises InvalidInput."""
        self._positions = lease.select(self.outputs)
        self._take_top()
        served = lease.served
        self.naming = naming_of(served.labellers, served.detectors, self._positions, self.top)
        if self.as_npy:
            if self.top:
                raise InvalidInput(f"Accept: {NPY} is for numbers, and 'top' asks for labels")
            check_one_array([lease.served.outputs[position] for position in self._positions])
        return self.read_inputs(lease.only_input if self.single else lease.inputs_for(self.names))

    def _take_top(self) -> None:
        """Take the parameter `top`. Raises InvalidInput where the query says otherwise."""
        if (value := self.parameters.get("top")) is None:
            return
        top = read_top("parameters.top", value)
        if self.top not in (0, top):
            raise InvalidInput(f"the query says top={self.top}, but the body says {top}")
        self.top = top

    @property
    def names(self) -> Collection[str]:
        """The names of the inputs, or of the columns."""
        return self.inputs if self._table is None else self._table.names or ()

    @cached_property
    def _table(self) -> Table | None:
        return None if self.rows is None else table_of_rows(self.rows)

    def read_inputs(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make arrays of the inputs. Raises InvalidInput."""
        if self._table is not None:
            return self._table.decode(specs)
        if not self.single and has_columns(self.inputs, specs):
            return {specs[0].name: join_columns(self.take_inputs(), specs[0])}
        return decode_inputs(self, specs)

    def encode(self, lease: Lease, outputs: Outputs) -> Encoded:
        """Write the response. Raises where an output cannot be written as it was asked for."""
        if self.as_npy:
            return Encoded(
                write_npy(outputs[self._positions[0]], partial(lease.check_time, self.timeout)),
                version_headers(lease.version, lease.variant, NPY),
            )
        return self.write(lease, outputs)

    def by_name(self, lease: Lease, outputs: Outputs) -> Mapping[str, Array]:
        """The outputs that were asked for."""
        specs = lease.served.outputs
        return {specs[position].name: outputs[position] for position in self._positions}

    def write(self, lease: Lease, outputs: Outputs) -> Encoded:
        """Write the response in JSON. Raises InferenceFailed for an output JSON cannot carry."""
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
    """A call whose inputs are files. A whole body is answered as the only `input` is."""

    def __init__(self, files: Sequence[File]) -> None:
        super().__init__({}, single=len(files) == 1 and files[0].name is None)
        self._files = files

    @property
    def names(self) -> Collection[str]:
        """The names of the inputs."""
        return {file.name or "" for file in self._files}

    def decode_work(self, lease: Lease) -> int:
        """None for files that become arrays as they are."""
        return files_work(self._files)

    def read_inputs(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make arrays of the files. Raises InvalidInput."""
        return read_files(self._files, specs)


def check_one_array(outputs: Sequence[TensorSpec]) -> None:
    """Raise InvalidInput unless these are one output that a .npy file can be."""
    if len(outputs) != 1:
        names = quoted_names(spec.name for spec in outputs)
        raise InvalidInput(
            f"Accept: {NPY} is for one output, not {names}: name one, as ?outputs={outputs[0].name}"
        )
    datatype = BY_NAME[outputs[0].datatype]
    if datatype.kind == "text" or not datatype.numpy_native:
        raise InvalidInput(
            f"output {quoted(outputs[0].name)} is {datatype.name}, which a .npy file does not carry"
        )


def predict_route(
    model: str | None = None,
    version: str | None = None,
    query: Mapping[str, str] = NO_QUERY,
    *,
    parser: Callable[[Headers], Callable[[bytes], PredictCall]] | None = None,
) -> Route:
    """How bodies are read at a path.

    model, version: What the path names; default None: nothing.
    query: Says what a body that is a file cannot: model, version, outputs, id, timeout_ms and top.
    parser: Gives what makes a call of a body, by its headers; default None: as at /predict.
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
            return None  # whose body is read to say what is wrong
        return RowForm(partial(read, top=top), from_document)

    known = query.get("model") if model is None else model
    return Route(known, reader, rows, version, takes_long)


def body_parser(headers: Headers) -> Callable[[bytes], PredictCall]:
    """What makes a call of a body, by its media type. Raises UnsupportedMedia."""
    media = media_type(headers)
    if media == TEXT:
        return _parse_text
    if is_json(media):
        return PredictCall.parse
    read = file_parser(headers)
    return lambda body: FilesCall(read(body))


def _parse_text(body: bytes) -> PredictCall:
    """JSON, which browsers send as text, or else the text of a model's only input."""
    if begins_json(body):
        return PredictCall.parse(body)
    return FilesCall(whole_body(body, TEXT))


def file_parser(headers: Headers) -> Callable[[bytes], list[File]]:
    """What makes files of a body, by its media type. Raises UnsupportedMedia."""
    media = media_type(headers)
    if media == FORM:
        content_type = headers.get("content-type") or ""
        return lambda body: form_files(split_parts(body, content_type))
    if media.startswith("multipart/"):
        raise UnsupportedMedia(f"this route takes multipart/form-data, not {quoted(media)}")
    return lambda body: whole_body(body, media)


def takes_long(headers: Headers, body: bytes) -> bool:
    """Whether parsing `body` takes long: a file becomes an array later."""
    media = media_type(headers)
    if media == FORM:
        return len(body) > FORM_AT_ONCE
    return is_json(media) and is_large(headers, body)


def _apply(query: Mapping[str, str], call: PredictCall) -> None:
    """Add what the query says to a call. Raises InvalidInput where the call says otherwise."""
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
        said = getattr(call, key)
        if said is not None and said != value:
            raise InvalidInput(
                f"the query names {key} {quoted(value)} but the path or body names {quoted(said)}"
            )
        setattr(call, key, value)
    check_id(call.id)


def match_predict(path: str, query: Mapping[str, str] = NO_QUERY) -> Route | None:
    """The route of a path of the simple API, written plainly; None for any other."""
    if path == "/predict":
        return predict_route(query=query)
    found = PREDICT_PATH.fullmatch(path)
    return predict_route(found["model"], found["version"], query) if found else None


PREDICT_PATH = re.compile(
    r"/models/(?P<model>[\w.-]+)(/versions/(?P<version>\w+))?/predict", re.ASCII
)


ASKED_BY_QUERY = frozenset({"model", "version", "outputs", "id", "timeout_ms"})
"""What a query may say besides `top`; all else in it says nothing."""


def _same(what: str, path: str, body: str | None) -> str:
    if body is not None and path != body:
        raise InvalidInput(
            f"the path names {what} {quoted(path)} but the body names {quoted(body)}"
        )
    return path
