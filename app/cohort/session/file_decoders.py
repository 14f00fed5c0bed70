"""Operators that decode pictures in the graph, of onnxruntime-extensions.

They end the process, or compute for ever, for some bytes that callers may send; a server around
them can catch neither.
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
"""By domain and name."""


def find_decoders(graphs: ModelGraphs) -> tuple[str, ...]:
    """The names of those in a model, subgraphs and functions included."""
    parts = [graphs.main, *graphs.functions.values()]
    called = {(domain, name) for one in parts for domain, name, _ in called_functions(one.nodes)}
    return tuple(sorted(f"{domain}.{name}" for domain, name in called & FILE_DECODERS))
