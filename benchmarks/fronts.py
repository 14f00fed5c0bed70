"""A real nginx in front of a server, as its documentation first shows it and with keepalive."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import Running, free_port

CONFIG = """
daemon off;
worker_processes 1;
pid nginx.pid;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  SERVERS
}
"""

SERVERS = """
  upstream kept {{ server 127.0.0.1:{server}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{plain};
    location / {{ proxy_pass http://127.0.0.1:{server}; }}
  }}
  server {{
    listen 127.0.0.1:{kept};
    location / {{
      proxy_pass http://kept;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }}
  }}
"""


@dataclass(frozen=True)
class Front:
    """A started nginx: its session, and its port for each way of asking the server."""

    session: int
    ports: dict[str, int]


@contextmanager
def nginx(running: Running) -> Iterator[Front | None]:
    """Run an nginx in front of the server; yield None if it is not installed."""
    if not _program():
        yield None
        return
    ports = {"plain": free_port(), "kept": free_port()}
    folder = running.log.parent / "front"
    folder.mkdir()
    servers = SERVERS.format(server=running.port, **ports)
    with started_nginx(folder, servers, ports.values()) as session:
        yield Front(session, ports)


@contextmanager
def started_nginx(folder: Path, servers: str, ports: Iterable[int]) -> Iterator[int]:
    """Run an nginx with these servers on these ports; yield its session. Raises SystemExit."""
    program = _program()
    if program is None:
        raise SystemExit("needs nginx: apt install nginx-light")
    (folder / "nginx.conf").write_text(CONFIG.replace("SERVERS", servers))
    process = subprocess.Popen(
        [program, "-p", str(folder), "-e", "error.log", "-c", "nginx.conf"], start_new_session=True
    )
    try:
        for port in ports:
            _wait(port)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _program() -> str | None:
    return shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")


def _wait(port: int, seconds: float = 20) -> None:
    """Wait until a server listens on the port. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"no server listens on port {port}")
