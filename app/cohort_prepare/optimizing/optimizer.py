"""Rewrite a model step by step; verify and time each step against the model before it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.onnx_files import (
    external_files,
    model_digest,
    model_size,
    read_onnx,
    temporary_folder,
    write_onnx,
    write_onnx_to,
)
from cohort_prepare.optimizing.choices import OptimizeOptions, OptimizeStep
from cohort_prepare.optimizing.measuring import MeasuredChange
from cohort_prepare.optimizing.verdicts import Footprint, judge_step
from cohort_prepare.optimizing.worker import Worker
from cohort_prepare.steps import StepRecord, add_step


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Result of a step.

    kept, why: True if the result includes the step, and the reason.
    what: Description of the change.
    versions: Versions of the libraries that were used.
    footprint: Footprint of the model after the step; None if it failed.
    measured: Comparison with the model before the step; None if not measured.
    warnings: Warnings for users of the model.
    """

    step: OptimizeStep
    kept: bool
    why: str
    what: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    footprint: Footprint | None = None
    measured: MeasuredChange | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Optimized:
    """Result of an optimization.

    digest: SHA-256 of the result, from `cohort_prepare.onnx_files`.
    before, after: Footprints of the model and the result.
    steps: All steps that were tried, in order.
    overall: Comparison of the result with the model; None if no step is kept.
    ort_files: Files for mobile and edge devices.
    """

    digest: str
    before: Footprint
    after: Footprint
    steps: Sequence[StepOutcome]
    overall: MeasuredChange | None = None
    ort_files: Sequence[Path] = ()


TRY_ALL = OptimizeOptions()


