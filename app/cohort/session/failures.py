"""Conversion of ONNX Runtime's errors to this package's errors, with readable sentences.

Its errors derive from Exception (`Fail`, `InvalidArgument`, …) or are RuntimeErrors. Their messages
mix useful text with C++ signatures, source files and paths of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cohort.errors import CohortError, InferenceFailed, RunRefused
from cohort.session.runtime import ORT_VERSION, ort

# Patterns of failures that the input did not cause.
_STOPPED = re.compile(r"terminate flag")
_MEMORY = re.compile(
    r"Failed to allocate|bad[_ ]?alloc|out of memory|OUT_OF_MEMORY|ALLOC_FAILED|MemoryError"
    r"|Available memory of",
    re.IGNORECASE,
)
_ARENA = re.compile(r"Available memory of|Failed to allocate memory for requested buffer")
_LACKING = re.compile(
    r"Too many open files|Resource temporarily unavailable|can't start new thread"
    r"|Input/output error|busy or unavailable|DEVICE_?(?:UNAVAILABLE|BUSY)",
    re.IGNORECASE,
)
_DEVICE = re.compile(
    r"\b(?:CUDA|CUDNN|CUBLAS|CUBLASLT|CUFFT|CUSPARSE|NCCL|HIP|ROCM|MIOPEN|ROCBLAS|HIPBLAS)[ _]"
    r"(?:failure|error|status|driver)|\bcuda[A-Z]\w+|CUD(?:A|NN)_(?:ERROR|STATUS)|CUBLAS_STATUS"
    r"|TensorRT EP (?:failed|could not|execution)|MIGraphX.*(?:fail|error)"
    r"|DXGI_ERROR|device (?:removed|lost|reset)|GPU device",
    re.IGNORECASE,
)
# CUDA: after these errors "the process must be terminated and relaunched". Other devices have
# similar ones.
# https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
_LOST = re.compile(
    r"illegal (?:memory access|instruction)|misaligned address|invalid program counter"
    r"|unspecified launch failure|launch timed out|device-side assert|hardware stack error"
    r"|operation not supported on global/shared address space|uncorrectable (?:ECC|NVLink)"
    r"|no (?:CUDA|ROCm)-capable device|context is destroyed|driver shutting down"
    r"|(?:cuda|hip)Error(?:IllegalAddress|LaunchFailure|Assert|ECCUncorrectable|NoDevice)"
    r"|CUDA failure (?:100|101|201|214|220|700|702|709|710|71[4-9])\b"
    r"|DXGI_ERROR_DEVICE|device (?:removed|lost|hung|reset)|fallen off the bus",
    re.IGNORECASE,
)

_NOISE = (
    re.compile(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : "),
    re.compile(r"^Load model from .*? failed: ?"),
    re.compile(r"Load model \S+ failed\. ?"),
    re.compile(r"\[ERROR\] \[OpenVINO[^\]]*\] ?"),
    re.compile(r"(?:Failed to load library|Error loading) (?:\"[^\"]*\"|\S+) with error: "),
    re.compile(r"[ ;]*GPU=-?\d+ ; hostname=.*", re.DOTALL),
    re.compile(r"Please fix either the inputs/outputs or the model\."),
)
_OPSET = re.compile(
    r"Opset (\d+) is under development.*support for domain (\S+) is till opset (\d+)", re.DOTALL
)
_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_UNREGISTERED = re.compile(r"([^\s:]*):([^\s:]+)\(-?\d+\) is not a registered function/op")
_NO_OPERATOR = re.compile(
    r'In Node, \(".*?", (\S+), "(.*?)", -?\d+\).*'
    r"No Op registered for \S+ with domain_version of (\d+)"
)
_NO_OPSET = re.compile(r"No opset import for domain '(.*?)'")
_LOCALE = re.compile(r"Failed to construct locale with name: ?([\w.@-]+)")
_SHORT_DATA = re.compile(r"External initializer: (\S+) offset: (-?\d+) .*file_length: (\d+)")
_NO_KERNEL = re.compile(r"Could not find an implementation for (\S+?)\((\d+)\) node")

NEWEST_ONNX_BY_IR: Mapping[int, str] = {10: "1.17", 11: "1.18", 12: "1.19", 13: "1.21"}
NEWEST_ONNX_BY_OPSET: Mapping[int, str] = {
    22: "1.17",
    23: "1.18",
    24: "1.19",
    25: "1.20",
    26: "1.21",
}
"""The last release of onnx that writes at most this IR version or opset."""
_STATUS = "Status Message: "
_SOURCE = re.compile(r"(?:\S*/)?[\w.]+\.(?:cc|cpp|cxx|h|hpp|cu|cuh):\d+,? ")
_PATH = re.compile(r"""(?:(?<=["'(\s=:])|^)(?:[A-Za-z]:[\\/]|/)[^\s"',;:)]*""")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")
_LONGEST = 600


def sentence(text: str) -> str:
    """Return `text`, an error message of the runtime, without paths and C++."""
    text = text[text.rfind(_STATUS) + len(_STATUS) :] if _STATUS in text else text
    if hint := _too_new(text) or _unknown_operator(text):
        return hint
    if missing := _LOCALE.search(text):
        name, of = missing[1], missing[1].partition(".")[0]
        return (
            f"it changes text by the locale {name}, which this machine does not have: "
            f"`localedef -i {of} -f UTF-8 {name}` makes it (Debian: apt-get install locales)"
        )
    if short := _SHORT_DATA.search(text):
        return outside_file(short[1], int(short[2]), int(short[3]))
    for noise in _NOISE:
        text = noise.sub("", text)
    while source := _SOURCE.search(text):
        text = text[: source.start()] + _without_function(text[source.end() :])
    text = _PATH.sub(lambda found: _last_part(found.group()), text)
    text = " ".join(_ADDRESS.sub("…", text).split()).strip(" .:;")
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def outside_file(weight: str, offset: int, size: int) -> str:
    """Return the error for a weight whose offset is outside its external data of `size` bytes."""
    if offset < 0:
        return f"{weight!r} has the offset {offset} in its external data: export the model again"
    return (
        f"its external data ends after {size} bytes, but {weight!r} has the offset {offset}: copy "
        "the whole file (`git lfs pull`, if it is a Git LFS pointer)"
    )


def _too_new(text: str) -> str:
    """Return a hint for a model that is too new for this runtime; "" for any other error."""
    if ir := _IR.search(text):
        version, latest = ir.groups()
        onnx = NEWEST_ONNX_BY_IR.get(int(latest))
        older = f"save it with onnx {onnx} or older, or " if onnx else ""
        return (
            f"it has IR version {version}; ONNX Runtime {ORT_VERSION} reads up to {latest}: {older}"
            f"set model.ir_version = {latest} before onnx.save"
        )
    if opset := _OPSET.search(text):
        version, domain, latest = opset.groups()
        onnx = NEWEST_ONNX_BY_OPSET.get(int(latest)) if domain == "ai.onnx" else None
        older = f", or with onnx {onnx} or older" if onnx else ""
        return (
            f"it uses opset {version} of {domain}; ONNX Runtime {ORT_VERSION} reads up to {latest}"
            ": export it for that (opset_version of torch.onnx.export, target_opset of skl2onnx "
            f"and onnxmltools){older}"
        )
    return ""


_OWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})


def _unknown_operator(text: str) -> str:
    """Return a hint for an operator that the runtime does not have; "" for any other error."""
    opset = ""
    if found := _UNREGISTERED.search(text):
        domain, operator = found.groups()
    elif found := _NO_OPERATOR.search(text):
        operator, domain, opset = found.groups()
    elif found := _NO_OPSET.search(text):
        return f"a node is of the domain {found[1]!r}, for which the model names no opset"
    elif found := _NO_KERNEL.search(text):
        return (
            f"ONNX Runtime {ORT_VERSION} does not implement the operator {found[1]} (opset "
            f"{found[2]}) for the model's datatypes. Export the model with other datatypes, such "
            "as float32, or for another opset"
        )
    else:
        return ""
    domain = domain or "ai.onnx"
    if domain in _OWN_DOMAINS:
        in_opset = f" in opset {opset}" if opset else ""
        return (
            f"ONNX Runtime {ORT_VERSION} does not know its operator {operator} of "
            f"{domain}{in_opset}: check its name, or export the model for another opset"
        )
    return (
        f"its operator {operator} of the domain {domain} is not part of ONNX Runtime. Add the "
        "operator's library to session.custom_op_libraries in config.yaml, and its folder to "
        "COHORT_CUSTOM_OPS"
    )


def _without_function(text: str) -> str:
    """Remove the function that follows a source line: a whole signature, or its name only.

    `T* ns::Class::Method(int, F (*)(G)) const [with T = int] message`, `Method message`.
    """
    opening = text.find("(")
    if "::" not in text[: max(opening, 0)]:
        name, _, message = text.partition(" ")
        return message if re.fullmatch(r"[\w:~]+(?:\(\))?", name) else text
    text = _after_bracket(text, opening).removeprefix(" const")
    return _after_bracket(text, 1) if text.startswith(" [with ") else text


def _after_bracket(text: str, opening: int) -> str:
    """Return the text after the bracket that closes `opening`; all of it if no bracket does."""
    depth = 0
    for place in range(opening, len(text)):
        depth += (text[place] in "([") - (text[place] in ")]")
        if depth == 0:
            return text[place + 1 :]
    return text


def _last_part(path: str) -> str:
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1]


