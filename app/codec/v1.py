"""TensorFlow Serving's REST bodies: rows under `instances`, columns under `inputs`.

https://www.tensorflow.org/tfx/serving/api_rest#predict_api
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import orjson

from app.codec.json_body import parse_json
from app.codec.json_tensors import MAX_RANK, encode_tensor, in_parts, shown
from app.codec.predict_request import PredictRequest, decode_inputs
from app.errors import (
    MOST_LISTED,
    CohortError,
    InvalidInput,
    did_you_mean,
    quoted,
    quoted_names,
)
from app.tensors import Array, Arrays, TensorSpec, check_names

SIGNATURE = "serving_default"

_B64 = "b64"
_BINARY = "_bytes"  # an output whose name ends so is written in base64
_KEYS = ("instances", "inputs", "signature_name")


class V1Request:
    """A V1 request: rows, whose response is by row, or columns, whose response is by column."""

    __slots__ = ("_rows", "_value")

    def __init__(self, value: Any, *, rows: bool) -> None:
        self._rows = rows
        self._value = value

    def decode(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make arrays as `specs` say, as strictly as `decode_inputs`. Raises InvalidInput."""
        value = self._value
        if not _is_named(value[0] if self._rows else value):
            _check_single(specs, rows=self._rows)
            columns = {specs[0].name: value}
        else:
            columns = _columns(value, specs) if self._rows else dict(value)
        for spec in specs:
            if spec.datatype == "BYTES" and spec.name in columns:
                columns[spec.name] = _texts(spec.name, columns[spec.name])
        request = PredictRequest(columns)
        return decode_inputs(request, specs)

    def encode(self, outputs: Mapping[str, Array]) -> bytes:
        """Write the response. Raises InferenceFailed for an output that JSON cannot carry."""
        written = {name: _written(name, array) for name, array in outputs.items()}
        if self._rows:
            response: dict[str, Any] = {"predictions": in_parts(_by_row(written, outputs))}
        elif len(written) == 1:
            response = {"outputs": in_parts(next(iter(written.values())))}
        else:
            response = {"outputs": {name: in_parts(one) for name, one in written.items()}}
        return orjson.dumps(response, option=orjson.OPT_SERIALIZE_NUMPY)


def parse_v1(body: bytes) -> V1Request:
    """Read the body of `…:predict`. Raises InvalidInput."""
    document = parse_json(body)
    if not isinstance(document, dict):
        raise InvalidInput(f"the body must be a JSON object, got {shown(document)}")
    _check_signature(document.get("signature_name"))
    if "instances" in document and "inputs" in document:
        raise InvalidInput("the body must have either 'instances' or 'inputs', got both")
    if "inputs" in document:
        return V1Request(document["inputs"], rows=False)
    if "instances" not in document:
        raise InvalidInput(f"the body has neither 'instances' nor 'inputs'{_slip(document)}")
    instances = document["instances"]
    if not isinstance(instances, list):
        raise InvalidInput(f"'instances' must be a list, got {shown(instances)}")
    if not instances:
        raise InvalidInput("'instances' must have at least one instance, got none")
    return V1Request(instances, rows=True)


def _slip(document: Mapping[str, object]) -> str:
    for key in islice(document, MOST_LISTED):
        if (hint := did_you_mean(key, _KEYS)).startswith("; did"):
            return hint
    return ""


def _check_signature(name: object) -> None:
    if name is None or name == "" or name == SIGNATURE:  # noqa: PLR1714 - it may be unhashable
        return
    if not isinstance(name, str):
        raise InvalidInput(f"'signature_name' must be a string, got {shown(name)}")
    raise InvalidInput(f"signature {quoted(name)} not found{did_you_mean(name, [SIGNATURE])}")


# -- the two forms to columns


def _is_named(value: object) -> bool:
    """Whether `value` is inputs by name, and not a value of the only input."""
    return isinstance(value, dict) and not _is_b64(value)


def _check_single(specs: Sequence[TensorSpec], *, rows: bool) -> None:
    if len(specs) == 1:
        return
    names = quoted_names(spec.name for spec in specs)
    form = "each of 'instances' must be an object" if rows else "'inputs' must be an object"
    raise InvalidInput(f"the model takes the inputs {names}: {form} with them by name")


def _columns(rows: list[Any], specs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Turn rows of named values into columns; every row names every input."""
    for number, row in enumerate(rows):
        if not _is_named(row):
            raise InvalidInput(
                f"instances[{number}] must be an object with inputs by name, as the first"
            )
        try:
            check_names(specs, row)
        except InvalidInput as error:
            raise InvalidInput(f"instances[{number}]: {error}") from None
    return {spec.name: [row[spec.name] for row in rows] for spec in specs}


def _is_b64(value: object) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(_B64), str)


def _texts(name: str, value: object, depth: int = 0) -> object:
    """Put the text in the place of each `{"b64": …}`; what is nested too deep is left as it is."""
    if isinstance(value, list):
        # Refused later; JSON nests deeper than functions may recurse.
        return value if depth > MAX_RANK else [_texts(name, one, depth + 1) for one in value]
    if not _is_b64(value):
        return value
    try:
        return b64decode(value[_B64], validate=True).decode()  # type: ignore[index]
    except UnicodeDecodeError:
        # The runtime takes text only: bytes reach it as "b'…'".
        raise InvalidInput(f"input {quoted(name)} has a 'b64' that is not UTF-8") from None
    except ValueError:  # binascii's own, or the plain one where it is not even ASCII
        raise InvalidInput(f"input {quoted(name)} has a 'b64' that is not base64") from None


# -- outputs to the two forms


def _written(name: str, array: Array) -> Any:
    if array.dtype.kind == "O" and name.endswith(_BINARY):
        return _b64(array.tolist())
    return encode_tensor(name, array)


def _b64(value: Any) -> Any:
    if isinstance(value, list):
        return [_b64(one) for one in value]
    data = value if isinstance(value, bytes) else str(value).encode()
    return {_B64: b64encode(data).decode()}


def _by_row(written: Mapping[str, Any], outputs: Mapping[str, Array]) -> Any:
    for name, array in outputs.items():
        if not array.ndim:
            raise _not_by_row(f"output {quoted(name)} has no rows")
    lengths = {len(array) for array in outputs.values()}
    if len(lengths) > 1:
        raise _not_by_row("the outputs differ in their number of rows")
    if len(written) == 1:
        return next(iter(written.values()))
    columns = [_rows(value) for value in written.values()]
    return [dict(zip(written, row, strict=True)) for row in zip(*columns, strict=True)]


def _rows(value: Any) -> Any:
    """Rows as orjson takes them: `longlong`, ONNX Runtime's INT64, in arrays or as int."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind != "f":
        return value.tolist()
    return value


def _not_by_row(why: str) -> CohortError:
    return InvalidInput(f"{why}: send columns, with 'inputs' in place of 'instances'")
