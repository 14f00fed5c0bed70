"""Provider chains on the runtime that is installed, whichever it is."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from cohort.errors import ConfigInvalid, LoadFailed
from cohort.session import (
    DefaultChain,
    Fallback,
    ModelRules,
    Placement,
    Provider,
    ProviderInvalid,
    ProviderPolicy,
    Session,
    default_chain,
    open_session,
    parse_provider,
)
from cohort.session.providers import ORT_NAMES
from tests import onnx_models

CPU = Provider("cpu")
# In no wheel for this machine.
ABSENT = Provider("directml" if platform.system() != "Windows" else "coreml")


def opened(
    folder: Path,
    chain: Sequence[Provider] | None = None,
    policy: ProviderPolicy = "prefer",
    default: DefaultChain | None = None,
) -> Session:
    path = onnx_models.save(onnx_models.mlp(), folder / "1" / "model.onnx")
    rules = ModelRules() if default is None else ModelRules(default_chain=default)
    return open_session(path, chain=chain, policy=policy, rules=rules)


# ---- names


@pytest.mark.parametrize("ort_name", onnxruntime.get_all_providers())
def test_every_provider_the_runtime_names_has_a_short_name(ort_name: str) -> None:
    """Each of ONNX Runtime's providers is accepted by its short name and by its own."""
    provider = Provider(ort_name)
    assert provider.ort_name == ort_name
    assert Provider(provider.name) == provider
    assert provider.name == provider.name.lower()


@pytest.mark.parametrize(
    ("written", "short"),
    [
        ("cuda", "cuda"),
        ("CUDA", "cuda"),
        ("CUDAExecutionProvider", "cuda"),
        ("trt", "tensorrt"),
        ("TensorRT", "tensorrt"),
        ("dml", "directml"),
        ("directml", "directml"),
        ("DmlExecutionProvider", "directml"),
        ("nv-tensorrt-rtx", "nvtensorrtrtx"),
        ("rocm", "rocm"),
        ("coreml", "coreml"),
        ("xnnpack", "xnnpack"),
        ("onednn", "dnnl"),
    ],
)
def test_names_are_read_leniently(written: str, short: str) -> None:
    """Case, dashes, common abbreviations and ONNX Runtime's own names are understood."""
    assert parse_provider(written) == Provider(short)
    assert ORT_NAMES[short].endswith("ExecutionProvider")


def test_options_come_along() -> None:
    """`{cuda: {device_id: 1}}` is CUDA on its second device, with options as text."""
    provider = parse_provider({"cuda": {"device_id": 1, "use_tf32": False}})
    assert provider == Provider("cuda", {"device_id": 1, "use_tf32": False})
    assert provider.ort_options == {"device_id": "1", "use_tf32": "False"}
    assert provider.device == "cuda:1"
    assert parse_provider({"cuda": None}) == Provider("cuda")


@pytest.mark.parametrize(
    ("provider", "device"),
    [
        (CPU, "cpu"),
        (Provider("tensorrt"), "cuda:0"),
        (Provider("xnnpack"), "cpu"),
        (Provider("openvino"), "cpu"),
        (Provider("openvino", {"device_type": "GPU.1"}), "openvino:gpu.1"),
        (Provider("directml", {"device_id": 2}), "directml:2"),
    ],
)
def test_providers_that_share_hardware_share_its_name(provider: Provider, device: str) -> None:
    """TensorRT runs on CUDA's device, XNNPACK and OpenVINO's CPU plugin on the CPU."""
    assert provider.device == device


def test_unknown_name_is_refused_with_a_suggestion() -> None:
    """An unknown provider is an error that suggests a known name."""
    with pytest.raises(
        ValueError, match="'cudo' is not an execution provider; did you mean 'cuda'"
    ):
        parse_provider("cudo")
    with pytest.raises(ValueError, match="'GPU' is not an execution provider; did you mean 'cuda'"):
        parse_provider("GPU")


