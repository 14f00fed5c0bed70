"""`POST /invocations` and `GET /ping`, in the form of MLflow and SageMaker clients.

https://mlflow.org/docs/latest/ml/deployment/deploy-model-locally/
https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from cohort.codec import V1Request, encode_predictions, parse_json
from cohort.codec.csv_table import CSV_WORK, read_csv
from cohort.codec.files import File
from cohort.codec.json_tensors import shown
from cohort.codec.long_json import LISTS
from cohort.codec.tables import CELL_WORK, table_of
from cohort.errors import InvalidInput, available, quoted
from cohort.http.calls import JSON, NO_QUERY, Encoded, Route
from cohort.http.media import is_json, media_type
from cohort.http.predict.calls import FilesCall, PredictCall, file_parser, predict_route
from cohort.serving import Headers, Lease, Outputs
from cohort.tensors import Arrays, TensorSpec

KEYS = ("dataframe_split", "dataframe_records", "inputs", "instances")

PARAMETERS = ("params", "parameters")
"""The keys of a request's parameters: MLflow's and Vertex AI's."""


class _Predictions(PredictCall):
    """A call answered in MLflow's form, `{"predictions": …}`, by row or by output."""

    by_row = False

    def write(self, lease: Lease, outputs: Outputs) -> Encoded:
        """Write the response. Raises if an output cannot be written in JSON."""
        arrays = self.by_name(lease, outputs)
        named = self.naming.write(outputs, partial(lease.check_time, self.timeout))
        return Encoded(encode_predictions(arrays, rows=self.by_row, named=named), JSON)


class TableCall(_Predictions):
    """A call whose body is rows in JSON.

    read: Makes arrays from the rows.
    work: The time that takes, in bytes of JSON that take as long.
    by_row: True if the response is by row. Default: True.
    names: Names of inputs or columns. They may include optional inputs.
    parameters: The request's parameters. Default: none.
    """

    def __init__(
        self,
        read: Callable[[Sequence[TensorSpec]], Arrays],
        work: int,
        *,
        by_row: bool = True,
        names: Collection[str] = (),
        parameters: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__({})
        self._names = names
        self._decode_rows = read
        self._work = work
        self.by_row = by_row
        self.parameters = parameters

    @property
    def names(self) -> Collection[str]:
        """Return the names of the inputs."""
        return self._names

    def decode_work(self, lease: Lease) -> int:
        """Return the work of decoding, in bytes of JSON that take as long."""
        return self._work

    def read_inputs(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make arrays from the rows. Raises InvalidInput."""
        return self._decode_rows(specs)


class FilePredictions(_Predictions, FilesCall):
    """A call whose inputs are files."""


def body_call(body: bytes) -> TableCall:
    """Read a JSON body. Raises InvalidInput."""
    document = parse_json(body)
    if isinstance(document, LISTS):  # SageMaker's clients send bare rows
        document = {"instances": document}
    if not isinstance(document, dict):
        raise InvalidInput(f"the body must be a JSON object, got {shown(document)}")
    given = [key for key in KEYS if key in document]
    if len(given) != 1:
        raise InvalidInput(f"the body must have exactly one of {', '.join(map(quoted, KEYS))}")
    unknown = document.keys() - {*KEYS, *PARAMETERS, "signature_name"}
    if unknown:
        raise InvalidInput(f"unknown key {quoted(min(unknown))} in the body{available(KEYS)}")
    named = next((one for one in PARAMETERS if document.get(one)), PARAMETERS[0])
    parameters = document.get(named) or {}
    if not isinstance(parameters, dict):
        raise InvalidInput(f"{named!r} must be an object, got {shown(parameters)}")
    key = given[0]
    value = document[key]
    if key == "inputs":
        read = V1Request(value, rows=False).decode
        names = _names(value)
        return TableCall(read, 0, by_row=False, names=names, parameters=parameters)
    if key == "instances":
        if not isinstance(value, LISTS) or value == []:
            found = "an empty list" if value == [] else shown(value)
            raise InvalidInput(f"'instances' must be a list of rows, got {found}")
        names = _names(value[0])
        read = V1Request(value, rows=True).decode
        return TableCall(read, 0, names=names, parameters=parameters)
    table = table_of(document, key)
    work = CELL_WORK * len(body)
    return TableCall(table.decode, work, names=table.names or (), parameters=parameters)


def _names(value: object) -> Collection[str]:
    return value if isinstance(value, dict) else ()


class CsvCall(_Predictions):
    """A call whose body is CSV. It is read when the model is known, within the time limit.

    header: True if the first line has the column names, False if not, None to detect it.
    """

    by_row = True

    def __init__(self, body: bytes, *, header: bool | None) -> None:
        super().__init__({})
        self._body = body
        self._header = header
        self._check_time: Callable[[], None] = lambda: None

    def decode_work(self, lease: Lease) -> int:
        """Return the work of decoding, in bytes of JSON that take as long."""
        return CSV_WORK * len(self._body)

    def decode(self, lease: Lease) -> Arrays:
        """Make arrays from the rows. Raises InvalidInput, DeadlineExceeded or Cancelled."""
        self._check_time = partial(lease.check_time, self.timeout)
        return super().decode(lease)

    def read_inputs(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make arrays from the rows for `specs`."""
        return read_csv(self._body, specs, header=self._header, check=self._check_time)


def invocation_parser(headers: Headers) -> Callable[[bytes], PredictCall]:
    """Return the parser for a body's media type. Raises UnsupportedMedia."""
    media = media_type(headers)
    if is_json(media):
        return body_call
    if media == "text/csv":
        content_type = (headers.get("content-type") or "").lower().replace(" ", "")
        header = True if ";header=present" in content_type else None
        header = False if ";header=absent" in content_type else header
        return lambda body: CsvCall(body, header=header)
    read = file_parser(headers)

    def call(body: bytes) -> PredictCall:
        files: Sequence[File] = read(body)
        return FilePredictions(files)

    return call


def match_as_invocations(
    path: str, query: Mapping[str, str] = NO_QUERY, *, at: str
) -> Route | None:
    """Return the route of /invocations for the path `at`, or None for any other path."""
    return predict_route(query=query, parser=invocation_parser) if path == at else None


def match_invocations(path: str, query: Mapping[str, str] = NO_QUERY) -> Route | None:
    """Return the route of /invocations, or None for any other path."""
    return predict_route(query=query, parser=invocation_parser) if path == "/invocations" else None
