"""ONNX Runtime, imported with its telemetry off; the rest of the package imports it from here."""

from __future__ import annotations

import os

# Telemetry is on by default from 1.29; the variable is read when the library loads. A value that
# the operator set is kept.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

# The runtime would also print failures to stderr. Every failure is already reported in Cohort's own
# words: it is an exception, or `providers` searches for it.
FATAL_ONLY = 4
ort.set_default_logger_severity(FATAL_ONLY)

ORT_VERSION: str = ort.__version__

__all__ = ["FATAL_ONLY", "ORT_VERSION", "ort"]
