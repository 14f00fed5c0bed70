"""TensorFlow Serving's REST bodies: rows under `instances`, columns under `inputs`.

https://www.tensorflow.org/tfx/serving/api_rest#predict_api
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import orjson

from cohort.codec.base64_json import is_base64
from cohort.codec.binary import TEXTS_AT_ONCE
from cohort.codec.json_body import parse_json
from cohort.codec.json_outputs import LongParts, LongTexts, encode_parts
from cohort.codec.json_tensors import shown
from cohort.codec.long_json import LISTS, LongList, portions_of
from cohort.codec.long_tensors import fitted, rows_of
from cohort.codec.other_forms import V1, names_tensors, other_form
from cohort.codec.predict_request import PredictRequest, decode_inputs
from cohort.codec.predict_response import NO_NAMES
from cohort.codec.tables import has_columns, join_columns, table_of_rows
from cohort.errors import MAX_LISTED, CohortError, InvalidInput, did_you_mean, quoted, quoted_names
from cohort.tensors import Array, Arrays, TensorSpec, check_names, sent_specs

SIGNATURE = "serving_default"

_B64 = "b64"
_BINARY = "_bytes"  # outputs whose names end so are written in base64
_KEYS = ("instances", "inputs", "signature_name")


class V1Request:
    """A V1 request: rows, whose response is by row, or columns, whose response is by column."""

    __slots__ = ("_rows", "_value")

    def __init__(self, value: Any, *, rows: bool) -> None:
        self._rows = rows
        self._value = value

    def decode(self, specs: Sequence[TensorSpec], optional: Sequence[TensorSpec] = ()) -> Arrays:
        """Make the arrays of `specs`, and of each input in `optional` that the request names.

        Checks are as strict as in `decode_inputs`. Raises InvalidInput.
        """
        value = self._value
        first = value[0] if self._rows else value
        if not _is_named(first):
            _check_single(specs, rows=self._rows)
            return decode_inputs(PredictRequest({specs[0].name: value}), specs)
        if has_columns(first, specs):
            if self._rows:
                return table_of_rows(value).decode(specs)
            return {specs[0].name: join_columns(value, specs[0])}
        if optional:
            specs = sent_specs(specs, optional, first)
        if isinstance(value, LongList):
            return _long_columns(value, specs)
        columns = _columns(value, specs) if self._rows else dict(value)
        return decode_inputs(PredictRequest(columns), specs)

    def encode(
        self,
        outputs: Mapping[str, Array],
        named: Mapping[str, orjson.Fragment] = NO_NAMES,
        check: Callable[[], None] = lambda: None,
    ) -> bytes:
        """Write the response. Raises InferenceFailed for an output that JSON cannot carry.

        named: Additional keys and their values; default: no keys.
        check: Called for each part of a long response; an error that it raises ends the writing.
        """
        key = "predictions" if self._rows else "outputs"
        return encode_predictions(outputs, rows=self._rows, key=key, named=named, check=check)


def encode_predictions(
    outputs: Mapping[str, Array],
    *,
    rows: bool,
    key: str = "predictions",
    named: Mapping[str, orjson.Fragment] = NO_NAMES,
    check: Callable[[], None] = lambda: None,
) -> bytes:
    """Write a response with `outputs` under `key`, by row or by output; a single one has no name.

    rows: True to write by row.
    named: Additional keys and their values; default: no keys.
    check: Called for each part of a long response; an error that it raises ends the writing.

    Raises InferenceFailed for an output that JSON cannot carry. With `rows`, raises InvalidInput if
    outputs lack rows or differ in their number.
    """
    written = {name: _written(name, array) for name, array in outputs.items()}
    parts = LongParts(check)
    if rows:
        _check_by_row(outputs)
    if len(written) == 1:
        values = parts.put(next(iter(written.values())))
    elif rows:
        values = parts.put_rows(_by_row(written))
    else:
        values = {name: parts.put(one) for name, one in written.items()}
    return parts.dump({key: values, **named})


def parse_v1(body: bytes) -> V1Request:
    """Read the body of `…:predict`. Raises InvalidInput."""
    return v1_of_document(parse_json(body))


def v1_of_document(document: object) -> V1Request:
    """Read a body already parsed to `document`. Raises InvalidInput."""
    if not isinstance(document, dict):
        raise InvalidInput(f"the body must be a JSON object, got {shown(document)}")
    _check_signature(document.get("signature_name"))
    if "instances" in document and "inputs" in document:
        raise InvalidInput("the body must have either 'instances' or 'inputs', got both")
    if "inputs" in document:
        if names_tensors(document["inputs"]):
            hint = other_form({"inputs": document["inputs"]}, V1)
            raise InvalidInput(f"'inputs' must be arrays, got a list of objects with names{hint}")
        return V1Request(document["inputs"], rows=False)
    if "instances" not in document:
        hint = other_form(document, V1) or _slip(document)
        raise InvalidInput(f"the body has neither 'instances' nor 'inputs'{hint}")
    instances = document["instances"]
    if not isinstance(instances, LISTS):
        raise InvalidInput(f"'instances' must be a list, got {shown(instances)}")
    if instances == []:
        raise InvalidInput("'instances' must have at least one instance, got none")
    return V1Request(instances, rows=True)


def _slip(document: Mapping[str, object]) -> str:
    for key in islice(document, MAX_LISTED):
        if (hint := did_you_mean(key, _KEYS)).startswith("; did"):
            return hint
    return ""


def _check_signature(name: object) -> None:
    if name is None or name == "" or name == SIGNATURE:  # noqa: PLR1714 - it may be unhashable
        return
    if not isinstance(name, str):
        raise InvalidInput(f"'signature_name' must be a string, got {shown(name)}")
    raise InvalidInput(f"signature {quoted(name)} not found{did_you_mean(name, [SIGNATURE])}")


# -- From the two forms to columns


def _is_named(value: object) -> bool:
    """Return True if `value` holds inputs by name, and is not the value of the only input."""
    return isinstance(value, dict) and not is_base64(value)


def _check_single(specs: Sequence[TensorSpec], *, rows: bool) -> None:
    if len(specs) == 1:
        return
    names = quoted_names(spec.name for spec in specs)
    form = "each of 'instances' must be an object" if rows else "'inputs' must be an object"
    raise InvalidInput(f"the model has the inputs {names}: {form} with them by name")


def _columns(rows: list[Any], specs: Sequence[TensorSpec], first: int = 0) -> dict[str, Any]:
    """Turn rows of named values into columns; each row must name every input."""
    for number, row in enumerate(rows, first):
        if not _is_named(row):
            raise InvalidInput(
                f"instances[{number}] must be an object with inputs by name, as the first"
            )
        try:
            check_names(specs, row)
        except InvalidInput as error:
            raise InvalidInput(f"instances[{number}]: {error}") from None
    return {spec.name: [row[spec.name] for row in rows] for spec in specs}


def _long_columns(rows: LongList, specs: Sequence[TensorSpec]) -> Arrays:
    """Make arrays from the columns of long rows, in portions."""
    for spec in specs:
        spec.dtype  # noqa: B018 - raises for what cannot be sent
    made = [(spec, rows_of(spec)) for spec in specs]
    first = 0
    for some in portions_of(rows):
        columns = _columns(some, specs, first)
        first += len(some)
        for spec, column in made:
            column.add(columns[spec.name])
    return {spec.name: spec.fit(fitted(spec, column.array())) for spec, column in made}


# -- From outputs to the two forms


def _written(name: str, array: Array) -> Any:
    if array.dtype.kind == "O" and name.endswith(_BINARY):
        if array.size > TEXTS_AT_ONCE:
            return LongTexts(array, lambda part, _: _b64(part.tolist()))
        return _b64(array.tolist())
    return encode_parts(name, array)


def _b64(value: Any) -> Any:
    if isinstance(value, list):
        return [_b64(one) for one in value]
    data = value if isinstance(value, bytes) else str(value).encode()
    return {_B64: b64encode(data).decode()}


def _check_by_row(outputs: Mapping[str, Array]) -> None:
    for name, array in outputs.items():
        if not array.ndim:
            raise _not_by_row(f"output {quoted(name)} has no rows")
    lengths = {len(array) for array in outputs.values()}
    if len(lengths) > 1:
        raise _not_by_row("the outputs differ in their number of rows")


def _by_row(written: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for row in zip(*map(_rows, written.values()), strict=True):
        yield dict(zip(written, row, strict=True))


def _rows(value: Any) -> Any:
    """Return rows that orjson accepts: it takes numpy's `longlong` only in arrays or as int."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind != "f":
        return map(np.generic.item, value)
    return value


def _not_by_row(why: str) -> CohortError:
    return InvalidInput(f"{why}: send columns, with 'inputs' instead of 'instances'")
