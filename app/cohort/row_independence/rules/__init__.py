"""The rules of operators, by subject; importing this package fills the table of rules."""

from __future__ import annotations

from cohort.row_independence.rules import (
    control,
    elementwise,
    images,
    indices,
    networks,
    origins,
    parts,
    quantization,
    shapes,
    signatures,
    sums,
    tables,
)

__all__ = [
    "control",
    "elementwise",
    "images",
    "indices",
    "networks",
    "origins",
    "parts",
    "quantization",
    "shapes",
    "signatures",
    "sums",
    "tables",
]
