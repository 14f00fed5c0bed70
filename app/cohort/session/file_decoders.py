"""Operators of onnxruntime-extensions that decode pictures in the graph.

Some input bytes make them crash the process or compute indefinitely. The server cannot catch
either.
"""

from __future__ import annotations

from cohort.model_file.graphs import ModelGraphs, called_functions

FILE_DECODERS = frozenset(
    {
        ("com.microsoft.extensions", "DecodeImage"),
        ("ai.onnx.contrib", "DecodeImage"),
        ("ai.onnx.contrib", "ImageDecoder"),
        ("ai.onnx.contrib", "ImageReader"),
    }
)
"""Operators by domain and name."""


def find_decoders(graphs: ModelGraphs) -> tuple[str, ...]:
    """Return the names of a model's decoders, including those in subgraphs and functions."""
    parts = [graphs.main, *graphs.functions.values()]
    called = {(domain, name) for one in parts for domain, name, _ in called_functions(one.nodes)}
    return tuple(sorted(f"{domain}.{name}" for domain, name in called & FILE_DECODERS))
