"""Cohort: serve ONNX models over HTTP."""
