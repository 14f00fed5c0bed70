"""Read a model's file from its protobuf in one pass; weights are skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cohort.errors import LoadFailed, quoted
from cohort.model_file.graphs import (
    MAX_NODES,
    FunctionName,
    Graph,
    GraphReader,
    ModelGraphs,
    empty_graph,
    in_order,
    too_many,
)
from cohort.model_file.protobuf import (
    SEQUENCE,
    TENSOR,
    DeclaredShape,
    FileSlice,
    MessageBytes,
    decode_text,
    fields,
    read_opset,
    read_pair,
    signed,
)

NO_GRAPHS = ModelGraphs(empty_graph(), {})


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata in a model's file. Missing texts are empty.

    ir_version: The version of the ONNX file format; 0 if unknown.
    opsets: Versions of the operator sets by domain; the domain of ONNX itself is "".
    producer, producer_version: The tool that wrote the file.
    description, domain: The author's texts about the model.
    graph_name: The name of the main graph.
    properties: Custom keys and values of the author.
    """

    ir_version: int = 0
    opsets: Mapping[str, int] = field(default_factory=dict)
    producer: str = ""
    producer_version: str = ""
    description: str = ""
    domain: str = ""
    graph_name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The contents of a model's file, without weights.

    metadata: The model's metadata.
    shapes: Shapes of the graph's inputs and outputs by name; tensors only.
    external: Locations of weights outside the file, as written in the file.
    sequences: Names of inputs and outputs that are sequences, for example sequences of maps.
    graphs: The nodes, which use most of the memory.
    """

    metadata: Metadata
    shapes: Mapping[str, DeclaredShape]
    external: frozenset[str]
    sequences: frozenset[str]
    graphs: ModelGraphs


def read_model(path: Path, max_nodes: int = MAX_NODES) -> ModelFile:
    """Read the model at `path`.

    Raises LoadFailed if the model has more nodes than `max_nodes` or invalid functions. Raises
    ValueError if the file is not the protobuf of a model, and OSError.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        if size == 0:
            raise ValueError("the file is empty")
        return parse_model(FileSlice(file, 0, size), max_nodes)


def parse_model(model: MessageBytes, max_nodes: int = MAX_NODES) -> ModelFile:
    """Read a model from bytes; see `read_model`."""
    reader, main = GraphReader(max_nodes), empty_graph()
    functions: dict[FunctionName, Graph] = {}
    texts = {2: "", 3: "", 4: "", 6: ""}
    ir_version, has_graph = 0, False
    properties: dict[str, str] = {}
    for number, value in fields(model):
        if isinstance(value, int):
            ir_version = signed(value) if number == 1 else ir_version
        elif number in texts:
            texts[number] = decode_text(value)
        elif number == 7:  # protobuf merges the parts of a repeated message
            main = reader.graph(value, main)
            has_graph = True
        elif number == 8:
            main.opsets.update([read_opset(value)])
        elif number == 14:
            properties.update([read_pair(value)])
        elif number == 25:
            name, body = reader.function(value)
            if name in functions:
                raise LoadFailed(f"it defines function {quoted(name[1])} twice")
            functions[name] = body
    if not has_graph:
        raise ValueError("it holds no graph")
    graphs = ModelGraphs(main, in_order(functions))
    if (nodes := graphs.count_nodes()) > max_nodes:
        raise too_many(f"{nodes:,} nodes, counting those of functions at each call", max_nodes)
    metadata = Metadata(
        ir_version=ir_version,
        opsets=main.opsets,
        producer=texts[2],
        producer_version=texts[3],
        domain=texts[4],
        description=texts[6],
        graph_name=main.name,
        properties=properties,
    )
    ends = [*main.inputs, *main.outputs]
    return ModelFile(
        metadata,
        {one.name: one.shape for one in ends if one.kind == TENSOR},
        frozenset(reader.external),
        frozenset(one.name for one in ends if one.kind == SEQUENCE),
        graphs,
    )
