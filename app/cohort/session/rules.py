"""What an operator allows of any model, and of the files that belong to it."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePosixPath, PureWindowsPath

from cohort.errors import LoadFailed, quoted
from cohort.model_file.graphs import MAX_NODES
from cohort.session.chains import DefaultChain, default_chain
from cohort.session.file_kinds import why_pointer
from cohort.session.library_files import why_foreign
from cohort.system.processor import available_memory

EXTENSIONS = "extensions"
"""In the place of a library: that of onnxruntime-extensions."""

LIBRARY_SUFFIXES = frozenset({".so", ".dll", ".dylib", ".pyd"})


@dataclass(frozen=True, slots=True)
class ModelRules:
    """The limits of a model, the folders of its custom operators, and what it runs on by default.

    max_bytes: The most bytes of a model's file and its external data; default None: any number.
    max_nodes: The most nodes, those of functions counted at each call.
    custom_ops: Folders whose libraries of custom operators may be loaded; default none.
    default_chain: The provider chain of a model whose config names none.
    """

    max_bytes: int | None = None
    max_nodes: int = MAX_NODES
    custom_ops: tuple[Path, ...] = ()
    default_chain: DefaultChain = field(default_factory=default_chain)

    def check_size(self, files: Sequence[Path]) -> None:
        """Raise LoadFailed where `files` are more than `max_bytes`. Raises OSError."""
        size = sum(file.stat().st_size for file in files)
        if self.max_bytes is not None and size > self.max_bytes:
            raise LoadFailed(
                f"it has {-(-size >> 20):,} MiB; at most {self.max_bytes >> 20:,} are allowed "
                "(COHORT_MAX_MODEL_MB)"
            )

    def find_library(self, name: str) -> Path:
        """The library of custom operators `name`, links resolved.

        `extensions` is that of onnxruntime-extensions, where it is installed. A relative name is
        looked for in each of `custom_ops`, an absolute one must lie in one of them. Raises
        LoadFailed where it is not there.
        """
        if name == EXTENSIONS:
            return _find_extensions()
        for folder in self.custom_ops:
            try:
                found, inside = (folder / name).resolve(), folder.resolve()
                if found.is_relative_to(inside) and found.is_file():
                    return _checked(found, name)
            except (OSError, ValueError, RuntimeError):  # too long, a NUL, a loop of links
                continue
        what = f"custom operators {quoted(name)} are"
        if not self.custom_ops:
            raise LoadFailed(f"{what} native code; COHORT_CUSTOM_OPS names no folder for it")
        raise LoadFailed(f"{what} not a file in any folder that COHORT_CUSTOM_OPS names")


ANY_MODEL = ModelRules()


def _checked(library: Path, name: str) -> Path:
    """The library. Raises LoadFailed where it is none for this machine, or cannot be read."""
    try:
        why = why_foreign(library)
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    if why:
        raise LoadFailed(f"custom operators {quoted(name)} {why}")
    return library


def _find_extensions() -> Path:
    """The library of onnxruntime-extensions, which is not imported. Raises LoadFailed."""
    found = find_spec("onnxruntime_extensions")
    for folder in (found and found.submodule_search_locations) or ():
        for library in sorted(Path(folder).glob("_extensions_pydll.*")):
            if library.suffix in LIBRARY_SUFFIXES:
                return library.resolve()
    raise LoadFailed(
        f"custom operators '{EXTENSIONS}' need onnxruntime-extensions in the server's environment: "
        "pip install onnxruntime-extensions"
    )


def model_rules(
    max_megabytes: int | None,
    max_nodes: int,
    custom_ops: tuple[Path, ...],
    providers: Sequence[str],
) -> ModelRules:
    """The rules that settings ask for; a model may be as large as the memory unless they say."""
    largest = available_memory() if max_megabytes is None else max_megabytes << 20
    return ModelRules(largest, max_nodes, custom_ops, default_chain(providers))


def check_model_file(path: Path) -> None:
    """Raise LoadFailed unless `path` is a file: opening a pipe would wait. Raises OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise LoadFailed(f"{path.name} is not a file")


def check_location(location: str) -> None:
    """Raise LoadFailed for a place of weights that cannot be in the folder of their model."""
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    if posix.is_absolute() or windows.drive or windows.root:
        raise LoadFailed(f"its external data {location!r} is an absolute path")
    if ".." in posix.parts or ".." in windows.parts:
        raise LoadFailed(f"its external data {location!r} leaves the version's folder")


def missing_external(model: Path, location: str) -> LoadFailed:
    """What to say where the weights of a model are not beside it."""
    name = f"{model.name}{Path(location).suffix}"  # renamed as the model was, it may be
    renamed = f" ({name} is there: rename it)" if (model.parent / name).is_file() else ""
    if (model.parent / f"{location}.dvc").is_file():
        return LoadFailed(f"its external data {location!r} is missing: `dvc pull` fetches it")
    return LoadFailed(
        f"its external data {location!r} is missing: copy that file, under this name, beside "
        f"{model.name}{renamed}"
    )


def check_external(model: Path, location: str) -> None:
    """Raise LoadFailed unless the weights at `location` are a file in the folder of `model`.

    Or a link from there to the cache of the DVC project that the folder is in, or, where the folder
    is a snapshot of Hugging Face's cache, to the blobs of the same repository.

    Nor may they be a hard link to somebody else's file: where the system lets anybody link to any
    file, the server would read what its author cannot. Links within one owner's files are how
    backups and package stores save space.
    """
    check_location(location)
    try:
        there = (model.parent / location).resolve()
        inside, exists = not leads_out(model, location), there.is_file()
        found, owner = there.stat() if exists else None, model.stat().st_uid
        pointer = why_pointer(there) if exists else ""
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, a loop of links
        raise LoadFailed(f"its external data {location!r} is not a usable path") from None
    if not inside and not (_is_in_dvc_cache(there, model) or _is_in_hub_cache(there, model)):
        hint = "`cohort init NAME FILE.onnx` copies a model with what it links to"
        if there.parts[-4:-2] == ("files", "md5"):
            hint = "after `dvc config cache.type copy`, `dvc checkout --relink` makes it none"
        raise LoadFailed(
            f"its external data {location!r} is a link out of the version's folder; {hint}"
        )
    if found is None:
        raise missing_external(model, location)
    if pointer:
        raise LoadFailed(f"its external data {location!r} is {pointer}")
    if found.st_nlink > 1 and found.st_uid != owner:
        raise LoadFailed(
            f"its external data {location!r} is a hard link to a file of another owner than "
            f"{model.name}'s"
        )


def leads_out(model: Path, location: str) -> bool:
    """Whether the file at `location` beside `model` is a link out of its folder. Raises OSError."""
    return not (model.parent / location).resolve().is_relative_to(model.parent.resolve())


def _is_in_hub_cache(file: Path, model: Path) -> bool:
    """Whether a file, links resolved, is a blob of the repository of whose snapshots `model` is.

    https://huggingface.co/docs/huggingface_hub/guides/manage-cache: a snapshot is links to blobs.
    """
    snapshots = [one for one in model.parent.resolve().parents if one.name == "snapshots"]
    return any(file.is_relative_to(one.parent / "blobs") for one in snapshots)


def _is_in_dvc_cache(file: Path, model: Path) -> bool:
    """Whether a file, links resolved, is one of those that DVC keeps for a folder above `model`.

    A cache that is itself a link elsewhere does not count: who writes models could make it.
    """
    above = model.parent.resolve().parents
    return any(file.is_relative_to(folder / ".dvc" / "cache" / "files") for folder in above)
