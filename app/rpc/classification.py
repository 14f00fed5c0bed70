"""The classification extension: the best classes of an output in place of its values.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
"""

from __future__ import annotations

import numpy as np

from app.errors import InvalidInput, quoted
from app.tensors import Array, TensorSpec


def best_classes(spec: TensorSpec, array: Array, count: int) -> Array:
    """`value:index` of the `count` highest values, highest first: [N, count], or [count] of rank 1.

    Raises InvalidInput for an output without numbers.
    """
    if array.dtype.kind in "OSU" or spec.datatype in {"BYTES", "BOOL"}:
        raise InvalidInput(f"output {quoted(spec.name)} is {spec.datatype}: it has no best classes")
    rows = array.reshape(array.shape[0] if array.ndim > 1 else 1, -1)
    numbers = rows.astype(np.float64) if array.dtype.kind not in "iu" else rows
    best = np.argsort(numbers, axis=1, kind="stable")[:, ::-1][:, :count]
    form = "{}:{}" if array.dtype.kind in "iu" else "{:f}:{}"
    texts = np.empty(best.shape, np.object_)
    for row, indices in enumerate(best.tolist()):
        texts[row] = [form.format(numbers[row, index], index) for index in indices]
    return texts if array.ndim > 1 else texts[0]
