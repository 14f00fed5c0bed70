"""Measure quantization and ONNX Runtime: the tables of docs/reports/preparing.md."""
