"""The files of one model: where they are, whether they are allowed, and what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from app.errors import LoadFailed
from app.session.digests import Digests, Stamp, stamp
from app.session.graphs import read_graphs
from app.session.protobuf import ModelFile, read_model
from app.session.rules import ModelRules, check_external, check_model_file
from app.session.value_dependence import find_dependence


class ModelFiles:
    """The files of one model, each read once.

    path: the model.
    rules: what is allowed of it.
    custom_op_libraries: the names of its libraries of custom operators.

    digests: the digests of files that were read.
    unpredictable: why runs cannot be estimated; "" where they can, or before the model was read.
    """

    def __init__(
        self, path: Path, rules: ModelRules, custom_op_libraries: Sequence[str] = ()
    ) -> None:
        self.path, self.rules, self.digests = path, rules, Digests()
        self.unpredictable = ""
        self._library_names = custom_op_libraries
        self._model: ModelFile | None = None
        self._stamps: dict[Path, Stamp] = {}

    def read(self) -> ModelFile:
        """What is in the model's own file. Raises LoadFailed where that may not be opened."""
        if self._model is None:
            before = stamp(self.path)
            model, self.unpredictable = _read(self.path, self.rules)
            beside = [self.path.parent / location for location in sorted(model.external)]
            beside += self.libraries()
            self._stamps = {self.path: before, **{path: stamp(path) for path in beside}}
            self._model = model
        return self._model

    def digest(self) -> str:
        """The digest of the model, its external data and its custom operators.

        Raises LoadFailed or OSError where they cannot be read.
        """
        files = [*self.files(), *self.libraries()]
        return hashlib.sha256("\n".join(map(self.digests.of, files)).encode()).hexdigest()

    def file_digests(self) -> dict[str, str]:
        """The SHA-256 of the model and its external data, in hex, by their paths in its folder.

        Raises LoadFailed or OSError where they cannot be read.
        """
        names = [self.path.name, *self.external()]
        return dict(zip(names, map(self.digests.of, self.files()), strict=True))

    def external(self) -> list[str]:
        """Where the model's external data lies in its folder. Raises LoadFailed."""
        return sorted(self.read().external)

    def files(self) -> list[Path]:
        """The model and its external data. Raises LoadFailed."""
        return [self.path, *(self.path.parent / location for location in self.external())]

    def libraries(self) -> list[Path]:
        """The libraries of custom operators. Raises LoadFailed where one may not be loaded."""
        return [self.rules.find_library(name) for name in self._library_names]

    def unchanged(self) -> bool:
        """Whether all files are still as they were just before the model was first read."""
        return all(stamp(path) == before for path, before in self._stamps.items())


def _read(path: Path, rules: ModelRules) -> tuple[ModelFile, str]:
    """The model's file, and why the cost of its runs depends on values."""
    try:
        check_model_file(path)
        rules.check_size([path])
        model = read_model(path)
        graphs = read_graphs(path, rules.max_nodes)
        for location in sorted(model.external):
            check_external(path, location)
        rules.check_size([path, *(path.parent / location for location in model.external)])
        return model, find_dependence(graphs)
    except FileNotFoundError:
        raise LoadFailed(f"{path.name} not found") from None
    except OSError as error:
        raise LoadFailed(f"{path.name} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise LoadFailed(f"{path.name} is not an ONNX model, or is truncated: {error}") from error
