"""Rollouts of the digits models, served by real processes."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import numpy.typing as npt
import pytest

from cohort.notifications.webhooks import sign
from cohort.rpc import inference_pb2 as messages
from tests.bundled import digits_test_split
from tests.e2e.broken_digits import copy_digits, save_broken
from tests.e2e.load import Outcome, encode, send, under_load
from tests.e2e.processes import Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.receiver import Receiver
from tests.waiting import until, wait_until

TOKEN = {"authorization": "Bearer secret"}
PATH = "/models/digits/predict"


@cache
def images() -> npt.NDArray[np.float32]:
    """Some digits, FP32 [64, 1, 8, 8]."""
    return digits_test_split()[0][:64]


@cache
def bodies() -> list[dict[str, Any]]:
    """Requests for these, one each."""
    return [{"inputs": {"image": image[None].tolist()}} for image in images()]


TENTH = "variants: {stable: {version: 1, weight: 90}, canary: {version: 2, weight: 10}}"
THIRD = "variants: {stable: {version: 1, weight: 2}, canary: {version: 3, weight: 1}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the good digits."""
    copy_digits(tmp_path / "models")
    return tmp_path


def write(folder: Path, rollout: str) -> None:
    """Edit the file as a careful editor does."""
    temporary = folder / "rollouts.yaml.new"
    temporary.write_text(f"digits: {{{rollout}}}\n" if rollout else "")
    temporary.replace(folder / "rollouts.yaml")


def serve(folder: Path, *, ready: bool = True, grpc_port: int = 0, **settings: Any) -> Any:
    """A replica; those of one folder share the state."""
    return cohort(
        folder / "models",
        folder,
        ready=ready,
        rollouts=folder / "rollouts.yaml",
        admin_token="secret",
        grpc_port=grpc_port,
        **settings,
    )


def endless(**headers: str) -> Iterator[bytes]:
    """Good requests without end."""
    return itertools.cycle([encode(PATH, body, headers) for body in bodies()])


def shown(server: Cohort) -> dict[str, Any]:
    """The rollout as an operator sees it."""
    rollout: dict[str, Any] = httpx.get(f"{server.url}/models/digits").json()["rollout"]
    return rollout


def events(server: Cohort, name: str) -> list[dict[str, Any]]:
    """The lines of the log that say so."""
    lines = server.logged.splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [line for line in found if line["event"] == name]


def canary(server: Cohort) -> dict[str, Any]:
    """One of its variants."""
    return next(one for one in shown(server)["variants"] if one["name"] == "canary")


async def test_shares_are_those_of_the_file(folder: Path) -> None:
    """Shares of 20,000 requests are within 10 standard deviations; metrics count the same."""
    write(folder, TENTH)
    with serve(folder) as server:
        requests = itertools.islice(endless(), 20_000)
        load = await send(server.url, requests)
        scrape = Scrape(server.url)
    assert load.by(lambda one: one.code) == {"OK": 20_000}
    got = load.by(lambda one: one.variant)
    assert abs(got["canary"] - 2000) < 10 * sqrt(20_000 * 0.1 * 0.9)
    assert {(one.variant, one.version) for one in load.outcomes} == {
        ("stable", "1"),
        ("canary", "2"),
    }
    assert scrape.by("model_inference_total", "variant", model="digits", code="OK") == got
    assert scrape.by("rollout_weight", "variant") == {"stable": 90, "canary": 10}


def variants_of(server: Cohort, users: list[str], body: object = None) -> list[str]:
    """Return the variant that answers each of `users`, sent in the header."""
    with httpx.Client(base_url=server.url) as client:
        body = body or bodies()[0]
        answers = [client.post(PATH, json=body, headers={"X-User": one}) for one in users]
    return [answer.json()["variant"] for answer in answers]


