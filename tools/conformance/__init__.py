"""Send the ONNX backend suite to a server, and report what passes: `make conformance`."""
