"""The types of all values in a model, as ONNX Runtime infers them.

Most exporters write only the types of inputs and outputs. ONNX Runtime reports only the types of
outputs, so each value becomes an output. Fields appended to a protobuf message are added to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cohort.errors import LoadFailed
from cohort.model_file.model import parse_model
from cohort.model_file.protobuf import DeclaredShape
from cohort.model_file.writing import write_field
from cohort.session.opening import EXTERNAL_DATA_FOLDER
from cohort.session.runtime import FATAL_ONLY, ort
from cohort.tensors import BY_ORT

MAX_INFERRED_BYTES = 1 << 28
"""Maximum size of a model to open for its types: it is in memory three times."""

MAX_INFERRED_VALUES = 50_000

_GRAPH, _OUTPUT, _NAME = 7, 12, 1  # fields of ModelProto, GraphProto and ValueInfoProto


def infer_types(path: Path) -> Mapping[str, tuple[str, DeclaredShape]]:
    """Return the datatype and shape of each tensor that a main-graph node makes, by its name.

    A shape without dimensions is None, like an unknown one: ONNX Runtime does not distinguish them.

    The result is empty if the model is too large or does not open without its custom operators. The
    model is opened, so it can crash the process. Raises OSError.
    """
    if path.stat().st_size > MAX_INFERRED_BYTES:
        return {}
    model = path.read_bytes()
    try:
        main = parse_model(memoryview(model)).graphs.main
    except (LoadFailed, ValueError, RecursionError):
        return {}
    ends = {*(one.name for one in (*main.inputs, *main.outputs)), *main.constants, ""}
    made = {name for node in main.nodes for name in node.outputs}
    if len(made) > MAX_INFERRED_VALUES:
        return {}
    outputs = b"".join(
        write_field(_OUTPUT, write_field(_NAME, one.encode())) for one in made - ends
    )
    options = ort.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(path.parent))
    try:
        session = ort.InferenceSession(
            model + write_field(_GRAPH, outputs), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # noqa: BLE001  ONNX Runtime raises many kinds; the model serves without
        return {}
    return {
        one.name: (BY_ORT[one.type].name, tuple(one.shape) or None)
        for one in session.get_outputs()
        if one.type in BY_ORT
    }
