"""Find the ranges of activations on calibration rows.

ONNX Runtime's calibrators are given one batch at a time; otherwise those with histograms keep
every activation. Histograms get their final bins first, since histograms that grow from the first
batch's bins are unbounded. There are more bins than quantized levels, since with as many, the only
possible threshold is the largest value.
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
"""Percentage of an activation's values inside its range."""

OPERATORS = ("Conv", "ConvTranspose", "Gather", "Gemm", "MatMul")
"""Operators with large weights: products and embeddings."""

BETWEEN = (
    "Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "LeakyRelu", "MaxPool",
    "Mul", "Pad", "Relu", "Reshape", "Resize", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip
"""Operators between convolutions, quantized to avoid conversions to and from FP32."""

Batches = Callable[[], Iterator[Arrays]]


def find_ranges(
    prepared: Path,
    batches: Batches,
    methods: Sequence[Method],
    folder: Path,
    *,
    external: bool,
    on_progress: Callable[[str], None],
) -> int:
    """Write `<method>.json` to `folder` for each of `methods`, as `quantize_static` reads it.

    batches: Returns an iterator of the calibration rows at each call.
    external: True if the model's weights are in a separate file.
    on_progress: Called with progress messages.

    Returns the number of rows. Raises Misused if a row has NaN or infinity.
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
        on_progress(f"minimum and maximum of {rows:,} rows")
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
            on_progress(f"{method} of {seen:,} of {rows:,} rows")
        on_progress(f"choosing ranges by {method}")
        save_tensors_data(histograms.compute_data(), folder / f"{method}.json")
    return rows


class _OneBatch:
    """Data source of ONNX Runtime's calibrators."""

    def __init__(self, batch: Arrays) -> None:
        self._batch: Arrays | None = batch

    def get_next(self) -> Arrays | None:
        batch, self._batch = self._batch, None
        return batch


def _empty_histograms(method: str, found: Any) -> Any:
    """Return a collector whose histograms have bins for all values."""
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
                f"calibration row {before + row} of input {quoted(name)} has NaN or infinity, "
                "which have no range: remove such rows"
            )


def _rows(batch: Arrays) -> int:
    first: Array = next(iter(batch.values()))
    return first.shape[0] if first.ndim else 1
