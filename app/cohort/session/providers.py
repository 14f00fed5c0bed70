"""Execution providers by short name, and why one cannot be had."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cohort.errors import ConfigInvalid, did_you_mean, quoted
from cohort.session.failures import sentence
from cohort.session.runtime import FATAL_ONLY, ort
from cohort.system.jobs import JobFailed, JobLimits, JobProcess

ProviderPolicy = Literal["prefer", "require", "require_all"]

CPU = "cpu"
_SUFFIX = "ExecutionProvider"

# What ONNX Runtime names in one release or another and this build's list may lack.
_ELSEWHERE = (
    "ACL", "ArmNN", "Azure", "CANN", "CoreML", "CPU", "CUDA", "Dml", "Dnnl", "Js", "MIGraphX",
    "Nnapi", "NvTensorRTRTX", "OpenVINO", "QNN", "Rknpu", "ROCM", "SNPE", "Tensorrt", "TVM",
    "VitisAI", "VSINPU", "WebGpu", "WebNN", "Xnnpack",
)  # fmt: skip
_CANONICAL = {"dml": "directml"}
_ALIASES = {
    "dml": "directml",
    "trt": "tensorrt",
    "nvidia": "cuda",
    "tensorrtrtx": "nvtensorrtrtx",
    "trtrtx": "nvtensorrtrtx",
    "onednn": "dnnl",
    "ov": "openvino",
}

# What people write for hardware whose provider has another name.
_MEANT = {
    "gpu": "cuda",
    "mps": "coreml",
    "metal": "coreml",
    "apple": "coreml",
    "amd": "migraphx",
    "directx": "directml",
    "intel": "openvino",
    "npu": "openvino",
    "mkldnn": "dnnl",
}


def _short(stem: str) -> str:
    return _CANONICAL.get(stem.lower(), stem.lower())


ORT_NAMES: Mapping[str, str] = {
    _short(stem): stem + _SUFFIX
    for stem in [*_ELSEWHERE, *(name.removesuffix(_SUFFIX) for name in ort.get_all_providers())]
}
"""Short name → ONNX Runtime's: everything it names."""

SPELLINGS = (*ORT_NAMES, *_ALIASES, *ORT_NAMES.values())
"""The names that are written for providers, but for capitals and dashes, which do not count."""


class ProviderInvalid(ConfigInvalid, ValueError):
    """A link of a provider chain is not a provider, or not written as one."""

    def __init__(self, problem: str) -> None:
        super().__init__("", "", problem)


