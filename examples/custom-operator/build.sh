#!/bin/sh
# Build libwrap_degrees.so. Usage: build.sh INCLUDE OUT, where INCLUDE has onnxruntime_c_api.h.
set -eu
here=$(dirname "$0")
mkdir -p "$2"
${CXX:-g++} -std=c++17 -O2 -Wall -fPIC -shared -fvisibility=default \
  -isystem "$1" -o "$2/libwrap_degrees.so" "$here/wrap_degrees.cc"
