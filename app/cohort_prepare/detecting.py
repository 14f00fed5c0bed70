"""Detect a model's framework from its file, folder or class, and find an environment for it."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from cohort.errors import available, quoted
from cohort_prepare.environments import Environment, find_environment
from cohort_prepare.failures import Misused
from cohort_prepare.frameworks import ANY_FRAMEWORK, FRAMEWORKS, Framework, Reference
from cohort_prepare.frameworks.callables import is_callable_reference
from cohort_prepare.source import SourceModel

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

PICKLES = frozenset({".pkl", ".pickle", ".joblib", ".cloudpickle", ".dill"})

OnProgress = Callable[[str], None]
"""Callback for progress lines."""


def open_source(
    text: str,
    *,
    framework: str | None = None,
    trust_pickle: bool = False,
    weights: str | None = None,
    python: str | None = None,
    packages: Sequence[str] = (),
    on_progress: OnProgress = lambda _: None,
) -> SourceModel:
    """Open the model that `text` names: a file, a folder or `module:callable`.

    framework: Framework name as in `--from`; default None: detected.
    trust_pickle: True to load pickles, which can run arbitrary code; default False.
    weights: File of weights for the module that `module:callable` returns; default None: the
        module has weights.
    python: The user's interpreter; default None: this one, or one that uv creates.
    packages: Further packages that the model needs, in pip's syntax; default none.
    on_progress: Called with a description of each step.

    The caller closes it. Raises Misused if the model or an environment does not exist, and Rejected
    if it cannot be loaded.
    """
    path = Path(text)
    reference = Reference(text, trust_pickle, str(Path(weights).absolute()) if weights else "")
    if weights and not is_callable_reference(text):
        raise Misused("--weights needs module:callable, which returns the module for them")
    if not path.exists():
        if not is_callable_reference(text):
            raise Misused(
                f"{quoted(text)} not found (expected a file, a folder or module:callable)"
                f"{_hub(text) or _beside(path)}"
            )
    else:
        _check_kind(path)
        reference = Reference(str(path.absolute()), trust_pickle)
    known = FRAMEWORKS[framework] if framework else _by_name(path)
    detection = _Detection(reference, python, tuple(packages), on_progress)
    return detection.source(known) if known else detection.find()


def _check_kind(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise Misused(f"{path} is neither a file nor a folder")


def _hub(text: str) -> str:
    """Return how to get a model of Hugging Face's hub; "" if `text` cannot be its name."""
    if not HUB_NAME.fullmatch(text) or Path(text).parent.exists():
        return ""
    return f"; download a model of huggingface.co first: hf download {text} --local-dir FOLDER"


def _beside(path: Path) -> str:
    """Return a message with the models in the folder where a file was looked for."""
    try:
        names = sorted(one.name for one in path.parent.glob("[!.]*") if one.suffix in _suffixes())
    except OSError:
        return ""
    return available(names)


def _suffixes() -> frozenset[str]:
    return PICKLES.union(*(one.suffixes for one in FRAMEWORKS.values()))


def _by_name(path: Path) -> Framework | None:
    """Return the framework of a file or folder; None if the object must be loaded to find out."""
    if path.is_dir():
        for one in FRAMEWORKS.values():
            there = any((path / name).exists() for name in one.folder_files)
            if there and (not one.architectures or architecture_of(path) in one.architectures):
                return one
        wanted = sorted({name for one in FRAMEWORKS.values() for name in one.folder_files})
        raise Misused(
            f"{path} is not a folder of a known framework"
            + (f" (expected {', '.join(wanted)})" if wanted else "")
            + "; set --from"
        )
    if not path.exists() or path.suffix.lower() in PICKLES:
        return None
    suffix = path.suffix.lower()
    of_suffix = [one for one in FRAMEWORKS.values() if suffix in one.suffixes]
    if len(of_suffix) == 1:
        return of_suffix[0]
    if suffix == ".onnx":
        raise Misused(f"{path.name} is an ONNX file already: cohort init NAME {path} serves it")
    names = ", ".join(one.name for one in of_suffix or FRAMEWORKS.values())
    use = "several frameworks use" if of_suffix else "no framework is known for"
    files = f"files ending in {suffix}" if suffix else "files without a suffix"
    raise Misused(f"{path.name}: {use} {files}; set --from ({names})")


def architecture_of(folder: Path) -> str:
    """Return the first architecture of a folder's `config.json`; "" if it is missing."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return str(config["architectures"][0])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


class _Detection:
    """Load a model in a series of environments, each with the module that was missing before."""

    def __init__(
        self,
        reference: Reference,
        python: str | None,
        packages: tuple[str, ...],
        on_progress: OnProgress,
    ) -> None:
        self._reference, self._python, self._on_progress = reference, python, on_progress
        self._packages = packages
        self._lacked: list[Framework] = []

    def find(self) -> SourceModel:
        """Load the model, and detect its framework from its class."""
        looked_in: Framework | None = None
        if Path(self._reference.text).suffix.lower() in PICKLES:
            looked_in = FRAMEWORKS["sklearn"]  # it comes with joblib
        while True:
            self._on_progress(f"Reading {self._reference.text}")
            source = SourceModel(self._reference, ANY_FRAMEWORK, self._environment(looked_in))
            found = source.inspect()
            if not found.missing:
                break
            source.close()
            lacked = _framework_of(found.missing)
            if lacked is None or lacked in self._lacked or lacked is looked_in:
                raise Misused(found.message)
            self._lacked.append(lacked)
            looked_in = looked_in or lacked
        for package in found.packages:
            for one in FRAMEWORKS.values():
                if package in one.packages:
                    source.become(one, self._environment(one))
                    return source
        source.close()
        raise Misused(
            f"{self._reference.text} is a {found.what}, not a model of "
            f"{', '.join(one.title for one in FRAMEWORKS.values())}; if it behaves like one, set "
            "--from"
        )

    def source(self, framework: Framework) -> SourceModel:
        """Return the model as one of `framework`."""
        return SourceModel(self._reference, framework, self._environment(framework))

    def _environment(self, framework: Framework | None) -> Environment:
        wanted = [
            requirement
            for one in self._lacked
            if one is not framework
            for requirement in one.requirements
        ]
        packages = [*self._packages, *wanted]
        made = find_environment(framework or ANY_FRAMEWORK, python=self._python, packages=packages)
        if made.made:
            title = framework.title if framework else "your model"
            self._on_progress(f"Creating an environment for {title}; the first time takes minutes")
        return made


def _framework_of(module: str) -> Framework | None:
    for one in FRAMEWORKS.values():
        if module in one.packages or module in one.modules:
            return one
    return None
