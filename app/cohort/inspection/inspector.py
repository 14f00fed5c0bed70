"""Have a model opened in another process first, unless it is known what comes of that."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from cohort.errors import LoadFailed
from cohort.inspection.bundled import BUNDLED
from cohort.inspection.child import Child, ChildEnded
from cohort.inspection.findings import Finding, Findings
from cohort.inspection.job import (
    EXTERNAL,
    OUT_OF_MEMORY,
    OUTCOME,
    PEAK,
    ROW_VERDICT,
    Job,
    read_verdict,
)
from cohort.row_independence import RowVerdict, rules_digest
from cohort.session import (
    ORT_VERSION,
    Opener,
    available_memory,
    check_external,
    check_model_file,
    machine,
    runtime_build,
    sentence,
)
from cohort.session.confinement import SECONDS_PER_CPU_SECOND

STARTING_SECONDS = 60
"""How much longer than its limit an inspection may take: the child may have to start first."""


@dataclass(frozen=True, slots=True)
class InspectionLimits:
    """What a model may take while it is opened and first run.

    seconds: CPU time, besides what its size adds; 0: models are not inspected.
    megabytes: Memory, besides what its size adds; default None: a quarter of the container's or the
        machine's.
    """

    seconds: int = 60
    megabytes: int | None = None

    @property
    def memory(self) -> int:
        """The bytes of memory."""
        return available_memory() // 4 if self.megabytes is None else self.megabytes << 20


class Inspected(NamedTuple):
    """A model was opened in the child process.

    path: The model's file.
    sha256: Its digest, in hex.
    seconds: How long that took.
    harm: What it did to the process; "" for none.
    """

    path: Path
    sha256: str
    seconds: float
    harm: str


class Inspector:
    """Inspects models, each once; its methods may be called from any thread.

    There are as many child processes as there are inspections at the same time.

    limits: What a model may take.
    cache: The folder under which findings are kept; None: none are.
    observe: Called after each inspection, on its thread; default: nothing.
    """

    def __init__(
        self,
        limits: InspectionLimits,
        cache: Path | None,
        observe: Callable[[Inspected], None] = lambda _: None,
    ) -> None:
        self._limits = limits
        self._observe = observe
        self._findings = None if cache is None else Findings(cache)
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._working: set[Child] = set()
        self._closed = False

    def inspect(self, opener: Opener) -> dict[str, str] | None:
        """Return once it is known that opening the model does a process no harm.

        Returns the SHA-256 of each file of which that is known, as `Opener.file_digests` does; None
        where models are not inspected. What else is wrong with a model is for opening to find.
        The opener learns how much memory it took, and what is known of rows. Raises LoadFailed, and
        WorkCancelled where the opener's token is cancelled.
        """
        if not self._limits.seconds:
            return None
        try:
            check_model_file(opener.path)
            opener.rules.check_size([opener.path])  # before all of it is read
            files = {opener.path.name: opener.digests.of(opener.path)}
            libraries = opener.libraries()
            if files[opener.path.name] in BUNDLED and not libraries:
                return files
            job = self._make_job(opener)
            key = {
                "model": files[opener.path.name],
                "libraries": " ".join(map(opener.digests.of, libraries)),
                "runtime": runtime_build(),
                "machine": machine(),
                "proof": rules_digest(),
                "job": repr({**asdict(job), "path": ""}),
            }
            finding = self._recall(opener, key)
            if finding is None:
                finding = self._inspect(opener, key, job)
        except OSError:  # opening it says what and why
            return {}
        if finding.harm:
            raise LoadFailed(finding.harm)
        opener.peak = finding.peak
        if finding.rows is not None:
            opener.rows = finding.rows
        return files | dict(finding.external)

    @property
    def busy(self) -> bool:
        """Whether there is a child process."""
        return bool(self._idle or self._working)

    def rest(self) -> None:
        """End the child processes that do nothing, until they are needed again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()

    def close(self) -> None:
        """End all child processes at once, and start none any more."""
        self._closed = True
        with self._lock:
            for child in [*self._idle, *self._working]:
                child.kill()

    def _make_job(self, opener: Opener) -> Job:
        rules = opener.rules
        return Job(
            path=str(opener.path.absolute()),
            session=asdict(opener.options),
            memory_limit_mb=opener.memory_limit_mb,
            max_bytes=rules.max_bytes,
            max_nodes=rules.max_nodes,
            custom_ops=tuple(str(folder.absolute()) for folder in rules.custom_ops),
            runs=opener.prefers_cpu(),
            seconds=self._limits.seconds,
            memory=self._limits.memory,
        )

    def _recall(self, opener: Opener, key: Mapping[str, str]) -> Finding | None:
        """What is known to come of opening these very files; None where nothing is."""
        finding = None if self._findings is None else self._findings.read(key)
        if finding is None:
            return None
        with suppress(LoadFailed, OSError):  # then the model is another one
            if _digests(opener, finding.external) == finding.external:
                return finding
        return None

    def _inspect(self, opener: Opener, key: Mapping[str, str], job: Job) -> Finding:
        """Have the model opened, and keep the finding where another time would bring the same."""
        started = monotonic()
        external: dict[str, str] = {}
        was_read, starved, peak, ended = False, False, 0, None
        rows: RowVerdict | None = None
        child = self._take_child()
        try:
            with opener.token.calling(child.kill):
                child.send(job)
                answer = child.read(_patience(job, [opener.path]))
                if EXTERNAL in answer:
                    was_read, external = True, _digests(opener, answer[EXTERNAL])
                    files = [opener.path, *(opener.path.parent / one for one in external)]
                    answer = child.read(_patience(job, files))
            starved, peak = answer.get(OUTCOME) == OUT_OF_MEMORY, int(answer.get(PEAK, 0))
            with suppress(ValueError):
                rows = read_verdict(answer.get(ROW_VERDICT))
        except ChildEnded as error:
            ended = error
        except BaseException:  # its answer will come
            self._release(child, reusable=False)
            raise
        cancelled = bool(opener.token.reason)  # and the child killed, perhaps after its answer
        self._release(child, reusable=not (starved or ended or cancelled))
        opener.token.check()
        if self._closed:
            raise LoadFailed("the server is stopping")
        if (opener.digests.of(opener.path), _digests(opener, external)) != (key["model"], external):
            raise LoadFailed("its files changed while it was inspected")
        harm, lasting = _harm(job, starved, ended)
        self._observe(Inspected(opener.origin, key["model"], monotonic() - started, harm))
        if ended is not None and ended.code == -signal.SIGKILL:
            raise LoadFailed(harm, transient=True)
        finding = Finding(external, harm, peak, rows)
        if self._findings is not None and lasting and (was_read or harm):
            self._findings.write(key, finding)
        return finding

    def _take_child(self) -> Child:
        """A child that does nothing else, started where there is none."""
        with self._lock:
            child = self._idle.pop() if self._idle else None
            if child is not None:
                self._working.add(child)
                return child
        try:
            child = Child()
        except OSError as error:
            raise LoadFailed(
                f"no process can be started to inspect it ({error.strerror or error}); "
                "COHORT_INSPECTION_SECONDS=0 opens models without"
            ) from error
        with self._lock:
            self._working.add(child)
        if self._closed:  # meanwhile
            child.kill()
        return child

    def _release(self, child: Child, *, reusable: bool) -> None:
        with self._lock:
            self._working.remove(child)
            if reusable:
                self._idle.append(child)
        if not reusable:
            child.close()


