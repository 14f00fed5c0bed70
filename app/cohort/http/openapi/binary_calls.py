"""Copyable calls for inputs that are too large for JSON: in binary, with curl and in Python.

As JSON, an image takes several times its bytes, and most of the time of its request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from cohort.http.openapi.examples import example_shapes
from cohort.http.openapi.schemas import can_fill_in
from cohort.operating import ServedModel
from cohort.tensors import BY_NAME, STANDARD, TensorSpec

HOST = "localhost:8000"
"""Placeholder for the server's host and port in the calls."""

MAX_INPUTS = 8
"""Number of inputs up to which a call is written."""

MAX_IN_CALL = 100

TRITON_TYPES = frozenset(one.name for one in STANDARD)


class Sent(NamedTuple):
    """An input of a call, with a `shape` that the version accepts and its `size` in bytes."""

    spec: TensorSpec
    shape: tuple[int, ...]
    size: int


def binary_calls(served: ServedModel, path: str, *, root: str = "", needs_key: bool = False) -> str:
    """Return calls of a version at `path` behind `root` as Markdown, or a link to the format."""
    inputs = _inputs(served)
    if inputs is None:
        return (
            "The inputs are too large for an example. Send them [in binary]"
            "(https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol/"
            f"binary-tensor-data-extension) to `{path}`."
        )
    lines = [
        "**Send these inputs in binary**: JSON takes several times as long. Data is "
        "little-endian, row after row"
        + (
            "; each BYTES element follows its length in four bytes"
            if any(one.spec.datatype == "BYTES" for one in inputs)
            else ""
        )
        + ".",
        "",
        "```sh",
        *_curl(inputs, root + path, large=not can_fill_in(served.outputs), needs_key=needs_key),
        "```",
    ]
    if all(one.spec.datatype in TRITON_TYPES for one in inputs):
        pinned = "/versions/" in path
        python = _python(served, inputs, root, pinned=pinned, needs_key=needs_key)
        lines += ["", "```python", *python, "```"]
    return "\n".join(lines)


def _inputs(served: ServedModel) -> list[Sent] | None:
    shapes = example_shapes(served)
    if shapes is None or not 0 < len(served.inputs) <= MAX_INPUTS:
        return None
    if any(len(one.name) > MAX_IN_CALL for one in (*served.inputs, _output(served))):
        return None
    inputs = []
    for spec in served.inputs:
        if not spec.transportable:
            return None
        count = prod(shapes[spec.name])
        datatype = BY_NAME[spec.datatype]
        size = 4 * count if datatype.kind == "text" else datatype.size(count)
        inputs.append(Sent(spec, shapes[spec.name], size))
    return inputs


def _output(served: ServedModel) -> TensorSpec:
    return next(spec for spec in served.outputs if spec.transportable)


def _curl(inputs: Sequence[Sent], path: str, *, large: bool, needs_key: bool) -> list[str]:
    names = [f"input{number}.bin" for number in range(len(inputs))]
    head = {
        "inputs": [
            {
                "name": one.spec.name,
                "datatype": one.spec.datatype,
                "shape": list(one.shape),
                "parameters": {"binary_data_size": one.size},
            }
            for one in inputs
        ]
    }
    return [
        *(
            f"head -c {one.size} /dev/zero >{name}  # data: {one.spec.datatype} {list(one.shape)}"
            for name, one in zip(names, inputs, strict=True)
        ),
        f"head={_in_quotes(head)}",
        f'{{ printf %s "$head"; cat {" ".join(names)}; }} | curl http://{HOST}{path} \\',
        *(['  -H "X-Api-Key: $COHORT_API_KEY" \\'] if needs_key else []),
        '  -H "Inference-Header-Content-Length: ${#head}" --data-binary @-'
        + (" -o answer.json" if large else ""),
    ]


def _in_quotes(document: object) -> str:
    """Return JSON in ASCII and quotes. The shell's count of characters is used as bytes."""
    return "'" + _ascii(document).replace("'", r"\u0027") + "'"


def _ascii(document: object) -> str:
    """Return ASCII JSON, also valid as a Python string. It cannot end a Markdown block."""
    return json.dumps(document, separators=(",", ":")).replace("`", r"\u0060")


def _python(
    served: ServedModel, inputs: Sequence[Sent], root: str, *, pinned: bool, needs_key: bool
) -> list[str]:
    version = f', model_version="{served.version}"' if pinned else ""
    headers = ', headers={"X-Api-Key": os.environ["COHORT_API_KEY"]}' if needs_key else ""
    return [
        '# pip install "tritonclient[http]"',
        *(["import os"] if needs_key else []),
        "import numpy as np",
        "import tritonclient.http as triton",
        "",
        f'client = triton.InferenceServerClient("{HOST}{root}")',
        "inputs = [",
        *(line for one in inputs for line in _input(one)),
        "]",
        f'answer = client.infer("{served.model}", inputs{version}{headers})',
        f"print(answer.as_numpy({_ascii(_output(served).name)}))",
    ]


def _input(one: Sent) -> list[str]:
    name, shape = _ascii(one.spec.name), list(one.shape)
    return [
        f'    triton.InferInput({name}, {shape}, "{one.spec.datatype}").set_data_from_numpy(',
        f"        {_array(one)}  # your data",
        "    ),",
    ]


def _array(one: Sent) -> str:
    """Return an array of zeros or empty texts as Python code."""
    datatype = BY_NAME[one.spec.datatype]
    if datatype.kind == "text":
        return f'np.full({one.shape}, b"", np.object_)'
    name = "float32" if one.spec.datatype == "BF16" else datatype.dtype.name  # as in tritonclient
    return f"np.zeros({one.shape}, np.{'bool_' if name == 'bool' else name})"
