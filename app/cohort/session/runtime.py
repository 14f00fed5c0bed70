"""ONNX Runtime, imported with its telemetry off; the rest of the package imports it from here."""

from __future__ import annotations

import os

# On by default from 1.29 and read when the library loads. Who set it to something keeps that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

# Every failure is raised as an exception or is looked for by `providers`, and reported in our own
# words; the runtime would print it to stderr as well.
FATAL_ONLY = 4
ort.set_default_logger_severity(FATAL_ONLY)

ORT_VERSION: str = ort.__version__

__all__ = ["FATAL_ONLY", "ORT_VERSION", "ort"]