@dataclass(frozen=True, slots=True)
class Provider:
    """One link of a provider chain: a short name, and options as ONNX Runtime documents them."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", short_name(self.name))

    @property
    def ort_name(self) -> str:
        """`CUDAExecutionProvider`."""
        return ORT_NAMES[self.name]

    @property
    def ort_options(self) -> dict[str, str]:
        """The options as ONNX Runtime takes them: text."""
        return {
            key: json.dumps(value, default=str) if isinstance(value, Mapping | list) else str(value)
            for key, value in self.options.items()
        }

    @property
    def device(self) -> str:
        """Which piece of hardware runs what this provider takes: `cpu`, `cuda:0`, `openvino:gpu`.

        Providers on the same hardware have the same device, so that runs can be counted by it.
        """
        if self.name in ("cpu", "dnnl", "xnnpack", "acl", "armnn"):
            return CPU
        if self.name == "openvino":
            kind = str(self.options.get("device_type", CPU)).lower()
            return CPU if kind.startswith(CPU) else f"openvino:{kind}"
        family = "cuda" if self.name in ("tensorrt", "nvtensorrtrtx") else self.name
        return f"{family}:{self.options.get('device_id', 0)}"


def short_name(name: str) -> str:
    """`CUDAExecutionProvider`, `Cuda` and `cuda` are `cuda`; ProviderInvalid where it is none."""
    plain = re.sub(r"[-_ ]", "", name.strip().removesuffix(_SUFFIX)).lower()
    plain = _ALIASES.get(plain, plain)
    if plain not in ORT_NAMES:
        meant = did_you_mean(_MEANT.get(plain, plain), ORT_NAMES)
        raise ProviderInvalid(f"{quoted(name)} is not an execution provider{meant}")
    return plain


def parse_provider(link: object) -> Provider:
    """A link as config.yaml writes it: `cuda`, or `{cuda: {device_id: 0}}`.

    Raises ProviderInvalid, which is a ValueError and a ConfigInvalid without file and key.
    """
    if isinstance(link, Provider):
        return link
    if isinstance(link, str):
        return Provider(link)
    if not isinstance(link, Mapping) or len(link) != 1:
        raise ProviderInvalid(
            "a provider is a name such as cuda, or one name with options: {cuda: {device_id: 0}}"
        )
    ((name, options),) = link.items()
    if not isinstance(name, str):
        raise ProviderInvalid(f"a provider's name must be a string, got {quoted(str(name))}")
    if options is None:
        options = {}
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise ProviderInvalid(f"the options of {name} are names with values: {{device_id: 0}}")
    for key, value in options.items():
        if value is None:
            raise ProviderInvalid(f"the option {key} of {name} must have a value")
    return Provider(name, dict(options))


def available_providers() -> list[Provider]:
    """The providers that the installed runtime was built with; not each of them works here."""
    built_with: list[str] = ort.get_available_providers()
    return [Provider(name) for name in built_with]


_probing = threading.Lock()
_refusals: dict[tuple[str, str], str] = {}


def refusal(provider: Provider) -> str:
    """Why `provider` cannot be had in this process: one reason, or "" where it can.

    Found once per provider and options, by opening a model of one node on it: ONNX Runtime lists
    what it was built with, not what works, and serves on the CPU without a word when asked for
    CUDA on a machine that lacks its libraries.
    """
    if provider.name == CPU:
        return ""
    key = (provider.name, json.dumps(provider.ort_options, sort_keys=True))
    with _probing:
        if key not in _refusals:
            _refusals[key] = _find_refusal(provider)
        return _refusals[key]


def _find_refusal(provider: Provider) -> str:
    built_with: list[str] = ort.get_available_providers()
    if provider.ort_name not in built_with:
        names = ", ".join(_short(name.removesuffix(_SUFFIX)) for name in built_with)
        return f"this onnxruntime build has no {provider.ort_name}; it has {names}"
    if provider.device.startswith("cuda"):
        _preload_cuda()
    try:
        if provider.ort_name in _open_probe(provider):
            return ""
    except Exception as error:  # noqa: BLE001  whatever it is, it is the reason
        return _missing_library(provider) or _reason_from_log(provider) or sentence(str(error))
    return _missing_library(provider) or _reason_from_log(provider) or "it gave no reason"


def _open_probe(provider: Provider) -> list[str]:
    options = ort.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        PROBE,
        options,
        providers=[(provider.ort_name, provider.ort_options), "CPUExecutionProvider"],
        enable_fallback=0,  # or ONNX Runtime prints the reason and tries again by itself
    )
    active: list[str] = session.get_providers()
    return active


def _preload_cuda() -> None:
    """Let ONNX Runtime load CUDA from NVIDIA's own packages, where they are installed.

    It prints what it misses; the probe finds the same and has a better message.
    """
    preload = getattr(ort, "preload_dlls", None)
    if preload is not None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
            preload()


def _missing_library(provider: Provider) -> str:
    """The library that the provider's own could not find.

    ONNX Runtime has just tried to load the same file, so trying again changes nothing.
    """
    stem = provider.ort_name.removesuffix(_SUFFIX).lower()
    for file in (f"libonnxruntime_providers_{stem}.so", f"onnxruntime_providers_{stem}.dll"):
        library = Path(ort.__file__).parent / "capi" / file
        if library.exists():
            try:
                ctypes.CDLL(str(library))
            except OSError as error:
                return sentence(str(error))
    return ""


# An error; or the warning that the provider was not made, which is general. Other warnings, such as
# the one about looking for hardware in a container, are about something else.
_WARNINGS = 2
"""The severity, in ONNX Runtime's numbers."""

_ERROR = re.compile(r"\[E:onnxruntime:[^\]]*\]\s*([^\x1b\n]+)")
_WARNING = re.compile(r"\[W:onnxruntime:[^\]]*\]\s*(Failed to create [^\x1b\n]+)")


def _reason_from_log(provider: Provider) -> str:
    """What ONNX Runtime writes to stderr when it opens the provider, in a process of its own.

    The reason is in its log and nowhere else, and taking this process's stderr away, be it for a
    moment, would take other threads' lines with it.
    """
    function = "cohort.session.providers:log_refusal"
    arguments = {"name": provider.ort_name, "options": provider.ort_options}
    try:
        with JobProcess(function) as process, contextlib.suppress(JobFailed):
            process.do(function, arguments, limits=JobLimits(seconds=60))
    except OSError:
        return ""
    lines = [*_ERROR.findall(process.printed), *_WARNING.findall(process.printed)]
    return next((reason for line in lines if (reason := sentence(line))), "")


def log_refusal(name: str, options: Mapping[str, str]) -> None:
    """Have ONNX Runtime write to stderr why a provider cannot be had; a job."""
    ort.set_default_logger_severity(_WARNINGS)
    getattr(ort, "preload_dlls", lambda: None)()
    ort.InferenceSession(
        PROBE, providers=[(name, options), "CPUExecutionProvider"], enable_fallback=0
    )


def _probe_model() -> bytes:
    """`x` FP32 [1] → Add(x, x) → `y`, written out by hand."""

    def message(*parts: tuple[int, bytes | int]) -> bytes:
        out = b""
        for number, value in parts:
            if isinstance(value, int):
                out += bytes([number << 3, value])
            else:
                out += bytes([number << 3 | 2, len(value)]) + value
        return out

    def tensor(name: bytes) -> bytes:
        one = message((1, message((1, 1))))
        return message((1, name), (2, message((1, message((1, 1), (2, one))))))

    node = message((1, b"x"), (1, b"x"), (2, b"y"), (4, b"Add"))
    graph = message((1, node), (2, b"probe"), (11, tensor(b"x")), (12, tensor(b"y")))
    return message((1, 8), (7, graph), (8, message((1, b""), (2, 17))))


PROBE = _probe_model()
