#!/bin/sh
# Remove tests, sources, debug symbols and tools that prepare models from a virtual environment: a serving process
# imports none. Then compile it, since a read-only root cannot keep the files that Python compiles. Run by the
# Dockerfile: trim-packages.sh ENVIRONMENT
set -eu
environment=$1
cd "$environment"/lib/python3*/site-packages

rm -rf onnxruntime/transformers onnxruntime/quantization onnxruntime/tools onnxruntime/datasets \
    numpy/distutils numpy/f2py
find . -depth -type d \( -name tests -o -name include -o -name __pycache__ \) -exec rm -rf {} +
find . -type f \( -name '*.pyi' -o -name '*.pxd' -o -name '*.pyx' -o -name '*.c' -o -name '*.cpp' \
    -o -name '*.h' -o -name '*.a' \) -delete

# strip breaks files that patchelf has changed; these are stripped already.
find . -name '*.so*' -type f ! -path './nvidia/*' ! -path './*.libs/*' ! -path './onnxruntime/*' \
    -exec strip --strip-unneeded {} +

# The library for C programs: Python's own extension contains all of it.
if ! grep -q 'libonnxruntime\.so' onnxruntime/capi/onnxruntime_pybind11_state*.so \
    onnxruntime/capi/libonnxruntime_providers_*.so; then
    rm -f onnxruntime/capi/libonnxruntime.so*
fi
"$environment"/bin/python -m compileall -q .