@pytest.mark.parametrize(
    "link", [7, None, [], ["cuda"], {}, {"cuda": {}, "cpu": {}}, {"cuda": 3}, {"cuda": {"a": None}},
             {3: {}}, {"cuda": {1: 2}}, ""],
)  # fmt: skip
def test_what_is_no_link_is_refused(link: Any) -> None:
    """A link is a name, or one name with options; all else is a ConfigInvalid."""
    with pytest.raises(ProviderInvalid) as raised:
        parse_provider(link)
    assert isinstance(raised.value, ConfigInvalid)


# ---- the chain


def test_cuda_first_serves_everywhere_and_says_on_what(tmp_path: Path) -> None:
    """[cuda, cpu] serves on CUDA, or on the CPU with the reason that CUDA was refused for."""
    session = opened(tmp_path, [Provider("cuda"), CPU])
    placement = session.placement
    assert placement.wanted == ("cuda", "cpu")
    assert session.run({"x": np.ones((2, 4), "f4")})[0].shape == (2, 3)
    if placement.fell_back:
        assert (placement.active, session.device) == ("cpu", "cpu")
        assert [fallback.provider for fallback in placement.fallbacks] == ["cuda"]
        assert "no CUDAExecutionProvider" in placement.reason or "lib" in placement.reason
    else:
        assert (placement.active, session.device, placement.reason) == ("cuda", "cuda:0", "")


@pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers()
    or Path("/proc/driver/nvidia").exists(),
    reason="for a build with CUDA on a machine without it",
)
@pytest.mark.parametrize(("name", "library"), [("cuda", "libcu"), ("tensorrt", "lib")])
def test_missing_library_is_the_reason(tmp_path: Path, name: str, library: str) -> None:
    """If the build has a provider and the machine lacks its libraries, the first is named."""
    placement = opened(tmp_path, [Provider(name), CPU]).placement
    assert placement.active == "cpu"
    assert library in placement.reason
    assert "cannot open shared object file" in placement.reason
    assert "/" not in placement.reason


