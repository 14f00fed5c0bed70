"""Reloads the certificates when the operator's files change."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import structlog

from cohort.connections.tls.files import TlsFiles, load_tls
from cohort.repository import FollowedFiles

log = structlog.get_logger("cohort.tls")


class TlsWatcher:
    """Reads the files, and again after each change. Broken or missing files change nothing.

    current: The configuration of new handshakes. Open connections keep theirs.

    files: The files. Raises ConfigProblems if they are invalid at the start.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._followed = FollowedFiles(
            files.all, partial(load_tls, files), log=log, invalid="certificates invalid", seen=True
        )
        self.current = load_tls(files)
        self._log_read()

    @property
    def valid(self) -> bool:
        """Return True if the files were valid when they last changed."""
        return self._followed.valid

    @property
    def problems(self) -> list[str]:
        """Return the faults of the files as sentences, including an expired certificate."""
        untimely = self.current.untimely(datetime.now(UTC))
        mine = [f"{self._files.certificate.name}: {untimely}"] if untimely else []
        return [*(str(problem) for problem in self._followed.problems), *mine]

    async def check_files(self) -> None:
        """Reload the files if one has changed and none is being written."""
        if (tls := await self._followed.check()) is not None:
            self.current = tls
            self._log_read()

    def _log_read(self) -> None:
        name, expires = self._files.certificate.name, self.current.expires
        log.info("certificate read", file=name, expires=expires.isoformat())
        if untimely := self.current.untimely(datetime.now(UTC)):
            log.warning("certificate invalid", file=name, problem=untimely)