async def test_a_caller_stays_on_a_variant_everywhere(folder: Path) -> None:
    """It stays in two replicas, after a restart, and over every protocol."""
    write(folder, "variants: {a: {version: 1, weight: 1}, b: {version: 2, weight: 1}}, "
                  "sticky: {header: X-User}")  # fmt: skip
    users = [f"user-{number}" for number in range(60)]
    port = free_port()
    with serve(folder, grpc_port=port) as one, serve(folder) as other:
        found = variants_of(one, users)
        assert set(found) == {"a", "b"}
        assert variants_of(other, users) == found
        tensor = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8],
                  "data": images()[0].ravel().tolist()}  # fmt: skip
        instances = {"instances": images()[:1].tolist()}
        with httpx.Client(base_url=one.url) as client:
            for user, variant in list(zip(users, found, strict=True))[:12]:
                headers = {"x-user": user}
                v2 = client.post(
                    "/v2/models/digits/infer", json={"inputs": [tensor]}, headers=headers
                )
                assert v2.json()["parameters"] == {"variant": variant}
                v1 = client.post("/v1/models/digits:predict", json=instances, headers=headers)
                assert v1.headers["x-variant"] == variant
                pinned = client.post(f"/v1/models/digits/labels/{variant}:predict", json=instances)
                assert pinned.headers["x-variant"] == variant
                assert pinned.headers["x-model-version"] == v1.headers["x-model-version"]
                assert await over_grpc(one, user) == variant
        pinned = httpx.post(f"{one.url}/models/digits/versions/2/predict", json=bodies()[0])
        assert "variant" not in pinned.json()
    with serve(folder) as again:
        assert variants_of(again, users) == found


async def over_grpc(server: Cohort, user: str) -> str:
    """The variant that answers a call with the user's name in its metadata."""
    request = messages.ModelInferRequest(
        model_name="digits", raw_input_contents=[images()[0].tobytes()]
    )
    request.inputs.add(name="image", datatype="FP32", shape=[1, 1, 8, 8])
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelInferResponse.FromString,
        )
        answer = await call(request, metadata=(("x-user", user),))
    return str(answer.parameters["variant"].string_param)


async def test_a_parameter_keeps_a_caller_too(folder: Path) -> None:
    """The same in every protocol that has parameters, text or number."""
    write(folder, "variants: {a: {version: 1, weight: 1}, b: {version: 2, weight: 1}}, "
                  "sticky: {parameter: user}")  # fmt: skip
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8],
              "data": images()[0].ravel().tolist()}  # fmt: skip
    with serve(folder) as server, httpx.Client(base_url=server.url) as client:
        for user in range(10):
            found = set()
            for value in (user, str(user)):
                body = {**bodies()[0], "parameters": {"user": value}}
                found.add(client.post(PATH, json=body).json()["variant"])
                body = {"inputs": [tensor], "parameters": {"user": value}}
                answer = client.post("/v2/models/digits/infer", json=body).json()
                found.add(answer["parameters"]["variant"])
            assert len(found) == 1


async def test_bad_inputs_alone_roll_nothing_back(folder: Path) -> None:
    """They are refused by the decoder, or fail in a run of either version, from a sticky caller."""
    save_broken(folder / "models", "raises", version=1)
    save_broken(folder / "models", "raises")
    write(folder, f"{THIRD}, sticky: {{header: x-user}}, "
                  "guard: {max_error_rate_increase: 0.01, min_requests: 50}")  # fmt: skip
    failing = [{"inputs": {"image": [[[[1.0] * 8] * 8]]}}]
    refused = [{"inputs": {"image": [[1.0]]}}, {"inputs": {"image": "x"}}, {"inputs": {}}]
    fine = [{"inputs": {"image": [[[[0.2] * 8] * 8]]}}]
    with serve(folder) as server:
        users = [f"user-{number}" for number in range(40)]
        found = dict(zip(users, variants_of(server, users, fine[0]), strict=True))
        bad = next(user for user, variant in found.items() if variant == "canary")
        # A caller counts once in two seconds: were it now and then answered, mostly that would.
        requests = [encode(PATH, body, {"x-user": bad}) for body in (*failing, *refused)] * 15
        requests += [encode(PATH, fine[0], {"x-user": user}) for user in users if user != bad]

        def judged() -> bool:
            seen = canary(server)["evidence"]["errors"]
            return bool(seen["requests"] > 20 and seen["failed_on_both"] > 1)

        async with under_load(server.url, itertools.cycle(requests)) as load:
            await until(judged)
        after = canary(server)
    assert load.by(lambda one: str(one.status))["200"] > 0
    assert not after["rolled_back"]
    assert after["evidence"]["errors"]["bad"] == 0
    assert after["evidence"]["errors"]["failed_on_both"] > 0


