"""The ranges of activations, by what calibration rows make of them.

ONNX Runtime's calibrators are fed one batch at a time: given all, those with histograms keep every
activation of every batch. Their histograms begin with the bins that they will end with, since one
that grows by bins of the first batch's width has no bound; and with more bins than they quantize
to, since among as many there is only one threshold to choose: the largest value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cohort.errors import quoted
from cohort.tensors import Array, Arrays
from cohort_prepare.failures import Misused
from cohort_prepare.quantizing.recipes import Method

BINS = 1024

QUANTIZED_BINS = 128

PERCENTILE = 99.99
"""Of an activation's values, the share that is in its range."""

OPERATORS = ("Conv", "ConvTranspose", "Gather", "Gemm", "MatMul")
"""Operators with large weights: products, and embeddings."""

BETWEEN = (
    "Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "LeakyRelu", "MaxPool",
    "Mul", "Pad", "Relu", "Reshape", "Resize", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip
"""Operators between convolutions, which then need no conversion from and to FP32."""

Batches = Callable[[], Iterator[Arrays]]


def find_ranges(
    prepared: Path,
    batches: Batches,
    methods: Sequence[Method],
    folder: Path,
    *,
    external: bool,
    told: Callable[[str], None],
) -> int:
    """Write `<method>.json` to `folder`, as `quantize_static` reads it, for each of `methods`.

    batches: Gives the calibration rows anew each time.
    external: Whether the model's weights are in a file of their own.
    told: Gets how far it is.

    Returns the number of rows. Raises Misused where a row holds NaN or infinity.
    """
    from onnxruntime.quantization.calibrate import (
        CalibrationMethod,
        create_calibrator,
        save_tensors_data,
    )

    def calibrator(method: CalibrationMethod, **options: Any) -> Any:
        return create_calibrator(
            prepared,
            (*OPERATORS, *BETWEEN),
            augmented_model_path=str(folder / f"augmented-{method.name}.onnx"),
            calibrate_method=method,
            use_external_data_format=external,
            extra_options=options,
        )

    least = calibrator(CalibrationMethod.MinMax)
    rows = 0
    for batch in batches():
        _check(batch, rows)
        least.collect_data(_OneBatch(batch))
        rows += _rows(batch)
        told(f"minimum and maximum of {rows:,} rows")
    found = least.compute_data()
    save_tensors_data(found, folder / "minmax.json")
    kinds = {"entropy": CalibrationMethod.Entropy, "percentile": CalibrationMethod.Percentile}
    for method, kind in kinds.items():
        if method not in methods:
            continue
        histograms = calibrator(
            kind,
            symmetric=False,
            num_bins=BINS,
            num_quantized_bins=QUANTIZED_BINS,
            percentile=PERCENTILE,
        )
        histograms.collector = _empty_histograms(method, found)
        seen = 0
        for batch in batches():
            histograms.collect_data(_OneBatch(batch))
            seen += _rows(batch)
            told(f"{method} of {seen:,} of {rows:,} rows")
        told(f"choosing ranges by {method}")
        save_tensors_data(histograms.compute_data(), folder / f"{method}.json")
    return rows


class _OneBatch:
    """What ONNX Runtime's calibrators read from."""

    def __init__(self, batch: Arrays) -> None:
        self._batch: Arrays | None = batch

    def get_next(self) -> Arrays | None:
        batch, self._batch = self._batch, None
        return batch


def _empty_histograms(method: str, found: Any) -> Any:
    """A collector whose histograms have the bins that all values will fall into."""
    from onnxruntime.quantization.calibrate import HistogramCollector

    collector = HistogramCollector(
        method=method,
        symmetric=False,
        num_bins=BINS,
        num_quantized_bins=QUANTIZED_BINS,
        percentile=PERCENTILE,
        scenario="same",
    )
    for name, seen in found.items():
        low, high = (np.asarray(value).reshape(-1)[0] for value in seen.range_value)
        most = max(abs(low), abs(high))
        nothing = np.empty(0, low.dtype)
        counts, edges = np.histogram(nothing, BINS, range=(-float(most), float(most)))
        collector.histogram_dict[name] = (counts, edges.astype(low.dtype), low, high, most)
    return collector


def _check(batch: Arrays, before: int) -> None:
    for name, array in batch.items():
        if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
            row = int(np.argwhere(~finite)[0][0]) if array.ndim else 0
            raise Misused(
                f"calibration row {before + row} of input {quoted(name)} holds NaN or infinity, "
                "which has no range: leave such rows out"
            )


def _rows(batch: Arrays) -> int:
    first: Array = next(iter(batch.values()))
    return first.shape[0] if first.ndim else 1
