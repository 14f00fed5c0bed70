"""The provider chain of models whose config names none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cohort.session.providers import CPU, ORT_NAMES, Provider
from cohort.session.runtime import ort


@dataclass(frozen=True, slots=True)
class DefaultChain:
    """The provider chain of models whose config names none.

    links: The providers, in order of preference.
    asked: True if an operator named them in COHORT_PROVIDERS.
    reason: The reason why a GPU build starts with the CPU; "" if it does not.
    """

    links: tuple[Provider, ...]
    asked: bool = False
    reason: str = ""


def default_chain(providers: Sequence[str] = (), *, devices: Path = Path("/dev")) -> DefaultChain:
    """Return the chain the operator requests, or the installed runtime's chain for this machine.

    A GPU is detected by the files of its driver, because using CUDA would take GPU memory.

    providers: The short names that the operator requests; default none.
    devices: The folder of device files.
    """
    if providers:
        return DefaultChain(tuple(map(Provider, providers)), asked=True)
    built_with: list[str] = ort.get_available_providers()
    cpu = Provider(CPU)
    if ORT_NAMES["openvino"] in built_with:
        return DefaultChain((Provider("openvino"), cpu))
    if ORT_NAMES["cuda"] not in built_with:
        return DefaultChain((cpu,))
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in {"", "-1"}:
        return DefaultChain((cpu,), reason="CUDA_VISIBLE_DEVICES hides the GPUs")
    if not any(_nvidia_devices(devices)):
        return DefaultChain((cpu,), reason="no NVIDIA device is seen")
    return DefaultChain((Provider("cuda"), cpu))


def _nvidia_devices(devices: Path) -> Iterator[Path]:
    """Iterate over the files that give programs access to an NVIDIA GPU."""
    yield from devices.glob("nvidia[0-9]*")
    yield from devices.glob("nvhost-gpu")  # Jetson
    if (devices / "dxg").exists():  # WSL's, for GPUs of any vendor; the driver is NVIDIA's
        for folder in ("lib", "drivers/*"):
            yield from Path("/usr/lib/wsl").glob(f"{folder}/libcuda.so*")
