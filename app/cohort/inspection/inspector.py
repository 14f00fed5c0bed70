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

from cohort.errors import LoadFailed, quoted_names
from cohort.inspection.bundled import BUNDLED
from cohort.inspection.findings import Finding, Findings
from cohort.inspection.job import PEAK, ROW_VERDICT, Job, read_verdict
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
from cohort.session.thread_priority import NICENESS
from cohort.system.confinement import SECONDS_PER_CPU_SECOND
from cohort.system.jobs import (
    JobFailed,
    JobLimits,
    JobOutOfMemory,
    JobProcess,
    JobTimedOut,
    bare_environment,
)

STARTING_SECONDS = 60
"""How much longer than its limit an inspection may take: the child may have to start first."""

OPEN_AND_RUN = "cohort.inspection.process:open_and_run"
"""The job."""


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


TRIES = "divisions"
"""What is tried besides opening and running a model: findings without it are made anew."""


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
        self._idle: list[JobProcess] = []
        self._working: set[JobProcess] = set()
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
                "tries": TRIES,
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
        for process in idle:
            process.close()

    def close(self) -> None:
        """End all child processes at once, and start none any more."""
        self._closed = True
        with self._lock:
            for process in [*self._idle, *self._working]:
                process.kill()

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
        was_read, peak, failure = False, 0, None
        rows: RowVerdict | None = None
        process = self._take_process()

        def follow(locations: Iterable[str]) -> None:
            nonlocal was_read, external
            was_read, external = True, _digests(opener, locations)
            process.allow(
                _patience(job, [opener.path, *map(opener.path.parent.joinpath, external)])
            )

        limits = JobLimits(_patience(job, [opener.path]), confined=True, nice=NICENESS)
        try:
            with opener.token.calling(process.kill):
                answer = process.do(OPEN_AND_RUN, {"job": asdict(job)}, limits=limits, told=follow)
            peak = int(answer[PEAK])
            with suppress(ValueError):
                rows = read_verdict(answer[ROW_VERDICT])
        except JobFailed as error:
            failure = error
        except BaseException:
            self._release(process, reusable=False)
            raise
        cancelled = bool(opener.token.reason)  # and the child killed, perhaps after its answer
        self._release(process, reusable=not (failure or cancelled))
        opener.token.check()
        if self._closed:
            raise LoadFailed("the server is stopping")
        if (opener.digests.of(opener.path), _digests(opener, external)) != (key["model"], external):
            raise LoadFailed("its files changed while it was inspected")
        harm, lasting = _harm(job, failure)
        self._observe(Inspected(opener.origin, key["model"], monotonic() - started, harm))
        if failure is not None and failure.signal == signal.SIGKILL:
            raise LoadFailed(harm, transient=True)
        finding = Finding(external, harm, peak, rows)
        if self._findings is not None and lasting and (was_read or harm):
            self._findings.write(key, finding)
        return finding

    def _take_process(self) -> JobProcess:
        """A process that does nothing else, started where there is none."""
        with self._lock:
            process = self._idle.pop() if self._idle else None
            if process is not None:
                self._working.add(process)
                return process
        try:
            process = start_process()
        except OSError as error:
            raise LoadFailed(
                f"no process can be started to inspect it ({error.strerror or error}); "
                "COHORT_INSPECTION_SECONDS=0 opens models without"
            ) from error
        with self._lock:
            self._working.add(process)
        if self._closed:  # meanwhile
            process.kill()
        return process

    def _release(self, process: JobProcess, *, reusable: bool) -> None:
        with self._lock:
            self._working.remove(process)
            if reusable:
                self._idle.append(process)
        if not reusable:
            process.close()


def start_process() -> JobProcess:
    """Start a process for inspections. Raises OSError."""
    return JobProcess(OPEN_AND_RUN, environment=bare_environment(), cwd=Path("/"))


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


def _harm(job: Job, failure: JobFailed | None) -> tuple[str, bool]:
    """What opening the model does to a process, and whether it does so every time.

    What depends on what else the machine does is not for every time.
    """
    if failure is None:
        return "", True
    if isinstance(failure, JobOutOfMemory):
        return (
            "opening it and running it with up to 32 rows takes more memory than a model may: "
            f"{job.memory >> 20:,} MiB, and three times its size (COHORT_INSPECTION_MB)"
        ), False
    first = "in the process that opens unknown models first, it"
    more = "(COHORT_INSPECTION_SECONDS, and one more for each 10 MiB of it)"
    if failure.signal == signal.SIGXCPU:
        return f"{first} took more CPU time than a model may: {job.seconds} s {more}", True
    if isinstance(failure, JobTimedOut):
        seconds = job.seconds * SECONDS_PER_CPU_SECOND
        return f"{first} was not opened within {seconds} s {more}", False
    if failure.signal == signal.SIGKILL:
        return f"{first} was killed by the system, most likely for want of memory", False
    said = f": {sentence(failure.last_line)}" if failure.last_line else ""
    if failure.signal == signal.SIGFPE:
        said += (
            "; a division of whole numbers, of the least one by -1, does that: have the model "
            "divide by 1 where its divisor is -1"
        )
    if libraries := job.session["custom_op_libraries"]:
        said += f"; its custom operators run there, of {quoted_names(libraries)}"
    if failure.signal:
        return f"{first} crashed ONNX Runtime {ORT_VERSION} ({failure.signal.name}{said})", True
    return f"{first} failed: {failure}{said}", False
