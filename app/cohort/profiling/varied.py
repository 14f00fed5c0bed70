"""Requests as varied as real ones, so that an influence of one on another becomes visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cohort.tensors import BY_NAME, Array, TensorSpec

FLOAT_SCALES = (1.0, 255.0, 0.0, 0.03, 30.0, 0.3, 1000.0, 0.003)
"""Scale of the numbers of request i, repeated: one is silence (0), the others are noise."""

MAX_WHOLE = 10
"""Upper bound of whole numbers that are neither bytes nor indices of a known table."""

TEXT_WORDS = (0, 20, 1, 7, 3, 12, 2, 5)
"""Number of words in each text of request i, repeated."""

VOCABULARY = 1000


def varied_array(
    spec: TensorSpec, shape: Sequence[int], request: int, tables: Mapping[str, int]
) -> Array:
    """Return one input of the request with this number, the same every time.

    tables: The number of entries of the table that an input's whole numbers index, by input.

    Bytes have all values, in some requests a smaller range; texts have 0 to 20 words.
    """
    random = np.random.default_rng([request, *spec.name.encode()])
    match BY_NAME[spec.datatype].kind:
        case "text":
            return _texts(shape, TEXT_WORDS[request % len(TEXT_WORDS)], random)
        case "bool":
            return np.asarray(random.random(shape) < (request % 4 + 1) / 5)
        case "int":
            least, most = _whole_range(spec, request, tables)
            return np.asarray(random.integers(least, most, shape)).astype(spec.dtype)
    scale = FLOAT_SCALES[request % len(FLOAT_SCALES)]
    with np.errstate(over="ignore", invalid="ignore"):  # 8-bit floats overflow at 1000
        return np.asarray(random.standard_normal(shape) * scale).astype(spec.dtype)


def _whole_range(spec: TensorSpec, request: int, tables: Mapping[str, int]) -> tuple[int, int]:
    if spec.name in tables:
        return 0, tables[spec.name]
    if spec.datatype not in ("UINT8", "INT8"):
        return 0, MAX_WHOLE
    part = 1 << request % 4 * 2  # all values, a quarter, …
    return (0, 256 // part) if spec.datatype == "UINT8" else (-128 // part, 128 // part)


def _texts(shape: Sequence[int], words: int, random: np.random.Generator) -> Array:
    texts = np.empty(shape, object)
    for place in np.ndindex(*shape):
        texts[place] = " ".join(f"word{one}" for one in random.integers(0, VOCABULARY, words))
    return texts
