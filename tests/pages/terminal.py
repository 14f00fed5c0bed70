"""A fresh working copy, and a shell in it that runs the blocks of a page in order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.e2e.processes import free_port, write_quick_command
from tests.pages.blocks import Block
from tests.waiting import PATIENCE, wait_until
from tests.working_copy import copy_working_tree

LONGEST = 300.0
"""Seconds that a block may take, and a server to be ready."""

PROGRAM = {"python": ("py", "python"), "js": ("mjs", "node")}

# Installs nothing: `cohort` is on the path.
MAKE = """#!/bin/sh
case "$*" in
    serve | serve\\ RUNTIME=*) exec cohort serve ;;
    install | install\\ RUNTIME=*) ;;
    *) echo "of make, pages run 'serve' and 'install' here: mark the block" >&2 && exit 2 ;;
esac
"""


class BlockFailed(Exception):
    """A block that failed, or printed something else than its page shows."""


class Terminal:
    """A shell in `copy`, a working copy. `notes` is a folder for the blocks' scripts and output.

    Port 8000 of the page is a free one here, and 8001 another.
    """

    def __init__(self, copy: Path, notes: Path, environment: Mapping[str, str]) -> None:
        self._copy = copy
        self._notes = notes
        self._ports = {"8000": str(free_port()), "8001": str(free_port())}
        self._count = 0
        self._server: int | None = None  # its process group
        self._said = notes / "shell"
        with self._said.open("wb") as said:
            self._shell = subprocess.Popen(
                ["bash", "--norc"],
                cwd=copy,
                env={
                    **environment,
                    "COHORT_PORT": self._ports["8000"],
                    "COHORT_GRPC_PORT": self._ports["8001"],
                },
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                text=True,
                start_new_session=True,
            )

    def save(self, block: Block) -> None:
        """Write a block to the file that it is."""
        path = self._copy / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._here(block.text), encoding="utf-8")

    def run(self, block: Block) -> str:
        """Run a block to its end, and give what it printed. Raises BlockFailed."""
        name = self._write(block)
        what = f"source {name}.sh"
        if block.language in PROGRAM:
            suffix, program = PROGRAM[block.language]
            what = f"{program} {name}.{suffix}"
        self._say(f"set -euo pipefail; {what} </dev/null >{name}.out 2>{name}.err; set +eu")
        self._say(f"touch {name}.done")
        self._wait_for(Path(f"{name}.done"), block)
        return self._there(Path(f"{name}.out").read_text(encoding="utf-8"))

    def serve(self, block: Block) -> None:
        """Start a block that serves, instead of an earlier one, and wait until it is ready."""
        self.stop_server()
        name = self._write(block)
        # In its own process group, as in a terminal, so that it can be interrupted.
        block_here = f"( set -euo pipefail; source {name}.sh ) </dev/null >{name}.out 2>{name}.err"
        self._say(f"set -m; {block_here} & set +m")
        self._say(f"echo $! >{name}.pid.new && mv {name}.pid.new {name}.pid")
        self._wait_for(Path(f"{name}.pid"), block)
        self._server = int(Path(f"{name}.pid").read_text())
        scheme = "https" if "--tls-cert" in block.text else "http"
        url = f"{scheme}://127.0.0.1:{self._ports['8000']}/health/ready"

        def ready() -> bool:
            if not _is_alive(self._server):
                raise self._failure(block, name)
            with suppress(httpx.TransportError):
                return httpx.get(url, verify=False, timeout=PATIENCE).status_code == httpx.codes.OK
            return False

        try:
            wait_until(ready, seconds=LONGEST)
        except TimeoutError:
            raise self._failure(block, name) from None

    def stop_server(self) -> None:
        """End the server that a block has started, if any, as Ctrl-C would."""
        if self._server is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._server, signal.SIGINT)
            with suppress(TimeoutError):
                wait_until(lambda: not _is_alive(self._server))
            with suppress(ProcessLookupError):
                os.killpg(self._server, signal.SIGKILL)
            self._server = None

    def close(self) -> None:
        self.stop_server()
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()

    def _write(self, block: Block) -> Path:
        """Write a block down, and give the file's path without its suffix."""
        self._count += 1
        path = self._notes / f"{self._count}-line-{block.line}"
        suffix = PROGRAM[block.language][0] if block.language in PROGRAM else "sh"
        path.with_name(f"{path.name}.{suffix}").write_text(self._here(block.text), encoding="utf-8")
        return path

    def _say(self, command: str) -> None:
        assert self._shell.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which the wait reports
            self._shell.stdin.write(f"{command}\n")
            self._shell.stdin.flush()

    def _wait_for(self, file: Path, block: Block) -> None:
        """Wait until the shell has written a file, or ended."""
        name = file.with_suffix("")
        try:
            wait_until(lambda: file.exists() or self._shell.poll() is not None, seconds=LONGEST)
        except TimeoutError:
            raise self._failure(block, name) from None
        if not file.exists():
            raise self._failure(block, name)

    def _failure(self, block: Block, name: Path) -> BlockFailed:
        files = [name.with_name(f"{name.name}.{suffix}") for suffix in ("out", "err")]
        said = [file.read_text(errors="replace") for file in [*files, self._said] if file.exists()]
        return BlockFailed(f"line {block.line} failed:\n{block.text}\n" + "\n".join(said))

    def _here(self, text: str) -> str:
        return re.sub(r"(:|--port )(800[01])\b", lambda port: port[1] + self._ports[port[2]], text)

    def _there(self, text: str) -> str:
        for page, here in self._ports.items():
            text = text.replace(f":{here}", f":{page}")
        return text


def _is_alive(group: int | None) -> bool:
    """Return True if a process group has members that run."""
    assert group is not None
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    """A terminal in a copy of this working tree, under `folder`, as a fresh checkout would have it.

    `python` is that of the tests' environment, with the copy's sources; `cohort` is forked.
    """
    copy = folder / "cohort"
    copy_working_tree(copy)
    (copy / ".venv").symlink_to(sys.prefix)
    make = folder / "bin" / "make"
    make.parent.mkdir()
    make.write_text(MAKE)
    make.chmod(0o755)
    write_quick_command(make.parent)
    notes = folder / "notes"
    notes.mkdir()
    session = Terminal(
        copy,
        notes,
        {
            **{name: value for name, value in os.environ.items() if not name.startswith("COHORT_")},
            "PATH": f"{make.parent}:{copy}/.venv/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(copy),
            "PYTHONUNBUFFERED": "1",
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "COHORT_WATCH_SECONDS": "0.2",
            "COHORT_DRAIN_NOTICE_SECONDS": "0",
        },
    )
    try:
        yield session
    finally:
        session.close()
