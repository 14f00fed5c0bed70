"""`make containers`: the image and all of docker-compose.yml, from nothing, under load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import tempfile
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.containers.engine import BASE, BUNDLE, Engine, bootstrap, engine, run, take_in
from deploy.containers.traffic import Traffic, traffic

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
IMAGE = "localhost/cohort:cpu"
LIMIT_SECONDS = 600
began = time.monotonic()


def say(text: str) -> None:
    print(f"cohort: {time.monotonic() - began:4.0f} s  {text}", flush=True)


def main() -> None:
    signal.signal(signal.SIGALRM, too_long)
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit(143)))
    signal.alarm(LIMIT_SECONDS)
    with tempfile.TemporaryDirectory(prefix="cohort-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with engine(folder) as docker:
            build(docker, folder)
            size = check_image(docker)
            summary = asyncio.run(check_stack(docker))
    say(f"done: image {size}; {summary}")


def too_long(*_: object) -> None:
    raise SystemExit(f"cohort: not done after {LIMIT_SECONDS} s")


def build(docker: Engine, folder: Path) -> None:
    """The base, our image on it, and what stands in for the official images."""
    say("making base images of Debian's packages")
    base, balancer = folder / "base.tar", folder / "nginx.tar"
    with ThreadPoolExecutor() as pool:
        # nginx looks replicas up by name from 1.27.3 on, which Debian's stable release has not.
        newer = pool.submit(bootstrap, "forky", balancer, "nginx", "curl")
        bootstrap("bookworm", base, "python3", "python3-venv", "python3-pip")
        newer.result()
    take_in(docker, base, BASE, f"ENV SSL_CERT_FILE={BUNDLE} PIP_CERT={BUNDLE}")
    take_in(docker, balancer, "localhost/nginx", 'CMD ["/usr/sbin/nginx", "-g", "daemon off;"]')

    say("building the CPU image")
    revision = run("git", "-C", ROOT, "rev-parse", "HEAD").strip()
    arguments = {"BASE_IMAGE": BASE, "RUNTIME": "cpu", "REVISION": revision}
    flags = [p for k, v in arguments.items() for p in ("--build-arg", f"{k}={v}")]
    docker.build(IMAGE, *flags, ROOT)

    say("building stand-ins for Prometheus, Alertmanager and Grafana")
    file = HERE / "standins.Dockerfile"
    for name in ("prometheus", "alertmanager", "grafana"):
        docker.build(
            *(f"localhost/{name}", "--build-arg", f"BASE_IMAGE={BASE}", "--target", name),
            *("--file", file, HERE),
        )


def check_image(docker: Engine) -> str:
    """One container by itself, with a read-only root and nothing it does not need."""
    size = f"{int(docker.inspect(IMAGE, '.Size')) / 1e6:.0f} MB"
    say(f"the image has {size}; running it by itself, read-only, without any capability")
    name = "alone"
    docker(
        *("run", "--detach", "--name", name, "--network", "none", "--read-only", "--tmpfs", "/tmp"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--env", "COHORT_PORT=9000"),
        *("--env", "COHORT_DRAIN_NOTICE_SECONDS=1", IMAGE),
    )
    docker.wait_for(name, ".State.Health.Status", "healthy")

    def shell(command: str) -> str:
        return docker("exec", name, "sh", "-c", command).strip()

    expect("user and group", shell("id -u; id -g"), "10001\n10001")
    expect("a file in the root", shell("touch /file 2>/dev/null && echo written || :"), "")
    expect("a file in the state", shell("touch $COHORT_STATE/file && echo written"), "written")
    tools = "uv pip pip3 gcc cc g++ ld as make apt apt-get perl git curl"
    expect("build tools", shell(f"for t in {tools}; do command -v $t; done || :"), "")
    expect("pip as a module", shell("python -c 'import pip' 2>/dev/null && echo there || :"), "")
    cased = "import locale; locale.setlocale(locale.LC_ALL, 'en_US.UTF-8'); print('set')"
    expect("locale", shell(f'python -c "{cased}"'), "set")
    expect("process 1", shell("tr '\\0' ' ' </proc/1/cmdline | grep -c 'cohort serve'"), "1")
    docker("stop", name)
    expect("exit status after SIGTERM", docker.inspect(name, ".State.ExitCode"), "0")
    docker("rm", "--volumes", name)
    return size


async def check_stack(docker: Engine) -> str:
    """All of docker-compose.yml, loaded, with a replica killed and all replaced."""
    ports = {name: free_port() for name in ("HTTP", "PROMETHEUS", "ALERTMANAGER", "GRAFANA")}
    settings = {
        **docker.environment,
        "COHORT_IMAGE": IMAGE,
        "GRAFANA_PASSWORD": "only-for-this-run",
        **{f"{n.upper()}_IMAGE": f"localhost/{n}" for n in ("prometheus", "alertmanager")},
        "GRAFANA_IMAGE": "localhost/grafana",
        "NGINX_IMAGE": "localhost/nginx",
        **{f"{name}_PORT": str(port) for name, port in ports.items()},
    }
    os.environ.update(settings)  # roll.sh and Compose read them
    compose = [
        docker.compose,
        "--file",
        ROOT / "docker-compose.yml",
        "--project-name",
        "containers",
    ]
    compose += ["--env-file", "/dev/null", "--project-directory", ROOT]
    await asyncio.to_thread(run, *compose, "config", "--quiet")
    say("bringing up the stack")
    started = time.monotonic()
    try:
        await asyncio.to_thread(run, *compose, "up", "--detach", "--wait", "--no-build")
        up_in = time.monotonic() - started
        say(f"all healthy in {up_in:.0f} s; sending predictions, 1 KB and 100 KB")
        async with traffic(ports["HTTP"]) as load:
            await scraped(ports["PROMETHEUS"], 2)
            say(f"Prometheus scrapes both replicas; {told(load)}; killing one with SIGKILL")
            replicas = (await asyncio.to_thread(run, *compose, "ps", "-q", "cohort")).split()
            os.kill(int(docker.inspect(replicas[0], ".State.Pid")), signal.SIGKILL)
            await asyncio.sleep(2)
            await asyncio.to_thread(docker.wait_for, replicas[0], ".State.Health.Status", "healthy")
            expect("restarts of the one killed", docker.inspect(replicas[0], ".RestartCount"), "1")
            say(f"it is back; {told(load)}; replacing all, one at a time")
            rolled = time.time()
            command = " ".join(str(part) for part in compose)
            await asyncio.to_thread(
                run, HERE / "roll.sh", COMPOSE=command, DOCKER=str(docker.docker)
            )
            replaced = (await asyncio.to_thread(run, *compose, "ps", "-q", "cohort")).split()
            expect("replicas that stayed", str(set(replicas) & set(replaced)), "set()")
            expect("replicas", str(len(replaced)), "2")
            say(f"all replaced; {told(load)}")
            await scraped(ports["PROMETHEUS"], 2, since=rolled)
        say(f"Prometheus scrapes the new ones; {told(load)}; taking all down")
        expect("failed requests", str(load.failures), "0")
        return f"up in {up_in:.0f} s; {told(load)}"
    except BaseException:
        print(run(*compose, "ps", "--all"), run(*compose, "logs", "--tail", "40"))
        raise
    finally:
        run(*compose, "down", "--volumes", "--timeout", "10")


def told(load: Traffic) -> str:
    bad = f" ({dict(load.answered)}, {dict(load.broken)})" if load.failures else ""
    return f"{load.answered.total()} requests, {load.failures} failed{bad}"


async def scraped(port: int, replicas: int, *, since: float = 0) -> None:
    """Wait until Prometheus has had predictions counted by so many, all started `since` then."""
    started = f'process_start_time_seconds{{job="cohort"}} > {since}'
    query = f"count(sum by (instance) (model_inference_total) > 0 and on (instance) {started})"
    until = time.monotonic() + 90
    while (seen := await asyncio.to_thread(ask, port, query)) != replicas:
        if time.monotonic() > until:
            raise SystemExit(f"cohort: Prometheus sees predictions of {seen} replicas")
        await asyncio.sleep(1)


def ask(port: int, query: str) -> int:
    url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
    with urllib.request.urlopen(url, timeout=5) as answer:
        found = json.load(answer)["data"]["result"]
    return int(found[0]["value"][1]) if found else 0


def expect(what: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise SystemExit(f"cohort: {what}: {found!r}, not {wanted!r}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
