"""A framework's model, exported and run in a child process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cohort.errors import CohortError
from cohort.system.jobs import JobFailed, JobProcess, JobRaised
from cohort.tensors import Arrays
from cohort_prepare.environments import Environment
from cohort_prepare.evaluating.cases import as_arrays, plain_text
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import Framework, Reference
from cohort_prepare.processes import link_packages, own_failure, preparing_environment


@dataclass(slots=True)
class SourceModel:
    """Model of a framework, loaded once in a child process. Must be closed.

    reference: Where it comes from.
    framework: Framework that made it.
    environment: Python environment with the framework.
    """

    reference: Reference
    framework: Framework
    environment: Environment
    _process: JobProcess | None = field(default=None, init=False, repr=False)
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False, repr=False)

    def __enter__(self) -> SourceModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process; a later call starts a new one."""
        if self._process is not None:
            self._process.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._process = self._folder = None

    def become(self, framework: Framework, environment: Environment) -> None:
        """Set the framework; restart the process only if the environment changes."""
        if environment != self.environment:
            self.close()
        self.framework, self.environment = framework, environment

    def export(
        self,
        out: Path,
        *,
        opset: int | None = None,
        example: Arrays | None = None,
        options: Mapping[str, Any] | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> SourceExport:
        """Export the model as ONNX to `out`, in a separate folder.

        on_progress: Called with the framework's progress messages.

        Raises Misused if it cannot be loaded, and Rejected if it cannot be exported.
        """
        with tempfile.TemporaryDirectory(prefix="cohort-") as name:
            folder = Path(name)
            given = _save(folder / "example.npz", example) if example else ""
            sample = folder / "sample.npz"
            request = {"out": out, "opset": opset, "example": given, "options": options or {}}
            request |= {"framework": self.framework.name, "sample": sample}
            answer = self._ask("export", on_progress, **request)
            answer["sample"] = _load(sample) if answer["sample"] else {}
        return SourceExport(**answer)

    def run(self, cases: Sequence[Arrays]) -> list[Arrays]:
        """Run the model on each of `cases`; return outputs by the exported model's names.

        Raises Misused and Rejected.
        """
        answers = []
        for answer in self.run_each(cases):
            if isinstance(answer, str):
                raise Rejected(
                    f"{self.framework.title} failed to run {self.reference.text}: {answer}"
                )
            answers.append(answer)
        return answers

    def run_each(self, cases: Sequence[Arrays]) -> list[Arrays | str]:
        """Run the model on each of `cases`; for one that fails, return the reason instead.

        Raises Misused and Rejected if the model cannot be loaded, or the process ends.
        """
        with tempfile.TemporaryDirectory(prefix="cohort-") as name:
            folder = Path(name)
            given = [_save(folder / f"case-{i}.npz", case) for i, case in enumerate(cases)]
            results = [str(folder / f"result-{i}.npz") for i in range(len(cases))]
            failures = self._ask("run", framework=self.framework.name, cases=given, results=results)
            return [
                failure or _load(Path(result))
                for failure, result in zip(failures, results, strict=True)
            ]

    def inspect(self) -> SourceFacts:
        """Load the model and describe its class. Raises Misused and Rejected."""
        return SourceFacts(**self._ask("inspect"))

    def _ask(
        self, task: str, on_progress: Callable[[str], None] = lambda _: None, **details: object
    ) -> Any:
        """Run a job of `frameworks.child`; return its result."""
        function = f"cohort_prepare.frameworks.child:{task}"
        try:
            if self._process is None:
                self._folder = tempfile.TemporaryDirectory(prefix="cohort-")
                path = link_packages(Path(self._folder.name))
                self._process = JobProcess(
                    function,
                    python=self.environment.command,
                    environment=preparing_environment(path),
                )
            arguments = {"reference": asdict(self.reference), **details}
            return self._process.do(function, arguments, on_message=on_progress)
        except JobFailed as error:
            self.close()
            raise self._failure(error, {"inspect": "load"}.get(task, task)) from error
        except BaseException:
            self.close()
            raise

    def _failure(self, error: JobFailed, doing: str) -> Misused | Rejected:
        title, text = self.framework.title, self.reference.text
        if isinstance(error, JobRaised):
            if error.is_a(CohortError):
                return own_failure(error)
            sentence = f"{title} failed to {doing} {text}: {error.sentence}"
        elif error.signal:
            sentence = f"{title} crashed on {text}: {error}"
        elif self.environment.made and "Traceback" not in error.printed:
            return Misused(
                f"cannot create an environment for {title} with "
                f"{' '.join(self.environment.command[:2])}: {error.last_lines}\n"
                "Set --python to an environment that has it, or set package sources with "
                "UV_INDEX or UV_FIND_LINKS"
            )
        else:
            sentence = f"{title} failed: {error}"
        return Rejected(f"{sentence}\n{error.last_lines}")


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Description of a model whose framework is unknown.

    what: Name of its class.
    packages: Top-level modules of its class and base classes, closest first.
    missing: Module that the environment lacks, if that is why it cannot be loaded; else "".
    message: Error message about the missing module.
    """

    what: str = ""
    packages: Sequence[str] = ()
    missing: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class SourceExport:
    """Result of an export (see `cohort_prepare.frameworks.Exported`).

    sample: Valid inputs, if the adapter knows any.
    columns: Column names of the only input; default: unknown.
    missing: Value that replaces a missing value, by input; default none.
    categories: Categories in the order of their codes, by column or input; default none.
    versions: Versions of the libraries that were used.
    files: Names of files next to the model that belong to it.
    config: Keys for inputs and outputs in `config.yaml`.
    """

    what: str
    notes: Sequence[str] = ()
    classes: Mapping[str, Sequence[str] | Sequence[int]] = field(default_factory=dict)
    sample: Arrays = field(default_factory=dict)
    columns: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    categories: Mapping[str, Sequence[str] | Sequence[float]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


def _load(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return as_arrays({name: file[name] for name in file.files})


def _save(path: Path, arrays: Arrays) -> str:
    with path.open("wb") as file:
        np.savez(file, **{n: plain_text(a) for n, a in arrays.items()})  # type: ignore[arg-type]
    return str(path)
