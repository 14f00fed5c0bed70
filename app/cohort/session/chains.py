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
    asked: Whether an operator named them, by COHORT_PROVIDERS.
    reason: Why a build for GPUs begins with the CPU; "" where there is nothing to say.
    """

    links: tuple[Provider, ...]
    asked: bool = False
    reason: str = ""


def default_chain(providers: Sequence[str] = (), *, devices: Path = Path("/dev")) -> DefaultChain:
    """What an operator asks for, or else what the installed runtime can do on this machine.

    A GPU is looked for without CUDA, which would take memory on it: by the files of its driver.

    providers: The short names that the operator asks for; default none.
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
    """The files by which programs reach an NVIDIA GPU."""
    yield from devices.glob("nvidia[0-9]*")
    yield from devices.glob("nvhost-gpu")  # Jetson
    if (devices / "dxg").exists():  # WSL's, for GPUs of any vendor; the driver is NVIDIA's
        for folder in ("lib", "drivers/*"):
            yield from Path("/usr/lib/wsl").glob(f"{folder}/libcuda.so*")
