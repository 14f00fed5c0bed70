"""A version's settings in Triton's form, from the control plane's description."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.errors import InvalidInput
from cohort.open_inference import load_model, model_config, model_metadata
from cohort.operating import ModelReader, ProcessPlane


class Reader(ModelReader):
    """Describes one version of one model, without a registry."""

    def __init__(self, **described: Any) -> None:
        self.described = {
            "version": "2",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": ["N", 3]}],
            "optional_inputs": [],
            "outputs": [{"name": "y", "datatype": "BYTES", "shape": ["N"]}],
            "metadata": {"properties": {}},
            "providers": {"active": "cpu", "device": "cpu"},
            "batching": {"on": True, "max_batch_size": 8, "max_queue_delay_ms": 1.5},
            **described,
        }

    def ready(self, name: str, version: str | None = None) -> str:
        return version or "2"

    def version(self, name: str, version: str) -> dict[str, Any]:
        return self.described

    def model(self, name: str) -> dict[str, Any]:
        states = {"1": "READY", "2": "READY", "3": "LOADING"}
        return {"versions": [{"version": one, "state": states[one]} for one in states]}


class Plane(ProcessPlane):
    """Notes what is loaded."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    async def load(self, name: str) -> None:
        self.loaded.append(name)


@pytest.mark.parametrize(
    ("active", "device", "kind"),
    [
        ("cpu", "cpu", "KIND_CPU"),
        ("acl", "cpu", "KIND_CPU"),
        ("armnn", "cpu", "KIND_CPU"),
        ("openvino", "cpu", "KIND_CPU"),
        ("openvino", "openvino:gpu", "KIND_GPU"),
        ("cuda", "cuda:1", "KIND_GPU"),
    ],
)
def test_the_kind_is_where_it_runs(active: str, device: str, kind: str) -> None:
    """The device determines the kind, whatever the provider's name."""
    reader = Reader(providers={"active": active, "device": device})
    assert model_config(reader, "m")["instance_group"] == [{"name": "m", "kind": kind, "count": 1}]


def test_rows_are_left_out_where_requests_are_batched() -> None:
    """An output of rows alone has no dimension left: one, reshaped to none."""
    config = model_config(Reader(), "m")
    assert config["max_batch_size"] == 8
    assert config["input"] == [
        {"name": "x", "data_type": "TYPE_FP32", "dims": [3], "format": "FORMAT_NONE"}
    ]
    assert config["output"] == [
        {"name": "y", "data_type": "TYPE_STRING", "dims": [1], "reshape": {"shape": []}}
    ]
    assert config["dynamic_batching"] == {"max_queue_delay_microseconds": 1500}
    assert config["version_policy"] == {"specific": {"versions": [2]}}


def test_rows_are_one_at_a_time_where_requests_are_not_batched() -> None:
    """They are rows all the same: classes come by row, and clients send a batch dimension."""
    alone = {"on": False, "max_batch_size": 8, "max_queue_delay_ms": 0}
    config = model_config(Reader(batching=alone), "m")
    assert config["max_batch_size"] == 1
    assert config["input"][0]["dims"] == [3]
    assert "dynamic_batching" not in config


def test_without_rows_every_dimension_is_there() -> None:
    """An axis 0 of a fixed length other than 1 does not hold rows."""
    fixed = [{"name": "x", "datatype": "FP32", "shape": [4, 3]}]
    config = model_config(Reader(inputs=fixed, outputs=fixed), "m")
    assert config["max_batch_size"] == 0
    assert config["input"][0]["dims"] == [4, 3]
    assert "dynamic_batching" not in config


def test_a_tensor_of_unknown_rank_is_one_of_any_length() -> None:
    """It may occur together with rows; a datatype that Triton lacks is invalid."""
    config = model_config(
        Reader(outputs=[{"name": "y", "datatype": "FP8E4M3FN", "shape": None}]), "m"
    )
    assert config["max_batch_size"] == 8
    assert config["output"] == [{"name": "y", "data_type": "TYPE_INVALID", "dims": [-1]}]


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (["N", 3, 224, 224], "FORMAT_NCHW"),
        ([1, 1, 8, 8], "FORMAT_NCHW"),
        (["N", None, None, 3], "FORMAT_NHWC"),
        (["N", 64, 56, 56], "FORMAT_NONE"),
        (["N", 3], "FORMAT_NONE"),
        (None, "FORMAT_NONE"),
    ],
)
def test_images_say_how_they_lie(shape: list[Any] | None, says: str) -> None:
    """Inputs of four dimensions and one or three channels have the format for `image_client.py`."""
    config = model_config(Reader(inputs=[{"name": "x", "datatype": "FP32", "shape": shape}]), "m")
    assert config["input"][0]["format"] == says


def test_versions_are_those_that_may_be_asked_for() -> None:
    """They are the named one, or all that are ready; properties are listed if there are any."""
    assert model_metadata(Reader(), "m")["versions"] == ["1", "2"]
    assert model_metadata(Reader(), "m", "2")["versions"] == ["2"]
    assert "properties" not in model_metadata(Reader(), "m")
    named = Reader(metadata={"properties": {"a": "b"}})
    assert model_metadata(named, "m")["properties"] == {"a": "b"}


async def test_a_model_is_loaded_as_the_repository_has_it() -> None:
    """A config or files in the request are refused, and other parameters change nothing."""
    plane = Plane()
    await load_model(plane, "m", {"unload_dependents": False})
    for name in ("config", "file:1/model.onnx"):
        with pytest.raises(InvalidInput, match=f"parameters.{name} is not supported"):
            await load_model(plane, "m", {name: "x"})
    assert plane.loaded == ["m"]
