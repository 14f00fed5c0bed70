"""A model in its framework, as the commands see it: exported and run in a child process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
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
    """A model in its framework, which one child process imports, and loads once; to be closed.

    reference: Where it comes from.
    framework: What it was made with.
    environment: The Python that has the framework.
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
        """End the process; another one starts where one is needed."""
        if self._process is not None:
            self._process.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._process = self._folder = None

    def become(self, framework: Framework, environment: Environment) -> None:
        """Be a model of a framework, in the process that is there if it is of that environment."""
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
    ) -> SourceExport:
        """Write it as ONNX to `out`, in a folder of its own.

        Raises Misused where it cannot be loaded, and Rejected where it cannot be exported.
        """
        with tempfile.TemporaryDirectory(prefix="cohort-") as name:
            folder = Path(name)
            given = _save(folder / "example.npz", example) if example else ""
            sample = folder / "sample.npz"
            request = {"out": out, "opset": opset, "example": given, "options": options or {}}
            answer = self._ask("export", framework=self.framework.name, sample=sample, **request)
            answer["sample"] = _load(sample) if answer["sample"] else {}
        return SourceExport(**answer)

    def run(self, cases: Sequence[Arrays]) -> list[Arrays]:
        """Run it on each of `cases`; outputs by the names that the exported model has.

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
        """The same, with the reason in place of the outputs of a case that fails.

        Raises Misused and Rejected where the model cannot be loaded, or the process ends.
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

    def look(self) -> SourceLook:
        """Load it, whatever it is, and say what it is of. Raises Misused and Rejected."""
        return SourceLook(**self._ask("look"))

    def _ask(self, task: str, **details: object) -> Any:
        """Have the child do a job of `frameworks.child`; its answer."""
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
            return self._process.do(function, {"reference": asdict(self.reference), **details})
        except JobFailed as error:
            self.close()
            raise self._failure(error, {"look": "load"}.get(task, task)) from error
        except BaseException:
            self.close()
            raise

    def _failure(self, error: JobFailed, doing: str) -> Misused | Rejected:
        title, text = self.framework.title, self.reference.text
        if isinstance(error, JobRaised):
            if error.is_a(CohortError):
                return own_failure(error)
            said = f"{title} failed to {doing} {text}: {error.sentence}"
        elif error.signal:
            said = f"{title} crashed on {text}: {error}"
        elif self.environment.made and "Traceback" not in error.printed:
            return Misused(
                f"an environment for {title} could not be made by "
                f"{' '.join(self.environment.command[:2])}: {error.last_lines}\n"
                "name one that has it with --python, or say where its packages are, as "
                "UV_INDEX and UV_FIND_LINKS do"
            )
        else:
            said = f"{title} failed: {error}"
        return Rejected(f"{said}\n{error.last_lines}")


@dataclass(frozen=True, slots=True)
class SourceLook:
    """What a model of an unknown framework is.

    what: The name of its class.
    packages: The top modules of its class and those that this inherits from, the closest first.
    missing: The module that the environment lacks, where it could not be loaded for that; else "".
    says: The sentence about that.
    """

    what: str = ""
    packages: Sequence[str] = ()
    missing: str = ""
    says: str = ""


@dataclass(frozen=True, slots=True)
class SourceExport:
    """What an adapter says of the model it exported (`cohort_prepare.frameworks.Exported`).

    sample: Inputs that the model takes, where its adapter knows some.
    columns: The names of the columns of its only input; default: not known.
    missing: What stands for a missing value, by input; default: nothing.
    categories: The words or numbers whose places are codes, by column or input; default: nothing.
    versions: The libraries that did it, with their versions.
    files: The names of files beside the model that belong to it.
    config: What `config.yaml` is to say of inputs and outputs.
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
