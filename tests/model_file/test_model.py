"""A model's file is read in one walk, whatever is asked of it later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from cohort.errors import LoadFailed
from cohort.model_file.constants import CLASS_NUMBERS, MAX_NUMBERS, UnreadList
from cohort.model_file.model import parse_model
from cohort.model_file.protobuf import FileSlice
from cohort.session import ModelRules
from cohort.session.class_maps import find_class_maps
from cohort.session.model_files import ModelFiles
from tests import onnx_models
from tests.examples import examples

MODELS = [
    model.SerializeToString()
    for model in (
        onnx_models.loop(nested=True),
        onnx_models.gather(),
        onnx_models.scores_by_class(),
        onnx_models.sequence(),
    )
]


def test_no_byte_of_a_file_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load needs metadata, nodes, places of weights and classes; long weights are not read."""
    model = onnx_models.scores_by_class()
    weights = numpy_helper.from_array(np.zeros(1 << 18, np.float32), "long")
    model.graph.initializer.append(weights)
    path = onnx_models.save(model, tmp_path / "m/1/model.onnx")
    read: list[int] = []
    plain = FileSlice._read

    def noting(self: FileSlice, at: int, length: int) -> bytes:
        read.extend(range(self._start + at, self._start + at + length))
        return plain(self, at, length)

    monkeypatch.setattr(FileSlice, "_read", noting)
    files = ModelFiles(path, ModelRules())
    files.read()
    assert files.class_maps
    assert len(read) == len(set(read))
    assert len(read) < path.stat().st_size - (1 << 20) + 1024


def test_graphs_are_given_up_once_rows_are_proven(tmp_path: Path) -> None:
    """What stays of a model that serves is small."""
    files = ModelFiles(
        onnx_models.save(onnx_models.mlp(), tmp_path / "m/1/model.onnx"), ModelRules()
    )
    assert not files.read().graphs.main.nodes
    assert files.rows.axes
    assert files._graphs is None


@pytest.mark.parametrize("place", ["values", "indices", "attribute", "list", "sparse attribute"])
def test_weights_outside_the_file_are_found_in_tensors_of_every_kind(place: str) -> None:
    """Tensors that are not weights of the graph are found as well."""
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[1])
    tensor.external_data.add(key="location", value="beside.bin")
    graph = helper.make_graph([helper.make_node("Op", [], ["y"])], "g", [], [])
    attribute = graph.node[0].attribute.add(name="a")
    if place == "values":
        graph.sparse_initializer.add().values.CopyFrom(tensor)
    elif place == "indices":
        graph.sparse_initializer.add().indices.CopyFrom(tensor)
    elif place == "attribute":
        attribute.t.CopyFrom(tensor)
    elif place == "list":
        attribute.tensors.append(tensor)
    else:
        attribute.sparse_tensor.values.CopyFrom(tensor)
    content = helper.make_model(graph).SerializeToString()
    assert parse_model(memoryview(content)).external == {"beside.bin"}


def test_classes_are_read_that_are_more_than_other_numbers() -> None:
    """Lists of the same length that do not hold classes are left out."""
    numbers = list(range(MAX_NUMBERS + 1))
    model = onnx_models.scores_by_class(numbers)
    model.graph.node[0].attribute.append(helper.make_attribute("others", numbers))
    graph = parse_model(memoryview(model.SerializeToString())).graphs.main
    assert find_class_maps(graph.nodes, ["scores"]) == {"scores": tuple(numbers)}
    assert CLASS_NUMBERS in graph.nodes[1].attributes
    assert isinstance(graph.nodes[0].attributes["others"], UnreadList)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_damaged_file_is_a_model_or_an_error_with_its_reason(data: st.DataObject) -> None:
    """Nothing else is raised, whichever bytes are others."""
    content = bytearray(data.draw(st.sampled_from(MODELS)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse_model(memoryview(bytes(content)))
    except (ValueError, LoadFailed):
        return
    assert found.graphs.count_nodes() >= 0
