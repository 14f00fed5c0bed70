"""Conversion of a run's text outputs to Python strings, in portions.

ONNX Runtime converts all elements to Python strings in one call, during which no other thread runs.
Five million strings take more than a second, and a request of eight bytes may ask for that many. So
the outputs stay in the runtime's own values. Their number is known before the conversion, and a
small session of the runtime cuts them into portions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from cohort.errors import InferenceFailed, InvalidInput
from cohort.model_file.writing import write_field, write_key, write_varint
from cohort.row_independence import RowVerdict
from cohort.session.runtime import FATAL_ONLY, ort
from cohort.tensors import BY_NAME, Array, TensorSpec, held_bytes

TEXTS_AT_ONCE = 4096
"""Texts converted in one call: about a millisecond."""

SMALLEST_TEXT = 57
"""The bytes of the shortest text and of its array element."""

_MAX_HELD_BYTES = 1 << 30

Bound = Callable[[Mapping[str, Array]], float]
"""Returns the maximum number of texts that a run of these inputs gives; infinity if unknown."""


def gives_texts(outputs: Sequence[TensorSpec]) -> bool:
    """Return True if an output has texts."""
    return any(map(is_text, outputs))


def is_text(spec: TensorSpec) -> bool:
    """Return True if the elements of the tensor are texts."""
    return spec.transportable and BY_NAME[spec.datatype].kind == "text"


def bound_texts(outputs: Sequence[TensorSpec], rows: RowVerdict) -> Bound:
    """Return the bound on a run's texts; it is finite if the number of texts per row is proven."""
    of_row = 0
    for spec in filter(is_text, outputs):
        made, shape = rows.outputs.get(spec.name), spec.shape or ()
        sizes = [size for axis, size in enumerate(shape) if axis != 0]
        if made is None or made.axis != 0 or not all(isinstance(one, int) for one in sizes):
            return lambda _: float("inf")
        if made.each is None:
            return lambda _: float("inf")
        of_row += prod(one for one in sizes if isinstance(one, int)) * made.each
    return lambda feeds: (
        of_row * max((max(one.shape, default=1) for one in feeds.values()), default=1)
    )


class TextReader:
    """Reader that converts the text outputs of one run to arrays.

    max_bytes: The maximum bytes of all texts.
    stopped: Returns True if the run was stopped.
    """

    def __init__(self, max_bytes: float, stopped: Callable[[], bool]) -> None:
        self._max_bytes, self._stopped = max_bytes, stopped
        self._held = 0

    def read(self, value: Any) -> Array:
        """Return the array of an OrtValue of texts.

        Raises InvalidInput for more than `max_bytes`, and InferenceFailed if the run was stopped.
        """
        shape = tuple(value.shape())
        count = prod(shape)
        self._check(count * SMALLEST_TEXT)
        if count <= TEXTS_AT_ONCE:
            few: Array = value.numpy()
            return few
        flat = value if len(shape) == 1 else _flat(value)
        made = np.empty(count, np.object_)
        for first in range(0, count, TEXTS_AT_ONCE):
            if self._stopped():
                raise InferenceFailed("the run was stopped", blames_input=False)
            some = _part(flat, first)
            made[first : first + TEXTS_AT_ONCE] = some
            self._held += held_bytes(some)
            self._check(0)
        return made.reshape(shape)

    def _check(self, more: int) -> None:
        if self._held + more > self._max_bytes:
            raise InvalidInput(
                f"the outputs take more than {self._max_bytes / 2**20:g} MB (max_output_mb)"
            )


def hold_texts(array: Array) -> Any:
    """Return an OrtValue of texts, which the runtime's binding cannot create from an array.

    So a model with one constant returns it, which takes half a millisecond. Raises InvalidInput if
    the texts are too large for protobuf.
    """
    items = array.ravel().tolist()
    tensor = b"".join(write_field(1, size) for size in array.shape) + write_field(2, _TEXT)
    parts = [item if item.__class__ is bytes else str(item).encode() for item in items]
    if array.size * SMALLEST_TEXT + sum(map(len, parts)) > _MAX_HELD_BYTES:
        raise InvalidInput(f"the texts of an input take more than {_MAX_HELD_BYTES >> 20} MB")
    key = write_key(6)
    tensor += b"".join([one for part in parts for one in (key, _length(len(part)), part)])
    attribute = write_field(1, b"value") + write_field(5, tensor) + write_field(20, 4)
    node = write_field(2, b"y") + write_field(4, b"Constant") + write_field(5, attribute)
    session = _open(write_field(1, node) + write_field(2, b"texts") + _output())
    return session.run_with_ort_values({}, ["y"], None)[0]


def _length(size: int) -> bytes:
    return bytes((size,)) if size <= 0x7F else write_varint(size)


def _flat(value: Any) -> Any:
    return _run("Reshape", value, [-1])


def _part(flat: Any, first: int) -> Array:
    part: Array = _run("Slice", flat, [first], [first + TEXTS_AT_ONCE]).numpy()
    return part


def _run(operator: str, value: Any, *numbers: Sequence[int]) -> Any:
    arrays = [np.array(one) for one in numbers]  # held while it runs: an OrtValue points into them
    values = [ort.OrtValue.ortvalue_from_numpy(one) for one in arrays]
    feeds = {name: one._ortvalue for name, one in zip("ab", values, strict=False)}
    return _session(operator, 1 + len(numbers)).run_with_ort_values(
        {"x": value, **feeds}, ["y"], None
    )[0]


@cache
def _session(operator: str, inputs: int) -> Any:
    """Open a session of one node that takes texts and `inputs` - 1 lists of integers."""
    names = "xab"[:inputs]
    node = b"".join(write_field(1, name.encode()) for name in names)
    node += write_field(2, b"y") + write_field(4, operator.encode())
    graph = write_field(1, node) + write_field(2, b"texts")
    for name in names:
        shape = b"" if name == "x" else write_field(2, write_field(1, b""))
        kind = write_field(1, _TEXT if name == "x" else _WHOLE) + shape
        graph += write_field(
            11, write_field(1, name.encode()) + write_field(2, write_field(1, kind))
        )
    return _open(graph + _output())


_TEXT, _WHOLE = 8, 7
"""STRING and INT64, of ONNX's TensorProto.DataType."""


def _output() -> bytes:
    kind = write_field(1, write_field(1, _TEXT))
    return write_field(12, write_field(1, b"y") + write_field(2, kind))


def _open(graph: bytes) -> Any:
    model = write_field(1, 8) + write_field(8, write_field(2, 17)) + write_field(7, graph)
    options = ort.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # an arena would keep the memory of the largest texts
    options.enable_mem_pattern = False
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    raw = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return raw._sess
