"""Two replicas under a load that has a bit of everything."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import numpy as np
import numpy.typing as npt

from tests import onnx_models
from tests.bundled import digits_test_split, iris_test_split
from tests.deploy.prometheus import RULES, Prometheus, configuration, prometheus
from tests.e2e.broken_digits import copy_digits, save_broken, slow
from tests.e2e.load import Outcome, encode, send
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.waiting import PATIENCE

TOKEN = {"authorization": "Bearer secret"}

CHATS = 8
"""Requests to the language model, at once."""

ROLLOUTS = """
digits:
  variants: {stable: {version: 1, weight: 2}, canary: {version: 3, weight: 1}}
  shadow: {version: 4, sample: 1}
  guard: {max_error_rate_increase: $LIMIT, max_disagreement: 1, confidence: 0.999999}
slow:
  variants: {a: {version: 1, weight: 1}, b: {version: 2, weight: 1}}
"""


def put_models(folder: Path, *, error_limit: float) -> None:
    """Good, failing, wrong, slow and unreadable ones, and how callers are split among them."""
    models = folder / "models"
    copy_digits(models)  # 1 and 2
    save_broken(models, "raises", version=3)
    save_broken(models, "wrong", version=4)
    unreadable = models / "digits" / "5" / "model.onnx"
    unreadable.parent.mkdir()
    unreadable.write_bytes(b"no model at all")
    shutil.copytree(MODELS / "iris", models / "iris")
    for version in (1, 2):
        onnx_models.save(slow(), models / "slow" / str(version) / "model.onnx")
    (models / "slow" / "config.yaml").write_text(
        "versions: all\nproviders: [cpu]\nbatching: {max_queue_size: 2, max_batch_size: 1}\n"
        "objective_ms: 1\n"
    )
    (models / "iris" / "config.yaml").write_text("providers: [cuda, cpu]\n")
    shutil.copytree(MODELS / "smalltalk", models / "smalltalk")
    (folder / "rollouts.yaml").write_text(ROLLOUTS.replace("$LIMIT", str(error_limit)))
    (folder / "secret").write_text("signed-by-this")


@cache
def images() -> npt.NDArray[np.float32]:
    """Some digits, FP32 [64, 1, 8, 8]."""
    return digits_test_split()[0][:64]


FLOWER_ROWS = cache(iris_test_split)


def digits(number: int, *, version: str = "", bright: bool) -> bytes:
    """A digit; the canary fails on `bright` ones."""
    image = images()[number % len(images())][None] * (1.0 if bright else 0.4)
    body = {"model": "digits", "inputs": {"image": image.tolist()}}
    return encode("/predict", body | ({"version": version} if version else {}))


def flowers(number: int, *, rows: int) -> bytes:
    """Some flowers."""
    return encode(
        "/models/iris/predict", {"inputs": {"features": FLOWER_ROWS()[0][number:][:rows].tolist()}}
    )


def wrong(number: int) -> bytes:
    """A caller's mistake."""
    wrongs = (
        encode("/models/iris/predict", {"inputs": {"features": [[1.0]]}}),
        encode("/models/iris/versions/9/predict", {"inputs": {"features": [[1.0]]}}),
    )
    return wrongs[number % 2]


