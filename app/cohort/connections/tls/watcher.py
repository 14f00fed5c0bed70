"""Keeps the certificates in step with the operator's files."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import structlog

from cohort.connections.tls.files import TlsFiles, load_tls
from cohort.repository import FollowedFiles

log = structlog.get_logger("cohort.tls")


class TlsWatcher:
    """Reads the files, and again when one has changed. Broken or missing ones change nothing.

    current: What handshakes that begin now use. Connections keep what they began with.

    files: The files. Raises ConfigProblems where they are wrong from the start.
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
        """Whether the files could be read the last time one had changed."""
        return self._followed.valid

    @property
    def problems(self) -> list[str]:
        """What is wrong with the files, in sentences; that the certificate has expired, too."""
        untimely = self.current.untimely(datetime.now(UTC))
        mine = [f"{self._files.certificate.name}: {untimely}"] if untimely else []
        return [*(str(problem) for problem in self._followed.problems), *mine]

    async def check_files(self) -> None:
        """Follow the files, if one has changed and none is being written."""
        if (tls := await self._followed.check()) is not None:
            self.current = tls
            self._log_read()

    def _log_read(self) -> None:
        name, expires = self._files.certificate.name, self.current.expires
        log.info("certificate read", file=name, expires=expires.isoformat())
        if untimely := self.current.untimely(datetime.now(UTC)):
            log.warning("certificate invalid", file=name, problem=untimely)