def optimize(
    model: Path,
    out: Path,
    *,
    options: OptimizeOptions = TRY_ALL,
    cases: Path | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Optimized:
    """Write the best version of `model` to `out`; the model itself if no step is kept.

    cases: A .npz with inputs, for comparison and timing; default None: generated.
    on_progress: Called with a description of each step.

    Raises Misused, Rejected if the model cannot run or a requested step fails, and OSError. Nothing
    is written in these cases.
    """
    plan = options.plan()
    _check_paths(model, out)
    with temporary_folder(out.parent) as folder:
        return _Run(model.resolve(), folder, options, cases, on_progress).run(plan, out)


def _check_paths(model: Path, out: Path) -> None:
    if not model.is_file():
        raise Misused(f"{model} is not a file" if model.exists() else f"{model} not found")
    if out.is_dir():
        raise Misused(f"--out {out} is a folder: use a file in it")
    if out.exists() and out.samefile(model):
        raise Misused(f"--out {out} is the model itself: use another file")


class _Run:
    """One call of `optimize`."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        options: OptimizeOptions,
        cases: Path | None,
        on_progress: Callable[[str], None],
    ) -> None:
        self._model, self._folder, self._options, self._on_progress = (
            model,
            folder,
            options,
            on_progress,
        )
        self._cases = str(cases.resolve()) if cases else ""
        self._worker = Worker(folder, options.seconds)

    def run(self, plan: Sequence[OptimizeStep], out: Path) -> Optimized:
        self._on_progress(f"Running {self._model.name}")
        checked = self._worker.ask("check_original", path=str(self._model), cases=self._cases)
        before = Footprint(model_size(self._model), checked["nodes"])
        best, footprint, outcomes = self._model, before, list[StepOutcome]()
        for place, step in enumerate(plan):
            self._worker.share_time(len(plan) - place + _AT_THE_END)
            made = self._folder / f"{len(outcomes)}-{step.name}" / "model.onnx"
            made.parent.mkdir()
            outcome = self._try(step, best, footprint, made)
            outcomes.append(outcome)
            if outcome.kept and outcome.footprint is not None:
                _record(outcome, best, made)
                best, footprint = made, outcome.footprint
        self._worker.share_time(1)
        overall = self._overall(best, [one for one in outcomes if one.kept])
        exported = self._export(best)
        _write(best, out)
        return Optimized(
            model_digest(out),
            before,
            Footprint(model_size(out), footprint.nodes),
            outcomes,
            overall,
            _move(exported, self._options.ort_format),
        )

    def _try(self, step: OptimizeStep, best: Path, footprint: Footprint, made: Path) -> StepOutcome:
        asked = self._options.asked(step)
        self._on_progress(f"Trying {step.title}")
        try:
            answer = self._worker.ask(
                "rewrite",
                step=step.name,
                path=str(best),
                out=str(made),
                opset=self._options.opset or 0,
                model_type=self._options.model_type,
            )
            if "nothing" in answer:
                return StepOutcome(step, False, answer["nothing"])
            self._on_progress(f"Measuring {step.title}")
            measured = self._measure(best, made, [step])
        except Rejected as failure:
            if asked:
                raise Rejected(f"{step.title}: {failure}") from failure
            return StepOutcome(step, False, str(failure))
        after = Footprint(model_size(made), answer["nodes"])
        verdict = judge_step(step, footprint, after, measured, asked=asked)
        if asked and not verdict.kept:
            raise Rejected(f"{step.title}: {verdict.why}")
        return StepOutcome(
            step,
            verdict.kept,
            verdict.why,
            answer["what"],
            answer["versions"],
            after,
            measured,
            answer["warnings"],
        )

    def _measure(self, before: Path, after: Path, steps: Sequence[OptimizeStep]) -> MeasuredChange:
        answer: Any = self._worker.ask(
            "measure_steps",
            before=str(before),
            after=str(after),
            steps=[step.name for step in steps],
            sizes=list(self._options.sizes),
            budget=self._options.budget,
            cases=self._cases,
        )
        return TypeAdapter(MeasuredChange).validate_python(answer)

    def _overall(self, best: Path, kept: Sequence[StepOutcome]) -> MeasuredChange | None:
        """Compare the result with the model. Raises Rejected if small differences added up."""
        if len(kept) < 2:
            return kept[0].measured if kept else None
        self._on_progress("Measuring all together")
        measured = self._measure(self._model, best, [one.step for one in kept])
        if measured.problem:
            raise Rejected(f"all steps together: {measured.problem}; choose fewer with --steps")
        return measured

    def _export(self, best: Path) -> list[Path]:
        if self._options.ort_format is None:
            return []
        self._on_progress("Writing files for mobile and edge")
        folder = self._folder / "ort"
        folder.mkdir()
        self._worker.ask(
            "write_mobile", path=str(best), folder=str(folder), target=self._options.ort_target
        )
        return sorted(folder.iterdir())


_AT_THE_END = 1
"""Shares of the time for the final measurement and for writing."""


def _record(outcome: StepOutcome, before: Path, made: Path) -> None:
    """Add a record of the step to the model."""
    model = read_onnx(made)
    record = StepRecord(
        "optimize",
        outcome.what,
        versions=outcome.versions,
        options={"step": outcome.step.name},
        before=model_digest(before),
        difference=outcome.measured.difference if outcome.measured else None,
    )
    add_step(model, record)
    for file in made.parent.iterdir():
        file.unlink()
    write_onnx_to(model, made)


def _write(best: Path, out: Path) -> None:
    """Write the model to `out` atomically; a single file is copied byte by byte."""
    if external_files(best):
        write_onnx(read_onnx(best), out)
        return
    with temporary_folder(out.parent) as folder:
        copied = folder / out.name
        shutil.copyfile(best, copied)
        copied.replace(out)


def _move(files: Sequence[Path], folder: Path | None) -> list[Path]:
    """Copy files to a folder, each atomically."""
    moved = []
    if folder is not None:
        with temporary_folder(folder) as beside:
            for file in files:
                copied = beside / file.name
                shutil.copyfile(file, copied)
                copied.replace(folder / file.name)
                moved.append(folder / file.name)
    return moved
