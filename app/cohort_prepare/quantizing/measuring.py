"""Measure a quantized model against its original, in alternating runs on one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from cohort.comparing import Pair
from cohort.profiling import find_trial, why_rows_are_fixed, why_unbatchable
from cohort.session import Provider, Session, SessionOptions, open_session
from cohort.tensors import Arrays
from cohort_prepare.evaluating.cases import Cases, find_influence, read_labels, run_alone, run_named
from cohort_prepare.evaluating.differences import measure_pairs
from cohort_prepare.evaluating.timing import compare_in_turn
from cohort_prepare.failures import Rejected
from cohort_prepare.onnx_files import model_size
from cohort_prepare.quantizing.quality import Quality, QualityTotals
from cohort_prepare.quantizing.samples import read_samples

BATCHES = (1, 8, 32)
"""Batch sizes that are timed."""

MAX_ROWS = 10_000
"""Maximum number of rows on which outputs are compared."""

TIMED_SECONDS = 0.5
"""For all runs of a batch size, for both models."""

MAX_TIMED = 2.0
"""Run time above which no larger batch is timed."""

LOADS = 3

ROWS_TOGETHER = 8
"""Rows that are run together and one by one, as a server does before it batches."""

ENTIRELY = 2.0
"""Maximum row influence: a value changed its sign, or is not a number."""


@dataclass(frozen=True, slots=True)
class ModelMeasurement:
    """Measurements of one model.

    size: Bytes of its files.
    load_seconds: Fastest time to open it.
    seconds: Run time by batch size.
    unbatchable: Reason why the server would not batch its requests; "" if it would.
    row_influence: Change of a row's outputs caused by the other rows of a batch, as a share of the
        output's largest value; default 0.
    rows: The graph's row verdict, a `RowKind`; default "": unknown.
    """

    size: int
    load_seconds: float
    seconds: dict[int, float]
    unbatchable: str
    row_influence: float = 0.0
    rows: str = ""

    def in_service(self, rows: int) -> float:
        """Return the seconds for `rows` requests of one row, batched if possible."""
        least = min(self.seconds)
        alone = self.seconds[least] * rows / least
        return alone if self.unbatchable else min(alone, self.seconds[rows])


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """Measurements of a model and its original."""

    original: ModelMeasurement
    candidate: ModelMeasurement
    quality: Quality


def measure_pair(
    original: Path,
    candidate: Path,
    samples: Path | None,
    labels: Path | None,
    on_progress: Callable[[str], None],
) -> MeasuredPair:
    """Measure two models.

    samples: Rows to compare outputs on, and to time; None: generated.
    labels: Correct answers for the rows; None: unknown.
    on_progress: Called with progress messages.

    Raises Misused, and Rejected if a model cannot run.
    """
    pair = Opened(original, candidate, samples, labels)
    on_progress("comparing outputs")
    quality = pair.compare()
    on_progress("timing runs")
    seconds = pair.time_runs()
    sides = [
        ModelMeasurement(
            model_size(path),
            pair.load_seconds[place],
            seconds[place],
            pair.unbatchable(place),
            pair.row_influence(place),
            pair.sessions[place].rows.kind.value,
        )
        for place, path in enumerate((original, candidate))
    ]
    return MeasuredPair(sides[0], sides[1], quality)


class Opened:
    """Open two models, and their rows. Raises Rejected if one cannot be opened or run."""

    def __init__(
        self, original: Path, candidate: Path, samples: Path | None, labels: Path | None
    ) -> None:
        self.sessions, self.load_seconds = _open((original, candidate))
        self._samples = samples
        self._trial = find_trial(
            self.sessions[0].run,
            self.sessions[0].inputs,
            self.sessions[0].rows.axes,
            self.sessions[0].tables,
        )
        if samples is None and self._trial.problem:
            raise Rejected(
                f"the model does not run on generated inputs: {self._trial.problem}; use --inputs"
            )
        self._labels = None if labels is None else read_labels(labels)

    def batches(self) -> Iterator[Arrays]:
        """Return the rows, in batches."""
        if self._samples is None:
            return iter([self._trial.feeds(8 * ROWS_TOGETHER)])
        return read_samples(self._samples, self.sessions[0].inputs)

    def compare(self, most: int = MAX_ROWS) -> Quality:
        """Compare outputs on at most `most` rows. Raises Misused."""
        decides = self._samples is not None  # generated rows have no class
        totals = QualityTotals(self.sessions[0].outputs, self._labels, decides=decides)
        partial = False
        for batch in self.batches():
            expected, got = (run_named(one, batch) for one in self.sessions)
            totals.add(expected, got)
            if partial := totals.rows >= most:
                break
        return totals.quality(partial=partial)

    def time_runs(self) -> tuple[dict[int, float], dict[int, float]]:
        """Return run seconds of both by batch size: the original's fastest, and it times the ratio.

        The ratio is of processor time, since other programs distort the clock.
        """
        found: tuple[dict[int, float], dict[int, float]] = ({}, {})
        for rows, feeds in self._timed():
            runs = [partial(one.run, feeds) for one in self.sessions]
            times = compare_in_turn(runs[0], runs[1], budget=TIMED_SECONDS)
            found[0][rows] = times.before.fastest
            found[1][rows] = times.before.fastest * times.ratio.median
            if times.before.fastest > MAX_TIMED:
                break
        return found

    def _timed(self) -> Iterator[tuple[int, Arrays]]:
        inputs = self.sessions[0].inputs
        first = Cases(next(self.batches()))
        vary = first.by_row and first.rows and all(spec.rows_vary for spec in inputs)
        for size in BATCHES if vary else (first.rows or 1,):
            yield size, first.repeated(size) if vary else first.inputs

    def unbatchable(self, place: int) -> str:
        """Return the reason why the server would not batch the model's requests; "" if it would."""
        session = self.sessions[place]
        reason = why_unbatchable(session.inputs, session.outputs, session.rows)
        if reason or self._trial.problem:
            return reason
        return find_influence(session, self._trial.requests(ROWS_TOGETHER))

    def row_influence(self, place: int) -> float:
        """Return the influence of the other rows on a row's outputs; 0 for none."""
        session = self.sessions[place]
        first = next(self.batches())
        if why_rows_are_fixed(session.inputs, session.outputs):
            return 0.0
        rows = min(ROWS_TOGETHER, *(len(array) for array in first.values()))
        feeds = {name: array[:rows] for name, array in first.items()}
        pair = Pair(run_alone(session, feeds), run_named(session, feeds))
        found = measure_pairs([pair]).values()
        shares = [(one.max_absolute or 0.0) / max(one.size, 1e-30) for one in found]
        return min(max(shares, default=0.0), ENTIRELY)


def _open(paths: tuple[Path, Path]) -> tuple[list[Session], list[float]]:
    fastest = [float("inf")] * len(paths)
    sessions: list[Session] = []
    for again in range(LOADS):
        for place, path in enumerate(paths):
            started = perf_counter()
            session = open_session(
                path, chain=(Provider("cpu"),), options=SessionOptions(optimized_cache=False)
            )
            fastest[place] = min(fastest[place], perf_counter() - started)
            if again < LOADS - 1:
                session.close()
            else:
                sessions.append(session)
    return sessions, fastest
