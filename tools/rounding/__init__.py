"""Try which kernels of ONNX Runtime round a row by its run, and write the table of them."""