GUARDS = {
    "raises": "guard: {max_error_rate_increase: 0.01, min_requests: 50}",
    "slow": "guard: {max_latency_ratio: 2, min_requests: 50}",
    "wrong": "shadow: {version: 3}, guard: {max_disagreement: 0.02, min_requests: 50}",
}
CALLERS = 48
"""Each counts as evidence once in two seconds."""

REASONS = {"raises": "errors", "slow": "latency", "wrong": "disagreement"}


@pytest.mark.parametrize("how", ["raises", "slow", "wrong"])
async def test_a_bad_canary_is_rolled_back_under_load(folder: Path, how: str) -> None:
    """After the decision no request fails or reaches it; replicas and restarts keep it out."""
    save_broken(folder / "models", how)
    write(folder, f"{THIRD}, {GUARDS[how]}")
    with serve(folder) as server, serve(folder) as replica:
        async with under_load(server.url, endless(), callers=CALLERS) as load:
            await until(lambda: canary(server)["rolled_back"])
            decided = time.monotonic()
            await until(lambda: canary(replica)["rolled_back"])
            await until(lambda: sum(one.asked > decided for one in load.outcomes) > 100)
        after = [one for one in load.outcomes if one.asked > decided]
        assert {(one.code, one.variant) for one in after} == {("OK", "stable")}, after[:3]
        variant = canary(server)
        assert (variant["reason"], variant["share"]) == (REASONS[how], 0)
        counted = Scrape(server.url).by("rollout_rollbacks_total", "reason", variant="canary")
        assert counted == {REASONS[how]: 1}
        assert Scrape(server.url).by("rollout_weight", "variant")["canary"] == 0
        logged = wait_until(lambda: events(server, "rolled back"))[0]
        assert (logged["level"], logged["reason"]) == ("warning", REASONS[how])
        assert "requests" in logged["detail"]
        assert logged["to_do"].endswith("cohort rollout clear digits canary")
        assert server.get("/health").json()["rolled_back"] == {"digits/3": logged["detail"]}
        assert shown(server)["shadow"] is None or shown(server)["shadow"]["stopped"]
    with serve(folder) as again:
        assert canary(again)["rolled_back"]
        assert canary(again)["reason"] == REASONS[how]
        cleared = httpx.post(f"{again.url}/admin/rollouts/digits/clear", headers=TOKEN).json()
        assert (cleared["saved"], cleared["variants"][1]["rolled_back"]) == (True, False)
        load = await send(again.url, itertools.islice(endless(), 60), callers=2)
        assert load.by(lambda one: one.variant).keys() != {"stable"}
    assert not list((folder / "state").rglob("*.json"))


async def test_edits_under_load_fail_nobody(folder: Path) -> None:
    """Weights, versions that load and go, and a mistake, which leaves all as it was."""
    write(folder, TENTH)

    def of(outcome: Outcome) -> str:
        return f"{outcome.variant} {outcome.version}"

    with serve(folder) as server:
        async with under_load(server.url, endless()) as load:

            async def edit(rollout: str, expected: set[str]) -> None:
                write(folder, rollout)
                await until(lambda: {of(one) for one in load.outcomes[-200:]} == expected)

            await edit(TENTH.replace("90", "1"), {"stable 1", "canary 2"})
            await edit("variants: {new: {version: 2, weight: 1}}", {"new 2"})
            await edit("variants: {old: {version: 1, weight: 1}}", {"old 1"})
            write(folder, "variants: {old: {version: 1, wieght: 1}}")
            await until(lambda: Scrape(server.url).value("rollouts_config_valid") == 0)
            problems = httpx.get(f"{server.url}/health").json()["problems"]
            assert any(
                "digits.variants.old: unknown key 'wieght'" in problem for problem in problems
            )
            wait_until(lambda: '"digits.variants.old"' in server.logged)
            told = time.monotonic()
            await until(lambda: load.by(of, since=told).total() > 200)
            assert set(load.by(of, since=told)) == {"old 1"}
            await edit("", {" 2"})  # no rollout: the highest version
        assert Scrape(server.url).value("rollouts_config_valid") == 1
    assert load.by(lambda one: one.code).keys() == {"OK"}


