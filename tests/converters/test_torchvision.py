"""Pictures give a model the pixels that torchvision's transforms gave it in training."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cohort_prepare.environments import find_environment
from cohort_prepare.frameworks import FRAMEWORKS
from tests.processing.pictures import picture, saved
from tests.processing.test_images import MEAN, STD, pixels, step_of
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(
    os.environ.get("CONVERTERS") != "all", reason="torch is fetched; `make converters` runs it"
)

TRANSFORM = """
import sys, numpy
from PIL import Image
from torchvision import transforms as t
folder, mean, std = sys.argv[1], [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
last = [t.ToTensor(), t.Normalize(mean, std)]
for name, first in {
    "stretch": [t.Resize((160, 200))],
    "crop": [t.Resize(256), t.CenterCrop(224)],
}.items():
    image = Image.open(sys.argv[2]).convert("RGB")
    numpy.save(f"{folder}/{name}.npy", t.Compose([*first, *last])(image).numpy())
"""

RECIPES: dict[str, dict[str, Any]] = {
    "stretch": {"size": (160, 200)},
    "crop": {"size": (224, 224), "resize": "shorter_side_then_crop", "shorter_side": 256},
}


@pytest.mark.parametrize("size", [(640, 480), (333, 777), (100, 57), (224, 224)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_pixels_are_torchvision_s(tmp_path: Path, kind: str, size: tuple[int, int]) -> None:
    """They agree within 1/255 before the division by std, for both ways to resize."""
    file = saved(picture(*size), kind)
    (tmp_path / "picture").write_bytes(file)
    command = os.environ.get("TORCHVISION_PYTHON", "").split() or [
        *find_environment(FRAMEWORKS["pytorch"], packages=["torchvision"]).command
    ]
    subprocess.run(
        [*command, "-c", TRANSFORM, str(tmp_path), str(tmp_path / "picture")],
        check=True,
        timeout=10 * PATIENCE,
    )
    for name, config in RECIPES.items():
        got = pixels(step_of(("N", 3, *config["size"]), mean=MEAN, std=STD, **config), file)[0]
        difference = np.abs(got - np.load(tmp_path / f"{name}.npy")).max(axis=(1, 2))
        assert (difference * STD < 1 / 255).all()
