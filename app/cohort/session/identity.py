"""Identity of the machine and the runtime, on which measurements of a model depend."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

from cohort.session.optimized_graph import cpu
from cohort.session.runtime import ORT_VERSION, ort
from cohort.system.processor import cores

DRIVER = Path("/proc/driver/nvidia")


@cache
def machine() -> str:
    """Describe the CPU, the cores this process may use, and the GPUs with their driver."""
    described = [cpu(), f"{cores()} cores"]
    for file in [DRIVER / "version", *sorted(DRIVER.glob("gpus/*/information"))]:
        with contextlib.suppress(OSError):
            lines = file.read_text().splitlines()
            described += [line for line in lines if line.startswith(("NVRM", "Model:"))]
    return "\n".join(described)


def runtime_build() -> str:
    """Return ONNX Runtime's version, build and available providers."""
    return f"{ORT_VERSION} {ort.get_build_info()} {ort.get_available_providers()}"
