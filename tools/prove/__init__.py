"""Try to contradict proofs of row independence with ONNX Runtime: `make prove`."""
