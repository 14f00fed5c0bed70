"""What a version is loaded from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cohort.batching import RunFeeds
from cohort.repository import ModelConfig, stamp_files
from cohort.session import Signature
from cohort.tensors import Arrays


class Preparation(Protocol):
    """What becomes of requests before the model gets them, for those that are tried at a load."""

    def fit(self, signature: Signature, properties: Mapping[str, str]) -> None:
        """Make what prepares requests for a model that is open. Raises LoadFailed.

        signature: What the model takes and gives.
        properties: The metadata of its file.
        """

    def read(self, example: Mapping[str, Any]) -> Arrays | None:
        """The model's inputs of an example; None where it has those themselves.

        Raises InvalidInput.
        """

    def try_out(self, run: RunFeeds) -> None:
        """Run the model with what it prepares. Raises LoadFailed, or what the run raises."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a version is loaded from. It is reloaded when that changes.

    path: The file that says what kind of model it is, such as its model.onnx.
    stamp: Changes whenever a file of the version does.
    config: The model's config; None where it cannot be used.
    problem: Why it cannot be used; default "".
    model: The model's name; default "": not known.
    code: Changes with the Python modules next to its config; default "": it has no transform.
    preparation: What becomes of requests before; default None: nothing.
    """

    path: Path
    stamp: str
    config: ModelConfig | None
    problem: str = ""
    model: str = field(default="", compare=False)
    code: str = ""
    preparation: Preparation | None = field(default=None, compare=False)

    def is_on_disk(self) -> bool:
        """Whether the files there are still the same; looks at the disk."""
        try:
            return stamp_files(str(self.path.parent))[0] == self.stamp
        except OSError:
            return False
