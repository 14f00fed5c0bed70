"""Write a model that wraps angles by the operator of wrap_degrees.cc, and the model's config.

python example.py MODELS
"""

import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

DOMAIN = "cohort.example"


def main() -> None:
    """Write MODELS/compass."""
    folder = Path(sys.argv[1]) / "compass"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(
        [helper.make_node("WrapDegrees", ["degrees"], ["wrapped"], domain=DOMAIN)],
        "compass",
        [helper.make_tensor_value_info("degrees", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("wrapped", TensorProto.FLOAT, ["N", 2])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, folder / "1" / "model.onnx")
    config = "session: {custom_op_libraries: [libwrap_degrees.so]}\n"
    (folder / "config.yaml").write_text(config)


if __name__ == "__main__":
    main()
