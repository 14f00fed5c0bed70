"""The operator's rules for all models and their files."""

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
"""A name that stands for the library of onnxruntime-extensions."""

LIBRARY_SUFFIXES = frozenset({".so", ".dll", ".dylib", ".pyd"})


@dataclass(frozen=True, slots=True)
class ModelRules:
    """The limits of a model, the folders of its custom operators, and its default providers.

    max_bytes: The maximum bytes of a model's file and its external data; default None: no limit.
    max_nodes: The maximum number of nodes; the nodes of a function count once for each call.
    custom_ops: Folders whose libraries of custom operators may be loaded; default none.
    default_chain: The provider chain of a model whose config names none.
    """

    max_bytes: int | None = None
    max_nodes: int = MAX_NODES
    custom_ops: tuple[Path, ...] = ()
    default_chain: DefaultChain = field(default_factory=default_chain)

    def check_size(self, files: Sequence[Path]) -> None:
        """Raise LoadFailed if `files` have more than `max_bytes`. Raises OSError."""
        size = sum(file.stat().st_size for file in files)
        if self.max_bytes is not None and size > self.max_bytes:
            raise LoadFailed(
                f"it has {-(-size >> 20):,} MiB; at most {self.max_bytes >> 20:,} are allowed "
                "(COHORT_MAX_MODEL_MB)"
            )

    def find_library(self, name: str) -> Path:
        """Return the path of the library of custom operators `name`, with links resolved.

        `extensions` is the library of onnxruntime-extensions, if it is installed. A relative name
        is searched in each of `custom_ops`; an absolute path must be in one of them. Raises
        LoadFailed if the library is not found.
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
    """Return the library. Raises LoadFailed if it is for another machine, or cannot be read."""
    try:
        why = why_foreign(library)
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    if why:
        raise LoadFailed(f"custom operators {quoted(name)} {why}")
    return library


def _find_extensions() -> Path:
    """Find the library of onnxruntime-extensions without importing it. Raises LoadFailed."""
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
    """Return the rules of the settings; the default maximum size is the available memory."""
    largest = available_memory() if max_megabytes is None else max_megabytes << 20
    return ModelRules(largest, max_nodes, custom_ops, default_chain(providers))


def check_model_file(path: Path) -> None:
    """Raise LoadFailed unless `path` is a file: opening a pipe would block. Raises OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise LoadFailed(f"{path.name} is not a file")


def check_location(location: str) -> None:
    """Raise LoadFailed for a path of weights that cannot be in the folder of their model."""
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    if posix.is_absolute() or windows.drive or windows.root:
        raise LoadFailed(f"its external data {location!r} is an absolute path")
    if ".." in posix.parts or ".." in windows.parts:
        raise LoadFailed(f"its external data {location!r} leaves the version's folder")


def missing_external(model: Path, location: str) -> LoadFailed:
    """Return the error for weights that are missing from the folder of a model."""
    name = f"{model.name}{Path(location).suffix}"  # perhaps renamed together with the model
    renamed = f" ({name} is there: rename it)" if (model.parent / name).is_file() else ""
    if (model.parent / f"{location}.dvc").is_file():
        return LoadFailed(f"its external data {location!r} is missing: `dvc pull` fetches it")
    return LoadFailed(
        f"its external data {location!r} is missing: copy that file, under this name, into "
        f"the folder of {model.name}{renamed}"
    )


def check_external(model: Path, location: str) -> None:
    """Raise LoadFailed unless the weights at `location` are a file in the folder of `model`.

    Two kinds of links out of the folder are allowed. A folder in a DVC project may link to that
    project's cache. A snapshot of Hugging Face's cache may link to the blobs of its repository.

    A hard link to a file of another owner is refused. On systems where any user can link to any
    file, the server would read a file that the model's author cannot read. Links between files of
    one owner are allowed, because backups and package stores use them to save space.
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
        hint = "`cohort init NAME FILE.onnx` copies a model with its linked files"
        if there.parts[-4:-2] == ("files", "md5"):
            hint = "`dvc config cache.type copy` and then `dvc checkout --relink` replace the link"
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
    """Return True if `location` in the model's folder is a link out of it. Raises OSError."""
    return not (model.parent / location).resolve().is_relative_to(model.parent.resolve())


def _is_in_hub_cache(file: Path, model: Path) -> bool:
    """Return True if `file`, with links resolved, is a blob of the model's repository.

    https://huggingface.co/docs/huggingface_hub/guides/manage-cache: a snapshot has links to blobs.
    """
    snapshots = [one for one in model.parent.resolve().parents if one.name == "snapshots"]
    return any(file.is_relative_to(one.parent / "blobs") for one in snapshots)


def _is_in_dvc_cache(file: Path, model: Path) -> bool:
    """Return True if `file`, with links resolved, is in a DVC cache of a folder above `model`.

    A cache that is itself a link to another folder does not count: a model's author could create
    it.
    """
    above = model.parent.resolve().parents
    return any(file.is_relative_to(folder / ".dvc" / "cache" / "files") for folder in above)
