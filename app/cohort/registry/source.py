"""What a version is loaded from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cohort.repository import ModelConfig, stamp_files


@dataclass(frozen=True, slots=True)
class Source:
    """What a version is loaded from. It is reloaded when that changes.

    path: The file that says what kind of model it is, such as its model.onnx.
    stamp: Changes whenever a file of the version does.
    config: The model's config; None where it cannot be used.
    problem: Why it cannot be used; default "".
    model: The model's name; default "": not known.
    """

    path: Path
    stamp: str
    config: ModelConfig | None
    problem: str = ""
    model: str = field(default="", compare=False)

    def is_on_disk(self) -> bool:
        """Whether the files there are still the same; looks at the disk."""
        try:
            return stamp_files(str(self.path.parent))[0] == self.stamp
        except OSError:
            return False
