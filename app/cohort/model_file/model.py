"""A model's file, read in one walk from its protobuf; weights are skipped."""

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
    """The metadata in a model's file. Texts are empty where it has none.

    ir_version: The version of the ONNX file format; default 0: unknown.
    opsets: The operator sets by domain; ONNX's own domain is "".
    producer, producer_version: The tool that wrote the file.
    description, domain: The author's texts about the model.
    graph_name: The name of the main graph.
    properties: The author's own keys and values.
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
    """What is in a model's file, besides its weights.

    metadata: The author's words about it.
    shapes: The shapes of the graph's inputs and outputs by name; tensors only.
    external: Where weights lie outside the file, as the file words it.
    sequences: The names of inputs and outputs that are sequences, of maps among others.
    graphs: Its nodes, which take most of the memory.
    """

    metadata: Metadata
    shapes: Mapping[str, DeclaredShape]
    external: frozenset[str]
    sequences: frozenset[str]
    graphs: ModelGraphs


def read_model(path: Path, max_nodes: int = MAX_NODES) -> ModelFile:
    """Read the model at `path`.

    Raises LoadFailed where it has more nodes than `max_nodes` or functions that cannot be, a
    ValueError where it is not the protobuf of a model, and OSError.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        if size == 0:
            raise ValueError("the file is empty")
        return parse_model(FileSlice(file, 0, size), max_nodes)


def parse_model(model: MessageBytes, max_nodes: int = MAX_NODES) -> ModelFile:
    """The same from bytes."""
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
        elif number == 7:  # parts of a message that is written twice are one message
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
