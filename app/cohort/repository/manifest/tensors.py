"""Arrays in a manifest: their bytes in base64, exact for every datatype, NaN included.

The bytes have the form of the Open Inference Protocol's binary extension (`cohort.codec.binary`).
They take a third of the size of decimal lists.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from cohort.codec import from_bytes, to_bytes
from cohort.errors import InvalidInput, quoted
from cohort.tensors import BY_DTYPE, Array, Arrays


def _write_tensor(array: Array) -> dict[str, object]:
    datatype = BY_DTYPE.get(array.dtype.newbyteorder("="))
    if datatype is None:
        raise ValueError(f"{array.dtype} is not a datatype that can be sent over the wire")
    return {
        "datatype": datatype.name,
        "shape": list(array.shape),
        "base64": b64encode(to_bytes(array)).decode("ascii"),
    }


def _read_tensor(name: str, written: object) -> Array:
    """Read a manifest's array, as a read-only one. Raises ValueError if it is invalid."""
    tensor = _tensor().validate_python(written)
    try:
        data = b64decode(tensor.base64, validate=True)
    except ValueError:
        raise ValueError("its base64 is broken") from None
    array = from_bytes(data, tensor.datatype, tensor.shape, name=name)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True)
class _Tensor:
    datatype: str
    shape: tuple[Annotated[int, Field(ge=0, lt=2**40)], ...]
    base64: str


@cache
def _tensor() -> TypeAdapter[_Tensor]:
    return TypeAdapter(_Tensor)


def _decode(written: object) -> Arrays:
    if not isinstance(written, dict):
        raise ValueError("must be tensors by name")  # noqa: TRY004 - pydantic reports ValueErrors
    arrays: Arrays = {}
    for name, tensor in written.items():
        try:
            arrays[name] = _read_tensor(name, tensor)
        except ValidationError as error:
            raise ValueError(f"{quoted(name)}: {explain_invalid(error)}") from None
        except ValueError as error:
            raise ValueError(f"{quoted(name)}: {error}") from None
        except InvalidInput as error:
            problem = str(error).removeprefix("input ")  # it may be an output
            raise ValueError(problem) from None
    return arrays


def _encode(arrays: Arrays) -> dict[str, Any]:
    return {name: _write_tensor(array) for name, array in arrays.items()}


Tensors = Annotated[Arrays, PlainValidator(_decode), PlainSerializer(_encode)]


def explain_invalid(error: ValidationError) -> str:
    """Return the problems of a manifest, each with its place; at most five."""
    problems = []
    for details in error.errors(include_url=False, include_input=False):
        where = ".".join(map(str, details["loc"]))
        if details["loc"] == ("format",) and details["type"] == "literal_error":
            return "its format is newer than this Cohort, or missing; publish the model again"
        problem = details["msg"].removeprefix(
            "Value error, "
        )  # pydantic puts this before a validator's message
        problems.append(f"{where}: {problem}" if where else problem)
    return "; ".join(problems[:5])
