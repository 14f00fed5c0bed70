"""`make containers`: the image and all of docker-compose.yml, from nothing, under load."""

from __future__ import annotations

import argparse
import asyncio
import gzip
import hashlib
import json
import os
import shutil
import signal
import socket
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.containers.engine import BASE, BUNDLE, Engine, bootstrap, engine, run, take_in
from deploy.containers.traffic import Traffic, traffic

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
IMAGE = "localhost/cohort:cpu"
STAND_INS = ("nginx", "prometheus", "alertmanager", "grafana")
LIMIT_SECONDS = 900
began = time.monotonic()


def say(text: str) -> None:
    print(f"cohort: {time.monotonic() - began:4.0f} s  {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make containers")
    parser.add_argument("--rolls", type=int, default=1, help="replacements of all replicas")
    rolls = parser.parse_args().rolls
    signal.signal(signal.SIGALRM, too_long)
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit(143)))
    signal.alarm(LIMIT_SECONDS + 60 * rolls)
    with tempfile.TemporaryDirectory(prefix="cohort-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)  # for the users in the containers
        with engine(folder) as docker:
            build(docker, folder)
            size = check_image(docker)
            check_layers(docker, folder)
            summary = asyncio.run(check_stack(docker, folder, rolls))
    say(f"done: image {size}; {summary}")


def too_long(*_: object) -> None:
    raise SystemExit("cohort: not done in time")


def build(docker: Engine, folder: Path) -> None:
    """Build the base, our image on it, and replacements of the official images."""
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
    docker.build(IMAGE, *build_flags("built"), ROOT)

    say("building stand-ins for Prometheus, Alertmanager and Grafana")
    file = HERE / "standins.Dockerfile"
    for name in STAND_INS[1:]:
        docker.build(
            *(f"localhost/{name}", "--build-arg", f"BASE_IMAGE={BASE}", "--target", name),
            *("--file", file, HERE),
        )


def build_flags(revision: str) -> list[str]:
    arguments = {"BASE_IMAGE": BASE, "RUNTIME": "cpu", "REVISION": revision}
    return [part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")]


def check_image(docker: Engine) -> str:
    """Run one container alone, with a read-only root and nothing it does not need."""
    size = f"{int(docker.inspect(IMAGE, '.Size')) / 1e6:.0f} MB"
    say(f"the image has {size}; running it alone, read-only, without any capability")
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


def check_layers(docker: Engine, folder: Path) -> None:
    """Check that a change of one line in the code ships one layer to users of the image."""
    changed = folder / "changed"
    for name in ("app", "models", "requirements", "deploy/containers", "deploy/playground"):
        shutil.copytree(ROOT / name, changed / name)
    texts = ("pyproject.toml", "LICENSE", "README.md")
    for name in (".dockerignore", "Dockerfile", *texts):
        shutil.copy(ROOT / name, changed / name)
    with (changed / "app/cohort/__init__.py").open("a") as code:
        code.write("CHANGED = True\n")
    docker.build(f"{IMAGE}-changed", *build_flags("changed"), changed)
    before, after = (layers(docker, folder, tag) for tag in (IMAGE, f"{IMAGE}-changed"))
    shipped = sum(size for name, size in after.items() if name not in before)
    say(
        f"compressed, layers have {', '.join(f'{size / 1e6:.1f}' for size in after.values())} MB; "
        f"a change of one line ships {shipped / 1e6:.2f} MB"
    )
    expect("a change of one line ships under 2 MB", str(0 < shipped < 2e6), "True")
    docker("rmi", f"{IMAGE}-changed")


def layers(docker: Engine, folder: Path, tag: str) -> dict[str, int]:
    """The layers of an image from the lowest on, by their digests, with their sizes as sent."""
    archive = folder / "image.tar"
    docker("save", "--output", archive, tag)
    sizes = {}
    with tarfile.open(archive) as saved:
        (manifest,) = json.load(saved.extractfile("manifest.json"))  # type: ignore[arg-type]
        for name in manifest["Layers"]:
            content = saved.extractfile(name).read()  # type: ignore[union-attr]
            sizes[hashlib.sha256(content).hexdigest()] = len(gzip.compress(content, 6))
    archive.unlink()
    return sizes


async def check_stack(docker: Engine, folder: Path, rolls: int) -> str:
    """Start all of docker-compose.yml, loaded; kill a replica, and replace all `rolls` times."""
    ports = {
        name: free_port() for name in ("HTTP", "GRPC", "PROMETHEUS", "ALERTMANAGER", "GRAFANA")
    }
    models = folder / "models"
    shutil.copytree(ROOT / "models", models)
    (models / "broken/1").mkdir(parents=True)
    (models / "broken/1/model.onnx").write_bytes(b"no model")
    environment = {
        **docker.environment,
        "BASE_IMAGE": BASE,
        "BUILD_NETWORK": "host",
        "MODELS_DIR": str(models),
        "COHORT_IMAGE": IMAGE,
        **{f"{name.upper()}_IMAGE": f"localhost/{name}" for name in STAND_INS},
        **{f"{name}_PORT": str(port) for name, port in ports.items()},
    }

    async def make(verb: str) -> None:
        arguments = ("--no-print-directory", "-C", ROOT, verb, f"ENV_FILE={folder / 'env'}")
        await asyncio.to_thread(run, "make", *arguments, **environment)

    def replicas() -> list[str]:
        label = "label=com.docker.compose.service=cohort"
        return docker("ps", "--quiet", "--no-trunc", "--filter", label).split()

    say("make up")
    started = time.monotonic()
    try:
        await make("up")
        up_in = time.monotonic() - started
        say(f"all healthy in {up_in:.0f} s; sending predictions, 1 KB and 100 KB")
        async with traffic(ports["HTTP"]) as load:
            await scraped(ports["PROMETHEUS"], 2)
            await counted(ports["PROMETHEUS"], load.answered)
            say(f"Prometheus scrapes both replicas and nginx; {told(load)}; killing one")
            first = await asyncio.to_thread(replicas)
            os.kill(int(docker.inspect(first[0], ".State.Pid")), signal.SIGKILL)
            await asyncio.sleep(2)
            await asyncio.to_thread(docker.wait_for, first[0], ".State.Health.Status", "healthy")
            expect("restarts of the one killed", docker.inspect(first[0], ".RestartCount"), "1")
            say(f"it is back; {told(load)}; make roll")
            for number in range(rolls):
                rolled = time.time()
                await make("roll")
                say(f"make roll, {number + 1} of {rolls}; {told(load)}")
            second = await asyncio.to_thread(replicas)
            expect("replicas that stayed", str(set(first) & set(second)), "set()")
            expect("replicas", str(len(second)), "2")
            revision = run("git", "-C", ROOT, "rev-parse", "HEAD").strip()
            label = 'index .Config.Labels "org.opencontainers.image.revision"'
            built = docker.inspect(second[0], label)
            expect("the revision in its labels", built.removesuffix("-dirty"), revision)
            say(f"all replaced; {told(load)}")
            await scraped(ports["PROMETHEUS"], 2, since=rolled)
        say(f"Prometheus scrapes the new ones; {told(load)}; make down")
        expect("failed requests", str(load.failed.total()), "0")
        return f"up in {up_in:.0f} s; {told(load)}"
    except BaseException:
        for name in docker("ps", "--all", "--format", "{{.Names}} {{.Status}}").splitlines():
            print(name, docker.logs(name.split()[0]), sep="\n")
        raise
    finally:
        await make("down")


def told(load: Traffic) -> str:
    why = f" {dict(load.failed)}" if load.failed else ""
    return f"{load.answered[200]} predictions, {load.failed.total()} failed{why}"


async def scraped(port: int, replicas: int, *, since: float = 0) -> None:
    """Wait until Prometheus has counts of predictions from `replicas`, all started `since` then."""
    started = f'process_start_time_seconds{{job="cohort"}} > {since}'
    query = f"count(sum by (instance) (model_inference_total) > 0 and on (instance) {started})"
    await found(port, query, lambda seen: seen == replicas)


async def counted(port: int, answered: Mapping[int, int]) -> None:
    """Wait until Prometheus has as many of nginx's answers as callers got by now."""
    for status, number in list(answered.items()):
        query = f'sum(nginx_http_responses_total{{job="balancer",code="{status // 100}xx"}})'
        await found(port, query, number.__le__)


async def found(port: int, query: str, wanted: Callable[[int], bool]) -> None:
    """Wait until Prometheus's answer to a query is as wanted."""
    until = time.monotonic() + 90
    while not wanted(seen := await asyncio.to_thread(ask, port, query)):
        if time.monotonic() > until:
            raise SystemExit(f"cohort: Prometheus answers {seen} to {query}")
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
