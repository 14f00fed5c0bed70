"""Open a model in a child process first, unless the result is already known."""

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
"""Extra wall-clock time for an inspection, because the child process may have to start first."""

OPEN_AND_RUN = "cohort.inspection.process:open_and_run"
"""The job that the child process runs."""


@dataclass(frozen=True, slots=True)
class InspectionLimits:
    """The resource limits for opening and first running a model.

    seconds: CPU time, plus an allowance for the model's size; 0 disables inspection.
    megabytes: Memory, plus an allowance for the model's size; None means a quarter of the
        container's or the machine's memory.
    """

    seconds: int = 60
    megabytes: int | None = None

    @property
    def memory(self) -> int:
        """Return the memory limit in bytes."""
        return available_memory() // 4 if self.megabytes is None else self.megabytes << 20


TRIES = "divisions"
"""The extra checks after opening and running a model; findings without them are not reused."""


class Inspected(NamedTuple):
    """A report of one inspection.

    model: The model's name.
    version: The version's number.
    sha256: The digest of the file, in hex.
    seconds: The duration of the inspection.
    harm: The damage done to the child process; "" if there was no damage.
    """

    model: str
    version: str
    sha256: str
    seconds: float
    harm: str


class Inspector:
    """Inspects each model once. Thread-safe.

    Concurrent inspections each use one child process.

    limits: The resource limits for a model.
    cache: The folder in which findings are stored; None: findings are not stored.
    observe: Called after each inspection, on the inspecting thread; does nothing by default.
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
        """Return when opening the model is known to be harmless for the process.

        Returns the SHA-256 of each inspected file, as `Opener.file_digests` does; None if
        inspection is disabled. Other faults of a model are found when the server opens it.
        Sets the opener's peak memory and, if known, its row verdict. Raises LoadFailed if the model
        does damage, and WorkCancelled if the opener's token is cancelled.
        """
        if not self._limits.seconds:
            return None
        try:
            check_model_file(opener.path)
            opener.rules.check_size([opener.path])  # before the whole file is read
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
        except OSError:  # opening the model reports the error
            return {}
        if finding.harm:
            raise LoadFailed(finding.harm)
        opener.peak = finding.peak
        if finding.rows is not None:
            opener.rows = finding.rows
        return files | dict(finding.external)

    @property
    def busy(self) -> bool:
        """Return True if there is a child process."""
        return bool(self._idle or self._working)

    def rest(self) -> None:
        """End the idle child processes; later inspections start new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()

    def close(self) -> None:
        """Kill all child processes, including processes that are started later."""
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
        """Return the stored finding on exactly these files; None if there is no such finding."""
        finding = None if self._findings is None else self._findings.read(key)
        if finding is None:
            return None
        with suppress(
            LoadFailed, OSError
        ):  # the external data differs, so the finding does not apply
            if _digests(opener, finding.external) == finding.external:
                return finding
        return None

    def _inspect(self, opener: Opener, key: Mapping[str, str], job: Job) -> Finding:
        """Open the model in a child process; store the finding if it is reproducible."""
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
                answer = process.do(
                    OPEN_AND_RUN, {"job": asdict(job)}, limits=limits, on_message=follow
                )
            peak = int(answer[PEAK])
            with suppress(ValueError):
                rows = read_verdict(answer[ROW_VERDICT])
        except JobFailed as error:
            failure = error
        except BaseException:
            self._release(process, reusable=False)
            raise
        cancelled = bool(opener.token.reason)  # the child was killed, perhaps after its answer
        self._release(process, reusable=not (failure or cancelled))
        opener.token.check()
        if self._closed:
            raise LoadFailed("the server is stopping")
        if (opener.digests.of(opener.path), _digests(opener, external)) != (key["model"], external):
            raise LoadFailed("its files changed while it was inspected")
        harm, lasting = _harm(job, failure)
        named = opener.model_name, opener.version_name
        self._observe(Inspected(*named, key["model"], monotonic() - started, harm))
        if failure is not None and failure.signal == signal.SIGKILL:
            raise LoadFailed(harm, transient=True)
        finding = Finding(external, harm, peak, rows)
        if self._findings is not None and lasting and (was_read or harm):
            self._findings.write(key, finding)
        return finding

    def _take_process(self) -> JobProcess:
        """Return an idle child process; start one if all are busy."""
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
        if self._closed:  # close() ran while the process was starting
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
    """Start a child process for inspections. Raises OSError."""
    return JobProcess(OPEN_AND_RUN, environment=bare_environment(), cwd=Path("/"))


def _patience(job: Job, files: Iterable[Path]) -> int:
    """Return the wall-clock limit in seconds, a fallback for the child's own limits."""
    return job.limits(files)[0] * SECONDS_PER_CPU_SECOND + STARTING_SECONDS


def _digests(opener: Opener, locations: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the external data at `locations`.

    Raises LoadFailed, as opening does, if a file is outside the model's folder or too large.
    """
    files = {location: opener.path.parent / location for location in locations}
    for location in files:
        check_external(opener.path, location)
    opener.rules.check_size([opener.path, *files.values()])
    return {location: opener.digests.of(file) for location, file in files.items()}


def _harm(job: Job, failure: JobFailed | None) -> tuple[str, bool]:
    """Return the damage that opening the model does, and whether it is reproducible.

    Damage that depends on the load of the machine is not reproducible.
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
    details = f": {sentence(failure.last_line)}" if failure.last_line else ""
    if failure.signal == signal.SIGFPE:
        details += (
            "; a division of whole numbers, of the least one by -1, does that: have the model "
            "divide by 1 where its divisor is -1"
        )
    if libraries := job.session["custom_op_libraries"]:
        details += f"; its custom operators run there, of {quoted_names(libraries)}"
    if failure.signal:
        return f"{first} crashed ONNX Runtime {ORT_VERSION} ({failure.signal.name}{details})", True
    return f"{first} failed: {failure}{details}", False
