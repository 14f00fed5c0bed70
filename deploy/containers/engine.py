"""A separate Docker engine, and base images made here: no registry of images is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BASE = "localhost/python:3.11-slim"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


def run(*command: str | Path, **more: str) -> str:
    """Run a command and give what it printed. Raises SystemExit with all of that where it fails."""
    environment = {**os.environ, **more}
    program = shutil.which(command[0], path=environment["PATH"]) or str(command[0])
    done = subprocess.run(
        [program, *(str(part) for part in command[1:])],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        shown = " ".join(str(part) for part in command)
        raise SystemExit(
            f"cohort: {shown} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine. With its `environment`, `docker` and `docker compose` speak to it."""

    environment: Mapping[str, str]

    def __call__(self, *arguments: str | Path) -> str:
        return run("docker", *arguments, **self.environment)

    def build(self, tag: str, *arguments: str | Path) -> None:
        self("build", "--network", "host", "--tag", tag, *arguments)

    def inspect(self, name: str, what: str) -> str:
        """One field of a container or an image, as `.State.ExitCode`."""
        return self("inspect", "--format", f"{{{{{what}}}}}", name).strip()

    def logs(self, name: str) -> str:
        script = 'docker logs --tail 20 "$0" 2>&1'
        return run("sh", "-c", script, name, **self.environment)

    def wait_for(self, name: str, what: str, wanted: str, *, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while (found := self.inspect(name, what)) != wanted:
            if time.monotonic() > until:
                raise SystemExit(
                    f"cohort: {name}: {what} is {found} and never was {wanted}:\n" + self.logs(name)
                )
            time.sleep(0.2)


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """Run dockerd with its socket, its data and all else in `folder`, without a docker0."""
    host = f"unix://{folder}/docker.sock"
    with (folder / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(
            [
                *("dockerd", "--host", host, "--data-root", folder / "data"),
                *("--exec-root", folder / "run", "--pidfile", folder / "docker.pid"),
                *("--bridge", "none", "--iptables=false", "--ip6tables=false"),
                *("--default-address-pool", "base=172.31.0.0/16,size=24"),
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        run(Path(__file__).parent / "compose.sh", folder)
        plugins = folder / "cli-plugins"
        plugins.mkdir()
        (folder / "bin/docker-compose").rename(plugins / "docker-compose")
        # Debian's docker before another program of that name.
        found = shutil.which("docker", path=os.pathsep.join(("/usr/bin", os.environ["PATH"])))
        (folder / "bin/docker").symlink_to(found or "docker")
        path = os.pathsep.join((str(folder / "bin"), os.environ["PATH"]))
        docker = {"DOCKER_HOST": host, "DOCKER_CONFIG": str(folder), "DOCKER_BUILDKIT": "1"}
        started = Engine({**docker, "PATH": path})
        until = time.monotonic() + 30
        while not (folder / "docker.sock").exists():
            if daemon.poll() is not None or time.monotonic() > until:
                said = (folder / "dockerd.log").read_text()
                raise SystemExit(f"cohort: dockerd does not start:\n{said}")
            time.sleep(0.1)
        yield started
    finally:
        daemon.terminate()
        try:
            daemon.wait(30)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def bootstrap(suite: str, archive: Path, *include: str) -> None:
    """Write the root of a small Debian, as `docker import` takes it, from this machine's mirror."""
    packages = ",".join(("ca-certificates", *include))
    trust = f'cp {BUNDLE} "$1{BUNDLE}"'  # behind a proxy that reads along, nothing else is trusted
    logs = """cd "$1/var/log/nginx" 2>/dev/null && {
        ln -sf /dev/stdout access.log; ln -sf /dev/stderr error.log; } || :"""
    usual = 'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED; ln -sf python3 "$1/usr/bin/python"'
    run(
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={packages}"),
        '--aptopt=Acquire::Check-Valid-Until "false"',  # a mirror may be some days behind
        *(
            f"--customize-hook={trust}; {usual}; {logs}",
            suite,
            archive,
            f"deb {_mirror()} {suite} main",
        ),
    )


def take_in(engine: Engine, archive: Path, tag: str, *changes: str) -> None:
    """Make an image of an archive, with lines of a Dockerfile in `changes`."""
    flags = [part for change in changes for part in ("--change", change)]
    engine("import", *flags, archive, tag)
    archive.unlink()


def _mirror() -> str:
    """Where this machine's own packages come from."""
    listed = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
    return next(
        (uri for uri in listed.split() if uri.rstrip("/").endswith("/debian")), listed.split()[0]
    )
