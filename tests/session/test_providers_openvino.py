"""Provider chains on a real second provider. Collected where OpenVINO is in the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from cohort.errors import LoadFailed
from cohort.session import Provider, ProviderPolicy, Session, open_session
from tests import onnx_models

CPU = Provider("cpu")
OPENVINO = Provider("openvino")
ON_ABSENT_GPU = Provider("openvino", {"device_type": "GPU"})


def opened(
    folder: Path,
    model: onnx.ModelProto,
    chain: Sequence[Provider] = (OPENVINO, CPU),
    policy: ProviderPolicy = "prefer",
) -> Session:
    path = onnx_models.save(model, folder / "1" / "model.onnx")
    return open_session(path, chain=chain, policy=policy)


@pytest.mark.parametrize("policy", ["prefer", "require", "require_all"])
def test_openvino_takes_the_model(tmp_path: Path, policy: ProviderPolicy) -> None:
    """OpenVINO is active, takes all three nodes, and computes what the CPU provider does."""
    session = opened(tmp_path, onnx_models.mlp(), policy=policy)
    assert session.placement.active == "openvino"
    assert not session.placement.fell_back
    assert session.placement.fallbacks == ()
    assert session.placement.nodes == {"openvino": 3}
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 4)).astype("f4")}
    (answer,) = session.run(feeds)
    (expected,) = opened(tmp_path, onnx_models.mlp(), [CPU]).run(feeds)
    assert answer.ravel().tolist() == pytest.approx(expected.ravel().tolist(), abs=1e-4)


def test_refused_device_falls_to_the_cpu_and_says_why(tmp_path: Path) -> None:
    """OpenVINO without the GPU it was asked for: served on the CPU, with OpenVINO's own reason."""
    session = opened(tmp_path, onnx_models.mlp(), [ON_ABSENT_GPU, CPU])
    assert session.placement.active == "cpu"
    assert session.placement.reason == "openvino: Device GPU is not available"
    assert session.run({"x": np.ones((1, 4), "f4")})[0].shape == (1, 3)


def test_chain_goes_on_to_the_next_link(tmp_path: Path) -> None:
    """Refused on one device and had on another, the second link serves."""
    placement = opened(tmp_path, onnx_models.mlp(), [ON_ABSENT_GPU, OPENVINO, CPU]).placement
    assert placement.wanted == ("openvino", "openvino", "cpu")
    assert placement.nodes == {"openvino": 3}
    assert placement.fell_back
    assert placement.reason == "openvino: Device GPU is not available"


@pytest.mark.parametrize("policy", ["require", "require_all"])
def test_required_and_refused_is_a_failed_load(tmp_path: Path, policy: ProviderPolicy) -> None:
    """Under require the refusal is the operator's sentence, reason included."""
    with pytest.raises(LoadFailed, match=f"{policy} asks for openvino: Device GPU is not avail"):
        opened(tmp_path, onnx_models.mlp(), [ON_ABSENT_GPU, CPU], policy)


def test_refused_without_cpu_in_the_chain_is_a_failed_load(tmp_path: Path) -> None:
    """An operator who named only OpenVINO's GPU is not served on the CPU."""
    with pytest.raises(LoadFailed, match="Device GPU is not available"):
        opened(tmp_path, onnx_models.mlp(), [ON_ABSENT_GPU])


def test_unknown_option_is_the_reason(tmp_path: Path) -> None:
    """An option that OpenVINO does not know is reported by name."""
    odd = Provider("openvino", {"nope": 1})
    placement = opened(tmp_path, onnx_models.mlp(), [odd, CPU]).placement
    assert placement.reason == "openvino: Invalid OpenVINO EP option: nope"


def test_provider_that_takes_no_node_is_not_active(tmp_path: Path) -> None:
    """OpenVINO opens a model of strings and takes no node of it: the CPU is active."""
    placement = opened(tmp_path, onnx_models.strings()).placement
    assert placement.active == "cpu"
    assert placement.reason == "openvino: it runs no node of the model"
    assert placement.nodes == {"cpu": 2}


def test_a_model_that_the_default_does_not_suit_is_no_fallback(tmp_path: Path) -> None:
    """This build prefers OpenVINO; what that takes nothing of is on the CPU, with the reason."""
    numbers = onnx_models.save(onnx_models.mlp(), tmp_path / "numbers.onnx")
    assert open_session(numbers).placement.nodes == {"openvino": 3}
    words = onnx_models.save(onnx_models.strings(), tmp_path / "words.onnx")
    placement = open_session(words).placement
    assert (placement.wanted, placement.active) == (("openvino", "cpu"), "cpu")
    assert placement.reason == "openvino: it runs no node of the model"
    assert not placement.fell_back
    asked = opened(tmp_path, onnx_models.strings())
    assert asked.placement.fell_back, "its config asks for OpenVINO"


def test_required_provider_must_take_a_node(tmp_path: Path) -> None:
    """Under require, opening is not enough."""
    with pytest.raises(LoadFailed, match="require asks for openvino: it runs no node"):
        opened(tmp_path, onnx_models.strings(), policy="require")


def test_shared_model_is_counted_by_provider(tmp_path: Path) -> None:
    """A model of which OpenVINO takes a part shows both counts, and require accepts it."""
    placement = opened(tmp_path, half_taken(), policy="require").placement
    assert placement.active == "openvino"
    assert placement.nodes["openvino"] >= 1
    assert placement.nodes["cpu"] >= 1


def test_require_all_refuses_a_shared_model(tmp_path: Path) -> None:
    """Under require_all the error contains how many nodes the provider takes."""
    with pytest.raises(LoadFailed, match=r"require_all asks for openvino: it runs \d of \d nodes"):
        opened(tmp_path, half_taken(), policy="require_all")


def half_taken() -> onnx.ModelProto:
    """Numbers for OpenVINO, and strings, which it does not take."""
    model = onnx_models.mlp()
    words = onnx_models.strings()
    model.graph.node.extend(words.graph.node)
    model.graph.input.extend(words.graph.input)
    model.graph.output.extend(words.graph.output)
    model.opset_import.append(words.opset_import[1])
    return model
