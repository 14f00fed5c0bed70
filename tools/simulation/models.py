"""Simulated models: files on a simulated disk, and sessions whose runs take simulated time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from random import Random

import numpy as np

from cohort.batching import BatchPolicy, Outputs, PadPlan
from cohort.batching.output_limit import NO_LIMIT
from cohort.errors import InferenceFailed, LoadFailed
from cohort.onnx_engine.preparation import PreparedVersion
from cohort.profiling import MEASURING, Profile, ProfileResult, Runs
from cohort.registry import Source
from cohort.repository import Found, FoundModel, ModelConfig, Published, Snapshot, VersionPolicy
from cohort.row_independence import RowKind, RowVerdict
from cohort.session import CancellationToken, Metadata, Placement, Signature
from cohort.tensors import Arrays, TensorSpec
from tools.simulation.order import ids_of
from tools.simulation.turns import Turns

X = TensorSpec("x", "FP32", (None, 2))
Y = TensorSpec("y", "FP32", (None, 2))

NOBODY = -1
"""Replaces a request's id in the rows of a measurement."""

POISON = 7.0
"""The value in a row's second column on which the model fails, with an error that names the row."""

SLICE_SECONDS = 0.005
"""Seconds that a run continues after a stop: until the next node."""


STUBBORN_SECONDS = 300.0
"""Seconds of an endless load that cannot be cancelled; a life is shorter."""

SMALLEST_TIMEOUT = 0.2
"""The shortest timeout in a config, in seconds."""


@dataclass(frozen=True)
class Nature:
    """The behaviour of a version.

    seconds: Seconds of a run, and of each row more.
    strays, stray_factor: Share of runs that take longer, and how many times as long.
    endless: Share of runs that do not end.
    fails: Share of runs that fail by no fault of their inputs.
    unpredictable: Why its runs cannot be estimated; "" where they can.
    broken: True if it cannot be loaded.
    lacking: Share of loads that fail for want of memory.
    loading: Seconds that loading takes; infinite where it has no end.
    heeds: True if loading ends when it is cancelled. An endless load that does not heed takes
        STUBBORN_SECONDS.
    """

    seconds: tuple[float, float]
    strays: float = 0.0
    stray_factor: float = 1.0
    endless: float = 0.0
    fails: float = 0.0
    unpredictable: str = ""
    broken: bool = False
    lacking: float = 0.0
    loading: float = 0.1
    heeds: bool = True

    @classmethod
    def draw(cls, random: Random, *, may_break: bool = True) -> Nature:
        """Return some version: small models run on the event loop, others on threads."""
        small = random.random() < 0.6
        run = random.uniform(5e-6, 60e-6) if small else 10 ** random.uniform(-3.5, -1)
        return cls(
            (run, run * random.uniform(0.02, 0.5)),
            strays=random.choice((0.0, 0.0, 0.02)),
            stray_factor=random.choice((5.0, 100.0, 2000.0)),
            endless=random.choice((0.0, 0.0, 0.0, 0.01)),
            fails=random.choice((0.0, 0.0, 0.02)),
            unpredictable=random.choice(("", "", "", "it has a loop")),
            broken=may_break and random.random() < 0.25,
            lacking=random.choice((0.0, 0.0, 0.7)) if may_break else 0.0,
            loading=random.choice((0.0, 0.01, 0.5, 3.0, inf if may_break else 0.1)),
            heeds=random.random() < 0.7,
        )

    def seconds_for(self, rows: int) -> float:
        """Return the seconds of a run of `rows`."""
        return self.seconds[0] + rows * self.seconds[1]


@dataclass
class Disk:
    """The models folder: the versions of each model, and its config."""

    versions: dict[str, dict[int, tuple[str, Nature]]] = field(default_factory=dict)
    configs: dict[str, ModelConfig] = field(default_factory=dict)
    smallest_queue: int = 2**20  # the smallest of all configs so far
    _stamps: int = 0

    def put(self, model: str, number: int, nature: Nature) -> None:
        """Add or replace a version."""
        self._stamps += 1
        self.versions.setdefault(model, {})[number] = str(self._stamps), nature

    def configure(self, model: str, random: Random) -> None:
        """Write some config."""
        policy = BatchPolicy(
            max_batch_size=random.choice((1, 4, 32)),
            max_queue_size=random.choice((8, 64, 16_384)),
            max_queue_delay_ms=random.choice((0.0, 0.0, 2.0)),
        )
        self.smallest_queue = min(self.smallest_queue, policy.max_queue_size)
        self.configs[model] = ModelConfig(
            versions=VersionPolicy(latest=random.choice((0, 1, 1, 2))),
            batching=policy,
            timeout_ms=random.choice((SMALLEST_TIMEOUT * 1000, 2_000.0, 30_000.0)),
            load_timeout_s=random.choice((4.0, 20.0, 120.0)),
        )

    def snapshot(self) -> Snapshot:
        """Return a scan of it."""
        return Snapshot({name: self._found(name) for name in sorted(self.versions)})

    def _found(self, name: str) -> FoundModel:
        folder = Path(name)
        versions = {
            number: Found(folder / str(number) / "model.onnx", folder / str(number), stamp)
            for number, (stamp, _) in sorted(self.versions[name].items())
        }
        return FoundModel(name, folder, versions, self.configs.get(name, ModelConfig()))