@pytest.mark.parametrize(
    ("build", "device", "hidden", "chain", "reason"),
    [
        ("CUDA", "nvidia0", None, ["cuda", "cpu"], ""),
        ("CUDA", "nvhost-gpu", "0", ["cuda", "cpu"], ""),
        ("CUDA", "nvidiactl", None, ["cpu"], "no NVIDIA device is seen"),
        ("CUDA", "nvidia0", "-1", ["cpu"], "CUDA_VISIBLE_DEVICES hides the GPUs"),
        ("CUDA", "nvidia0", "", ["cpu"], "CUDA_VISIBLE_DEVICES hides the GPUs"),
        ("OpenVINO", "nvidia0", None, ["openvino", "cpu"], ""),
        ("CPU", "nvidia0", None, ["cpu"], ""),
    ],
)
def test_the_default_chain_is_what_build_and_machine_can_do(
    build: str,
    device: str,
    hidden: str | None,
    chain: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A build for GPUs on a machine without one begins with the CPU, and gives the reason."""
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: [f"{build}ExecutionProvider"]
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    (tmp_path / device).touch()
    expected = DefaultChain(tuple(map(Provider, chain)), reason=reason)
    assert default_chain(devices=tmp_path) == expected


def test_an_operator_may_name_the_default_chain() -> None:
    """An operator's default providers override the machine's."""
    chain = default_chain(["tensorrt", "cpu"])
    assert chain == DefaultChain((Provider("tensorrt"), CPU), asked=True)


def test_a_default_that_cannot_be_had_is_a_fallback(tmp_path: Path) -> None:
    """If a machine has a GPU but lacks CUDA, each model that would run there gives the reason."""
    session = opened(tmp_path, default=default_chain([ABSENT.name, "cpu"]))
    assert session.placement.fell_back


@pytest.mark.parametrize("policy", ["require", "require_all"])
def test_nothing_is_required_where_nothing_is_named(tmp_path: Path, policy: ProviderPolicy) -> None:
    """A config that requires the first provider has to name one, or the process has."""
    with pytest.raises(
        LoadFailed, match=f"provider_policy {policy} needs a list of required providers"
    ):
        opened(tmp_path, policy=policy)
    named = default_chain(["cpu"])
    assert opened(tmp_path, policy=policy, default=named).placement.active == "cpu"


def test_provider_that_the_build_lacks_is_passed_over(tmp_path: Path) -> None:
    """The reason names what the build lacks and what it has."""
    session = opened(tmp_path, [ABSENT, CPU])
    assert session.placement.active == "cpu"
    assert session.placement.fell_back
    assert f"this onnxruntime build has no {ABSENT.ort_name}; it has" in session.placement.reason
    assert "cpu" in session.placement.reason


def test_nodes_are_counted(tmp_path: Path) -> None:
    """The three nodes of the model are where the placement reports them."""
    assert opened(tmp_path, [CPU]).placement == Placement(("cpu",), "cpu", (), {"cpu": 3})


def test_chain_without_cpu_does_not_end_there(tmp_path: Path) -> None:
    """An operator who does not name cpu does not get it: LoadFailed, with every reason."""
    says = f"no provider of the chain .*{ABSENT.name}: this onnx.*; name cpu last"
    with pytest.raises(LoadFailed, match=says):
        opened(tmp_path, [ABSENT])


def test_empty_chain_is_refused(tmp_path: Path) -> None:
    """A model needs a provider to open on."""
    with pytest.raises(LoadFailed, match="empty"):
        opened(tmp_path, [])


@pytest.mark.parametrize("policy", ["require", "require_all"])
def test_required_provider_must_be_had(tmp_path: Path, policy: ProviderPolicy) -> None:
    """Under require and require_all a refused first link refuses the model, with its reason."""
    with pytest.raises(LoadFailed, match=f"{policy} asks for {ABSENT.name}: this onnxruntime"):
        opened(tmp_path, [ABSENT, CPU], policy)


@pytest.mark.parametrize("policy", ["prefer", "require", "require_all"])
def test_cpu_satisfies_every_policy(tmp_path: Path, policy: ProviderPolicy) -> None:
    """The CPU is always there and takes every node."""
    assert opened(tmp_path, [CPU], policy).placement.active == "cpu"


def test_bad_model_is_not_blamed_on_the_chain(tmp_path: Path) -> None:
    """When no link can open the model, the reason is the model's, not the providers'."""
    model = onnx_models.mlp()
    model.graph.node[0].op_type = "Nope"
    path = onnx_models.save(model, tmp_path / "model.onnx")
    with pytest.raises(LoadFailed, match=r"^ONNX Runtime \S+ does not know its operator Nope"):
        open_session(path)


def test_sessions_open_after_a_refusal(tmp_path: Path) -> None:
    """Looking for the reason leaves the process able to serve, and finds the same one again."""
    chain = [Provider("tensorrt"), Provider("cuda"), CPU]
    first = opened(tmp_path, chain)
    second = opened(tmp_path, chain)
    feeds = {"x": np.ones((2, 4), "f4")}
    assert first.placement == second.placement
    assert first.run(feeds)[0].tolist() == second.run(feeds)[0].tolist()


def test_reason_is_one_sentence_or_nothing() -> None:
    """A placement that fell back has a reason for each link; any other has no reason."""
    fallbacks = (Fallback("tensorrt", "no engine"), Fallback("cuda", "no device"))
    fell = Placement(("tensorrt", "cuda", "cpu"), "cpu", fallbacks)
    assert fell.fell_back
    assert fell.reason == "tensorrt: no engine; cuda: no device"
    assert Placement(("cpu",), "cpu").reason == ""
