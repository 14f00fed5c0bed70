"""A model in its framework, as the commands see it: exported and run in a child process."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cohort.tensors import Arrays
from cohort_prepare.environments import Environment
from cohort_prepare.evaluating.cases import as_arrays, plain_text
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import Framework, Reference
from cohort_prepare.processes import last_lines, run_child

SHELL_SIGNAL = 128
"""What is added to a signal's number in the exit status of who passes it on, as uv does."""


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A model in its framework.

    reference: Where it comes from.
    framework: What it was made with.
    environment: The Python that has the framework.
    """

    reference: Reference
    framework: Framework
    environment: Environment

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
            details = {
                "out": str(out),
                "opset": opset,
                "example": given,
                "options": options or {},
                "sample": str(sample),
            }
            answer = self._ask(folder, "export", details)
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
            failures = self._ask(folder, "run", {"cases": given, "results": results})["failures"]
            return [
                failure or _load(Path(result))
                for failure, result in zip(failures, results, strict=True)
            ]

    def look(self) -> SourceLook:
        """Load it, whatever it is, and say what it is of. Raises Misused and Rejected."""
        with tempfile.TemporaryDirectory(prefix="cohort-") as name:
            return SourceLook(**self._ask(Path(name), "look", {}))

    def _ask(self, folder: Path, task: str, details: Mapping[str, Any]) -> dict[str, Any]:
        """Have the child do a task; its answer. `folder` is for the files of this task alone."""
        (folder / "path").mkdir()
        for package in ("cohort", "cohort_prepare"):
            (folder / "path" / package).symlink_to(Path(__file__).parents[1] / package)
        job = {
            "task": task,
            "framework": self.framework.name,
            "reference": asdict(self.reference),
            "folder": str(folder / "path"),
            **details,
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = [
            *(*self.environment.command, "-m", "cohort_prepare.frameworks.child"),
            *(str(folder / "job.json"), str(folder / "answer.json")),
        ]
        status, printed = run_child(command, folder, path=str(folder / "path"))
        try:
            answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise self._no_answer(status, printed) from None
        if "error" not in answer:
            return dict(answer)
        if answer["kind"] == "misused":
            raise Misused(answer["error"])
        if answer["kind"] == "rejected":
            raise Rejected(answer["error"])
        doing = {"look": "load"}.get(task, task)
        raise Rejected(
            f"{self.framework.title} failed to {doing} {self.reference.text}: {answer['error']}\n"
            f"{last_lines(printed)}"
        )

    def _no_answer(self, status: int, printed: str) -> Misused | Rejected:
        """Why the child ended without a word."""
        if status < 0 or status - SHELL_SIGNAL in set(signal.Signals):
            name = signal.Signals(-status if status < 0 else status - SHELL_SIGNAL).name
            return Rejected(
                f"{self.framework.title} crashed on {self.reference.text}: the process was ended "
                f"by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}\n"
                f"{last_lines(printed)}"
            )
        if self.environment.made and "Traceback" not in printed:
            return Misused(
                f"an environment for {self.framework.title} could not be made by "
                f"{' '.join(self.environment.command[:2])}: {last_lines(printed)}\n"
                "name one that has it with --python"
            )
        return Rejected(f"{self.framework.title} ended with status {status}\n{last_lines(printed)}")


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
    versions: The libraries that did it, with their versions.
    """

    what: str
    notes: Sequence[str] = ()
    classes: Mapping[str, Sequence[str] | Sequence[int]] = field(default_factory=dict)
    sample: Arrays = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def _load(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return as_arrays({name: file[name] for name in file.files})


def _save(path: Path, arrays: Arrays) -> str:
    with path.open("wb") as file:
        np.savez(file, **{n: plain_text(a) for n, a in arrays.items()})  # type: ignore[arg-type]
    return str(path)