class Control:
    """Stops a run."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        """End the run soon."""
        self.stopped = True


@dataclass
class Session:
    """An open version: each row times the version's number plus one.

    ran: Called with the ids in the rows of each run.
    injected: Where the ids of requests go whose run failed by no fault of theirs.
    violated: Called with a sentence about what must not be.
    """

    turns: Turns
    number: int
    nature: Nature
    ran: Callable[[list[int]], None]
    injected: set[int]
    violated: Callable[[str], None]
    device: str = "cpu"
    closed: bool = False
    runs: int = 0
    inputs: tuple[TensorSpec, ...] = (X,)
    optional_inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = (Y,)
    metadata: Metadata = field(default_factory=Metadata)
    placement: Placement = field(default_factory=lambda: Placement(("cpu",), "cpu"))
    rows: RowVerdict = field(default_factory=lambda: RowVerdict(RowKind.PROVEN))

    @property
    def signature(self) -> Signature:
        """Return its signature."""
        return Signature(self.inputs, self.outputs, self.optional_inputs)

    @property
    def unpredictable(self) -> str:
        """Why its runs cannot be estimated."""
        return self.nature.unpredictable

    def control(self) -> Control:
        """Return a new control for a run."""
        return Control()

    def run(self, feeds: Arrays, control: Control | None) -> Outputs:
        """Run for some time. Raises InferenceFailed."""
        rows = feeds["x"]
        assert isinstance(rows, np.ndarray)
        ids = ids_of(feeds)
        turns, random, nature = self.turns, self.turns.random, self.nature
        if self.closed:
            if turns.current.name != "cohort-check":  # it may come later than the last request
                self.violated(f"a closed version ran requests {ids}")
            raise InferenceFailed("the model was unloaded", blames_input=False)
        self.ran(ids)
        seconds = nature.seconds_for(len(ids)) * random.uniform(0.7, 1.3)
        if random.random() < nature.strays:
            seconds *= nature.stray_factor
        if random.random() < nature.endless:
            seconds = inf
        self.runs += 1
        while seconds > 0:
            if control is not None and control.stopped:
                self.injected.update(ids)  # stopped by the watchdog, twice
                raise InferenceFailed("the run was stopped", blames_input=False)
            turns.work(min(seconds, SLICE_SECONDS))
            seconds -= SLICE_SECONDS
        if random.random() < nature.fails:
            self.injected.update(ids)
            raise InferenceFailed("the device failed", blames_input=False)
        if POISON in rows[:, 1]:
            raise InferenceFailed("a row cannot be computed", blames_input=True)
        return [np.multiply(rows, np.float32(self.number + 1))]

    def close(self) -> None:
        """Close it."""
        if self.closed:
            self.violated("a version was closed twice")
        self.closed = True


@dataclass(frozen=True)
class Measuring:
    """Measures a version by some runs.

    sizes: The rows of runs that are estimated.
    """

    session: Session
    sizes: Sequence[int]

    def find(self, estimated: float) -> ProfileResult:
        """Return the profile, with each number multiplied by `estimated`."""
        nature = self.session.nature
        seconds = {size: nature.seconds_for(size) * estimated for size in self.sizes}
        return ProfileResult(Profile(seconds, self.sizes[-1]), PadPlan())

    def fully(self, runs: Runs, *, fresh: bool) -> ProfileResult:
        """Run some times. Raises as the runs do."""
        run = runs.of(self.session)  # type: ignore[arg-type]  # quacks
        for _ in range(self.session.turns.random.choice((1, 3))):
            run({"x": np.full((1, 2), NOBODY, np.float32)})
        return self.find(1.0)

    def open_exclusive(self, found: ProfileResult, runs_of: object) -> None:
        """No run has other cores."""

    def give_back(self, *sessions: object) -> None:
        """Nothing is held."""

    def keep_unbatched(self, reason: str) -> None:
        """Nothing is kept."""

    def stop(self) -> None:
        """Nothing is opened."""


def prepare(
    source: Source,
    disk: Disk,
    turns: Turns,
    opened: list[Session],
    *,
    ran: Callable[[list[int]], None],
    injected: set[int],
    violated: Callable[[str], None],
    token: CancellationToken,
) -> PreparedVersion:
    """Load a version, on a thread. Raises LoadFailed or WorkCancelled."""
    if source.problem or source.config is None:
        raise LoadFailed(source.problem)
    model, number = source.path.parts[0], int(source.path.parts[1])
    found: Mapping[int, tuple[str, Nature]] = disk.versions.get(model, {})
    stamp, nature = found.get(number, ("", None))
    if nature is None or stamp != source.stamp:
        raise LoadFailed("its files have changed")
    seconds = nature.loading
    seconds = STUBBORN_SECONDS if seconds == inf and not nature.heeds else seconds
    seconds *= turns.random.random() if seconds < STUBBORN_SECONDS else 1
    token.enter("loading")
    while seconds > 0:
        if nature.heeds:
            token.check()
        turns.work(min(seconds, 0.1 if nature.heeds else seconds))
        seconds -= 0.1 if nature.heeds else seconds
    if turns.random.random() < nature.lacking:
        raise MemoryError
    if nature.broken:
        raise LoadFailed("it is broken")
    session = Session(turns, number, nature, ran, injected, violated)
    opened.append(session)
    policy = source.config.batching
    sizes = [size for size in (1, 4, 32) if size <= policy.max_batch_size]
    measurement = Measuring(session, sizes)
    result = measurement.find(turns.random.choice((1.0, 1.0, 0.2, 5.0)))  # a profile may be wrong
    if turns.random.random() < 0.2:
        careful = Profile({1: nature.seconds[0]}, 1, MEASURING, complete=False)
        result = ProfileResult(careful, PadPlan(), complete=False)
    return PreparedVersion(
        session,  # type: ignore[arg-type]  # quacks
        None,
        result,
        replace(policy, max_batch_size=result.profile.max_batch_size),
        source.config.timeout(),
        NO_LIMIT,
        Published(),
        None,
        measurement=measurement,  # type: ignore[arg-type]  # quacks
    )
