"""Sources of versions."""

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
    """Processing of requests before the model, applied to the examples that a load tries."""

    def fit(self, signature: Signature, properties: Mapping[str, str]) -> None:
        """Prepare the processing for an open model. Raises LoadFailed.

        signature: The model's inputs and outputs.
        properties: The metadata of its file.
        """

    def read(self, example: Mapping[str, Any]) -> Arrays | None:
        """Return the model's inputs for an example; None if the example already has them.

        Raises InvalidInput.
        """

    def try_out(self, run: RunFeeds) -> None:
        """Run the model with its prepared inputs. Raises LoadFailed, or the error of the run."""


@dataclass(frozen=True, slots=True)
class Source:
    """The files and config that a version is loaded from. It is reloaded when they change.

    path: The file that identifies the kind of model, such as its model.onnx.
    stamp: Changes whenever a file of the version changes.
    config: The model's config; None if it cannot be used.
    problem: Why it cannot be used; default "".
    model: The model's name; default "": not known.
    code: Changes with the Python modules next to its config; default "": it has no transform.
    preparation: Processing before the model; default None: no processing.
    """

    path: Path
    stamp: str
    config: ModelConfig | None
    problem: str = ""
    model: str = field(default="", compare=False)
    code: str = ""
    preparation: Preparation | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The model's name, as far as it is known: otherwise that of its folder."""
        return self.model or self.path.parent.parent.name

    def is_on_disk(self) -> bool:
        """Return True if the files on disk have not changed. Reads the disk."""
        try:
            return stamp_files(str(self.path.parent))[0] == self.stamp
        except OSError:
            return False