def run_failure(error: Exception, memory_limit_mb: int | None = None) -> CohortError:
    """Convert `error`, raised by a run, to a CohortError.

    `memory_limit_mb` is the memory limit of the session; default None: no limit.
    """
    text = str(error)
    if isinstance(error, CohortError):
        return error
    if _STOPPED.search(text):
        return InferenceFailed("the run was stopped", blames_input=False)
    if memory_limit_mb is not None and _ARENA.search(text):
        return InferenceFailed(
            f"the run needs more memory than the model may take: {memory_limit_mb} MB "
            "(memory_limit_mb)"
        )
    if ran_out_of_memory(error):
        return InferenceFailed("out of memory while running the model", blames_input=False)
    if isinstance(error, UnicodeDecodeError):
        return RunRefused("an output is not UTF-8 text, and other bytes the runtime does not give")
    if isinstance(error, _INVALID_ARGUMENT):
        return RunRefused(sentence(text) or "the runtime rejected the inputs")
    if isinstance(error, _DEVICE_ERRORS) or _DEVICE.search(text):
        return InferenceFailed(
            f"the device failed: {sentence(text)}",
            blames_input=False,
            device_lost=_LOST.search(text) is not None,
        )
    if isinstance(error, _FAIL) and _IN_A_NODE in text:
        return RunRefused(sentence(text) or "an operator refused its inputs")
    return InferenceFailed(sentence(text) or type(error).__name__)


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Return True if `error`, raised by the runtime, reports a lack of memory."""
    return isinstance(error, MemoryError) or _MEMORY.search(str(error)) is not None


def lacks_resources(error: BaseException) -> bool:
    """Return True if `error`, of the runtime or the interpreter, reports a temporary shortage.

    Such resources are memory, descriptors, threads, a disk, or a device used by other processes.
    """
    return ran_out_of_memory(error) or _LACKING.search(str(error)) is not None


_state = ort.capi.onnxruntime_pybind11_state
_INVALID_ARGUMENT: type[Exception] = _state.InvalidArgument
_FAIL: type[Exception] = _state.Fail
_IN_A_NODE = "Non-zero status code returned while running "
"""Text of an error that an operator's own input check raised. ONNX Runtime raises InvalidArgument
or Fail; for an index out of range, the class depends on the operator."""
_DEVICE_ERRORS: tuple[type[Exception], ...] = tuple(
    getattr(_state, name)
    for name in ("EPFail", "EngineError", "DeviceReset")
    if hasattr(_state, name)
)
