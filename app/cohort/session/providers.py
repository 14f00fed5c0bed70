"""Execution providers by short name, and the reason why one is unavailable."""

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

# Providers of some releases of ONNX Runtime that this build's list may lack.
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

# Names for hardware, mapped to the provider that supports it.
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
"""Short name → ONNX Runtime's name, for all its providers."""

SPELLINGS = (*ORT_NAMES, *_ALIASES, *ORT_NAMES.values())
"""The accepted spellings of providers; case and dashes are ignored."""


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
        """ONNX Runtime's name, such as `CUDAExecutionProvider`."""
        return ORT_NAMES[self.name]

    @property
    def ort_options(self) -> dict[str, str]:
        """The options as text, which ONNX Runtime requires."""
        return {
            key: json.dumps(value, default=str) if isinstance(value, Mapping | list) else str(value)
            for key, value in self.options.items()
        }

    @property
    def device(self) -> str:
        """The hardware that runs this provider's nodes: `cpu`, `cuda:0`, `openvino:gpu`.

        Providers on the same hardware have the same device, so runs can be counted by device.
        """
        if self.name in ("cpu", "dnnl", "xnnpack", "acl", "armnn"):
            return CPU
        if self.name == "openvino":
            kind = str(self.options.get("device_type", CPU)).lower()
            return CPU if kind.startswith(CPU) else f"openvino:{kind}"
        family = "cuda" if self.name in ("tensorrt", "nvtensorrtrtx") else self.name
        return f"{family}:{self.options.get('device_id', 0)}"


def short_name(name: str) -> str:
    """Return `cuda` for `CUDAExecutionProvider`, `Cuda` or `cuda`. Raises ProviderInvalid."""
    plain = re.sub(r"[-_ ]", "", name.strip().removesuffix(_SUFFIX)).lower()
    plain = _ALIASES.get(plain, plain)
    if plain not in ORT_NAMES:
        meant = did_you_mean(_MEANT.get(plain, plain), ORT_NAMES)
        raise ProviderInvalid(f"{quoted(name)} is not an execution provider{meant}")
    return plain


def parse_provider(link: object) -> Provider:
    """Parse a link of config.yaml: `cuda`, or `{cuda: {device_id: 0}}`.

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
    """Return the providers that the installed runtime was built with; some may not work here."""
    built_with: list[str] = ort.get_available_providers()
    return [Provider(name) for name in built_with]


_probing = threading.Lock()
_refusals: dict[tuple[str, str], str] = {}


def refusal(provider: Provider) -> str:
    """Return the reason why `provider` is unavailable in this process, or "" if it is available.

    The first call for a provider and its options opens a one-node model on it. This is necessary
    because ONNX Runtime lists the providers of its build, not those that work. If CUDA's libraries
    are missing, it silently serves on the CPU.
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
    except Exception as error:  # noqa: BLE001  any exception is a reason
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
        enable_fallback=0,  # otherwise ONNX Runtime prints the reason and retries
    )
    active: list[str] = session.get_providers()
    return active


def _preload_cuda() -> None:
    """Make ONNX Runtime load CUDA from NVIDIA's own packages, if they are installed.

    ONNX Runtime prints missing libraries. The output is discarded, because the probe finds the same
    fault and has a better message.
    """
    preload = getattr(ort, "preload_dlls", None)
    if preload is not None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
            preload()


def _missing_library(provider: Provider) -> str:
    """Return the error of loading the provider's library, such as a missing dependency.

    ONNX Runtime has just tried to load the same file, so a second try changes nothing.
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


# The reason is an error, or else the general warning that the provider was not created. Other
# warnings, such as the one about hardware detection in a container, are unrelated.
_WARNINGS = 2
"""ONNX Runtime's number for the severity "warning"."""

_ERROR = re.compile(r"\[E:onnxruntime:[^\]]*\]\s*([^\x1b\n]+)")
_WARNING = re.compile(r"\[W:onnxruntime:[^\]]*\]\s*(Failed to create [^\x1b\n]+)")


def _reason_from_log(provider: Provider) -> str:
    """Return the reason in ONNX Runtime's log when a separate process opens the provider.

    Only the log on stderr has the reason. Redirecting this process's stderr, even briefly, would
    also redirect the lines of other threads.
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
    """Make ONNX Runtime log to stderr why a provider is unavailable. This function is a job."""
    ort.set_default_logger_severity(_WARNINGS)
    getattr(ort, "preload_dlls", lambda: None)()
    ort.InferenceSession(
        PROBE, providers=[(name, options), "CPUExecutionProvider"], enable_fallback=0
    )


def _probe_model() -> bytes:
    """Return a handwritten model: `x` FP32 [1] → Add(x, x) → `y`."""

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
