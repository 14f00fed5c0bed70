"""What measurements depend on: the model's bytes, the machine, the runtime."""

from __future__ import annotations

import contextlib
import hashlib
from functools import cache
from pathlib import Path

from app.session.opening import SessionOptions
from app.session.optimized_graph import cpu, digest
from app.session.processor import cores
from app.session.protobuf import read_model
from app.session.runtime import VERSION, ort

DRIVER = Path("/proc/driver/nvidia")


def digest_model(path: Path, options: SessionOptions) -> str:
    """The digest of a model, its external data and its custom operators. Raises OSError."""
    files = [path, *(path.parent / location for location in sorted(read_model(path).external))]
    files += [path.absolute().parent.parent / one for one in options.custom_op_libraries]
    return hashlib.sha256("\n".join(map(digest, files)).encode()).hexdigest()


@cache
def machine() -> str:
    """The CPU, the cores this process may use, and the GPUs with their driver."""
    said = [cpu(), f"{cores()} cores"]
    for file in [DRIVER / "version", *sorted(DRIVER.glob("gpus/*/information"))]:
        with contextlib.suppress(OSError):
            lines = file.read_text().splitlines()
            said += [line for line in lines if line.startswith(("NVRM", "Model:"))]
    return "\n".join(said)


def runtime_build() -> str:
    """ONNX Runtime's version and build, with the providers it has."""
    return f"{VERSION} {ort.get_build_info()} {ort.get_available_providers()}"