def mixed(count: int) -> list[bytes]:
    """Requests of every kind but the slow ones, `count` in all."""
    requests = []
    for number in range(count):
        kind = number % 10
        if kind < 6:
            requests.append(digits(number, bright=number % 4 == 0))
        elif kind < 8:
            requests.append(flowers(number % 20, rows=1 + number % 3))
        elif kind == 8:
            requests.append(wrong(number // 10))
        else:
            requests.append(digits(number, version="5", bright=False))  # its model is invalid
    return requests


async def chat(url: str, number: int) -> Outcome:
    """Ask the language model; every other answer is a stream, and all prompts begin alike."""
    message = {"role": "user", "content": f"{'How are you? ' * 40}{number}"}
    streamed = number % 2 == 0
    body = {"model": "smalltalk", "messages": [message], "max_tokens": 40, "stream": streamed}
    asked = time.monotonic()
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    version = answer.headers["x-model-version"]
    return Outcome(asked, time.monotonic() - asked, answer.status_code, "", version, "OK")


def slow_request() -> bytes:
    """One that takes long."""
    return encode("/models/slow/predict", {"inputs": {"image": images()[:1].tolist()}})


@dataclass(frozen=True)
class Asked:
    """The requests of a client to one replica, and their answers, by model."""

    outcomes: Mapping[str, Sequence[Outcome]]
    rows: int  # flowers in the valid requests

    def counts(self, model: str) -> Counter[tuple[str, str, str]]:
        """Count answers by version, variant and code; errors do not name a version."""
        return Counter((one.version, one.variant, one.code) for one in self.outcomes[model])

    def codes(self, *models: str) -> Counter[str]:
        """Answers by code, of all models unless some are named."""
        return Counter(
            one.code for model in models or self.outcomes for one in self.outcomes[model]
        )


async def ask(url: str, *, requests: int) -> Asked:
    """Mixed requests from four callers, slow ones from twelve at once, and chats all at once."""
    outcomes: dict[str, Sequence[Outcome]] = {}
    everything = mixed(requests)
    for model in ("digits", "iris"):
        of_model = [one for one in everything if model.encode() in one]
        outcomes[model] = (await send(url, iter(of_model), callers=4)).outcomes
    outcomes["slow"] = (await send(url, iter([slow_request()] * 36), callers=12)).outcomes
    outcomes["smalltalk"] = await asyncio.gather(*(chat(url, one) for one in range(CHATS)))
    rows = sum(1 + number % 3 for number in range(requests) if number % 10 in {6, 7})
    return Asked(outcomes, rows)


class Timed(NamedTuple):
    """Seconds that a request took: in the server, by its answer, and for its caller."""

    told: float
    waited: float


def ask_one_by_one(url: str, count: int) -> list[Timed]:
    """Slow requests, one after the other."""
    body = {"inputs": {"image": images()[:1].tolist()}}
    times = []
    with httpx.Client(base_url=url) as client:
        for _ in range(count):
            began = time.monotonic()
            answer = client.post("/models/slow/predict", json=body)
            waited = time.monotonic() - began
            times.append(Timed(answer.json()["inference_time_ms"] / 1000, waited))
    return times


def leave(url: str) -> None:
    """Ask for something slow, and go before it is there."""
    address = urlsplit(url)
    with socket.create_connection((str(address.hostname), int(address.port or 0))) as connection:
        connection.sendall(slow_request())


@dataclass(frozen=True)
class Fleet:
    """The replicas, and the Prometheus that watches them."""

    replicas: Sequence[Cohort]
    watched: Prometheus

    @property
    def instances(self) -> list[str]:
        return [one.url.removeprefix("http://") for one in self.replicas]


@contextmanager
def fleet(folder: Path, *, seconds: float = 1, error_limit: float = 0.9) -> Iterator[Fleet]:
    """Run two replicas that share rollouts and state, scraped every `seconds`.

    The canary of digits fails for every fourth request; `error_limit` is the guard's for it.
    """
    put_models(folder, error_limit=error_limit)
    settings: dict[str, Any] = {
        "rollouts": folder / "rollouts.yaml",
        "admin_token": "secret",
        "webhooks": f"http://127.0.0.1:{free_port()}",  # not in use
        "webhook_secret_file": folder / "secret",
    }
    models = folder / "models"
    with (
        cohort(models, folder, ready=False, **settings) as one,
        cohort(models, folder, ready=False, **settings) as other,
    ):
        replicas = (one, other)
        for replica in replicas:
            replica.wait_for("/health/ready")
        targets = {"cohort": [replica.url.removeprefix("http://") for replica in replicas]}
        with prometheus(folder, configuration(targets, rules=RULES, seconds=seconds)) as watched:
            watched.wait_for('sum(up{job="cohort"}) == 2')
            yield Fleet(replicas, watched)


def roll_back(server: Cohort, model: str, variant: str) -> None:
    """Take a variant out, as an operator does."""
    url = f"{server.url}/admin/rollouts/{model}/rollback/{variant}"
    httpx.post(url, headers=TOKEN).raise_for_status()
