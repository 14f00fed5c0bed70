"""Find a model's framework by its file, folder or class, and an environment that has it."""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from cohort.errors import available, quoted
from cohort_prepare.environments import Environment, find_environment
from cohort_prepare.failures import Misused
from cohort_prepare.frameworks import ANY_FRAMEWORK, FRAMEWORKS, Framework, Reference
from cohort_prepare.frameworks.callables import is_callable_reference
from cohort_prepare.source import SourceModel

PICKLES = frozenset({".pkl", ".pickle", ".joblib", ".cloudpickle", ".dill"})

Say = Callable[[str], None]
"""Takes a line about what is done now, for people."""


def open_source(
    text: str,
    *,
    framework: str | None = None,
    trust_pickle: bool = False,
    weights: str | None = None,
    python: str | None = None,
    packages: Sequence[str] = (),
    say: Say = lambda _: None,
) -> SourceModel:
    """The model that `text` names: a file, a folder or `module:callable`.

    framework: Its framework, as `--from` has it; default None: found out.
    trust_pickle: Whether a pickle may be read, which runs what is in it; default no.
    weights: A file of weights for the module that `module:callable` makes; default None: it has
        its own.
    python: The user's own interpreter; default None: this one, or one that uv makes.
    packages: What the model needs besides, as pip writes it; default nothing.
    say: Told what is done now.

    The caller closes it. Raises Misused where there is no such model, or no environment for it, and
    Rejected where it cannot be loaded.
    """
    path = Path(text)
    reference = Reference(text, trust_pickle, str(Path(weights).absolute()) if weights else "")
    if weights and not is_callable_reference(text):
        raise Misused("--weights goes with module:callable, which makes the module they are for")
    if not path.exists():
        if not is_callable_reference(text):
            raise Misused(
                f"{quoted(text)} is no file, no folder and no module:callable{_beside(path)}"
            )
    else:
        _check_kind(path)
        reference = Reference(str(path.absolute()), trust_pickle)
    known = FRAMEWORKS[framework] if framework else _by_name(path)
    looking = _Looking(reference, python, tuple(packages), say)
    return looking.source(known) if known else looking.find()


def _check_kind(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise Misused(f"{path} is neither a file nor a folder")


def _beside(path: Path) -> str:
    """What there is in the folder where a file was looked for."""
    try:
        names = sorted(one.name for one in path.parent.iterdir() if one.suffix in _suffixes())
    except OSError:
        return ""
    return available(names)


def _suffixes() -> frozenset[str]:
    return PICKLES.union(*(one.suffixes for one in FRAMEWORKS.values()))


def _by_name(path: Path) -> Framework | None:
    """The framework of a file or folder; None where the object has to be looked at."""
    if path.is_dir():
        for one in FRAMEWORKS.values():
            if any((path / name).exists() for name in one.folder_files):
                return one
        wanted = sorted({name for one in FRAMEWORKS.values() for name in one.folder_files})
        raise Misused(
            f"{path} is a folder of no framework that is known"
            + (f", which would have {', '.join(wanted)}" if wanted else "")
            + "; say which it is with --from"
        )
    if not path.exists() or path.suffix.lower() in PICKLES:
        return None
    suffix = path.suffix.lower()
    of_suffix = [one for one in FRAMEWORKS.values() if suffix in one.suffixes]
    if len(of_suffix) == 1:
        return of_suffix[0]
    names = ", ".join(one.name for one in of_suffix) or ", ".join(FRAMEWORKS)
    raise Misused(
        f"{path.name}: files that end in {suffix or 'no suffix'} do not tell the framework; say "
        f"which it is with --from ({names})"
    )


class _Looking:
    """Loads a model in one environment after another, each with what the last one lacked."""

    def __init__(
        self, reference: Reference, python: str | None, packages: tuple[str, ...], say: Say
    ) -> None:
        self._reference, self._python, self._say = reference, python, say
        self._packages = packages
        self._lacked: list[Framework] = []

    def find(self) -> SourceModel:
        """The model, by the class of the object."""
        looked_in: Framework | None = None
        if Path(self._reference.text).suffix.lower() in PICKLES:
            looked_in = FRAMEWORKS["sklearn"]  # it comes with joblib
        while True:
            self._say(f"Looking at {self._reference.text}")
            source = SourceModel(self._reference, ANY_FRAMEWORK, self._environment(looked_in))
            found = source.look()
            if not found.missing:
                break
            source.close()
            lacked = _framework_of(found.missing)
            if lacked is None or lacked in self._lacked or lacked is looked_in:
                raise Misused(found.says)
            self._lacked.append(lacked)
            looked_in = looked_in or lacked
        for package in found.packages:
            for one in FRAMEWORKS.values():
                if package in one.packages:
                    source.become(one, self._environment(one))
                    return source
        source.close()
        raise Misused(
            f"{self._reference.text} gives a {found.what}, which is no model of "
            f"{', '.join(one.title for one in FRAMEWORKS.values())}; if it behaves like one, say "
            "which with --from"
        )

    def source(self, framework: Framework) -> SourceModel:
        """The model as one of `framework`."""
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
            self._say(f"Preparing an environment for {title}, which takes minutes the first time")
        return made


def _framework_of(module: str) -> Framework | None:
    for one in FRAMEWORKS.values():
        if module in one.packages or module in one.modules:
            return one
    return None
