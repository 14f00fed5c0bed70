"""Start the real process as a hosting platform does: by its environment and its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.forking import fork
from tests.e2e.processes import Cohort, without_settings

PLATFORMS = ("SAGEMAKER", "AIP_", "AZUREML", "PORT")


@contextmanager
def platform(
    port: int, folder: Path, environment: Mapping[str, str], *arguments: str, ready: str
) -> Iterator[Cohort]:
    """Run `cohort serve` with no settings but the platform's, and those that speed up a test.

    port: The port that the environment names.
    folder: Takes the state, the cache and the log.
    ready: The path that answers 200 once the server is ready.
    """
    kept = {name: one for name, one in without_settings().items() if not name.startswith(PLATFORMS)}
    variables = {
        **kept,
        "COHORT_STATE": str(folder / "state"),
        "COHORT_CACHE": str(folder / "cache"),
        "COHORT_GRPC_PORT": "0",
        "COHORT_INSPECTION_SECONDS": "0",
        "COHORT_DRAIN_NOTICE_SECONDS": "0",
        **environment,
    }
    log = folder / f"log-{port}.txt"
    with log.open("wb") as file:
        process = fork(
            ["serve", *arguments], cwd=folder, env=variables, stdout=1, stderr=file.fileno()
        )
    started = Cohort(process, f"http://127.0.0.1:{port}", log)
    try:
        started.wait_for(ready)
        yield started
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