def _patience(job: Job, files: Iterable[Path]) -> int:
    """Seconds after which the child's own limits do not work."""
    return job.limits(files)[0] * SECONDS_PER_CPU_SECOND + STARTING_SECONDS


def _digests(opener: Opener, locations: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of the external data at `locations`.

    Raises LoadFailed where those are not files in the model's folder or too large, as opening does.
    """
    files = {location: opener.path.parent / location for location in locations}
    for location in files:
        check_external(opener.path, location)
    opener.rules.check_size([opener.path, *files.values()])
    return {location: opener.digests.of(file) for location, file in files.items()}


def _harm(job: Job, starved: bool, ended: ChildEnded | None) -> tuple[str, bool]:
    """What opening the model does to a process, and whether it does so every time.

    What depends on what else the machine does is not for every time.
    """
    if starved:
        return (
            "opening it and running it with up to 32 rows takes more memory than a model may: "
            f"{job.memory >> 20:,} MiB, and three times its size (COHORT_INSPECTION_MB)"
        ), False
    if ended is None:
        return "", True
    first = "in the process that opens unknown models first, it"
    more = "(COHORT_INSPECTION_SECONDS, and one more for each 10 MiB of it)"
    match -ended.code:
        case signal.SIGXCPU:
            return f"{first} took more CPU time than a model may: {job.seconds} s {more}", True
        case signal.SIGALRM:
            seconds = job.seconds * SECONDS_PER_CPU_SECOND
            return f"{first} was not opened within {seconds} s {more}", False
        case signal.SIGKILL:
            return f"{first} was killed by the system, most likely for want of memory", False
    said = f": {sentence(ended.stderr)}" if ended.stderr else ""
    if ended.code < 0:
        name = signal.Signals(-ended.code).name
        return f"{first} crashed ONNX Runtime {ORT_VERSION} ({name}{said})", True
    return f"{first} ended that with status {ended.code}{said}", False