def test_a_broken_file_at_the_start_lets_nobody_in(folder: Path) -> None:
    """The versions of callers are unknown, so the replica is not ready until the file is fixed."""
    (folder / "rollouts.yaml").write_text("digits: {variants: 3}")
    with serve(folder, ready=False) as server:
        answer = server.wait_for("/health/ready", 503)
        assert "digits.variants" in answer.json()["error"]
        assert httpx.post(server.url + PATH, json=bodies()[0]).status_code == 503
        write(folder, TENTH)
        server.wait_for("/health/ready")
        assert httpx.post(server.url + PATH, json=bodies()[0]).status_code == 200


def test_a_state_folder_that_takes_nothing_stops_nobody(folder: Path) -> None:
    """The rollback holds here, is reported as unsaved, and is written once the folder is fixed."""
    write(folder, TENTH)
    (folder / "state").touch()
    with serve(folder) as server:
        rolled = httpx.post(f"{server.url}/admin/rollouts/digits/rollback/canary", headers=TOKEN)
        assert (rolled.status_code, rolled.json()["saved"]) == (200, False)
        assert {variants_of(server, ["a"])[0] for _ in range(30)} == {"stable"}
        problems = httpx.get(f"{server.url}/health").json()["problems"]
        assert any("cannot be written" in problem for problem in problems)
        server.wait_for("/health/ready")
        (folder / "state").unlink()
        wait_until(lambda: shown(server)["saved"])
    assert (folder / "state/rollouts/digits/2.json").exists()


def test_admin_routes_need_the_token(folder: Path) -> None:
    """They all do; a variant is rolled back and cleared by name."""
    write(folder, TENTH)
    with serve(folder) as server:
        address = f"{server.url}/admin/rollouts"
        assert httpx.get(address).status_code == 401
        assert httpx.post(f"{address}/digits/rollback/canary").status_code == 401
        assert httpx.get(address, headers=TOKEN).json().keys() == {"digits"}
        answer = httpx.post(f"{address}/digits/rollback/canary", headers=TOKEN).json()
        assert [one["rolled_back"] for one in answer["variants"]] == [False, True]
        answer = httpx.post(f"{address}/digits/clear/canary", headers=TOKEN).json()
        assert not any(one["rolled_back"] for one in answer["variants"])
        refused = httpx.post(f"{address}/digits/rollback/stable", headers=TOKEN)
        assert (refused.status_code, refused.json()["code"]) == (400, "InvalidInput")
        missing = httpx.post(f"{address}/iris/clear", headers=TOKEN)
        assert missing.status_code == 404


async def test_a_ramp_goes_up_until_it_is_rolled_back_and_a_receiver_is_told(folder: Path) -> None:
    """The server takes each step with a signed notification; the rollback takes all of it away."""
    write(folder, "variants: {stable: {version: 1, weight: 100}, "
                  "canary: {version: 2, ramp: [20%, 40%, 60%], soak_minutes: [0.01, 0.01, 60]}}, "
                  "guard: {max_error_rate_increase: 0.5}")  # fmt: skip
    receiver = Receiver(200)
    secret = folder / "secret"
    secret.write_text("signed-by-this\n")
    with serve(folder, webhooks=receiver.url, webhook_secret_file=secret) as server:
        async with under_load(server.url, endless()):
            await until(lambda: canary(server)["share"] == 0.6)
            assert shown(server)["ramp"]["step"] == 3
            httpx.post(f"{server.url}/admin/rollouts/digits/rollback/canary", headers=TOKEN)
            assert (canary(server)["share"], shown(server)["ramp"]["state"]) == (0, "rolled back")
        await until(lambda: len(receiver.got) == 3)
        scrape = Scrape(server.url)
        assert scrape.value("webhook_notifications_total", outcome="delivered") == 3
        assert scrape.value("rollout_ramp_step") == 0
    receiver.close()
    said = [json.loads(body) for _, body in receiver.got]
    assert [one["type"] for one in said] == ["rollout.ramp_step"] * 2 + ["rollout.rolled_back"]
    assert [one["data"].get("percent") for one in said] == [40, 60, None]
    assert said[2]["data"]["reason"] == "operator"
    headers, body = receiver.got[0]
    stamp = headers["webhook-timestamp"]
    assert headers["webhook-signature"] == sign(
        b"signed-by-this", headers["webhook-id"], stamp, body
    )
    assert "token-in" not in server.logged
