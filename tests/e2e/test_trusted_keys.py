"""Versions that must be signed, on a server with trusted keys."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from cohort.repository import Example, fingerprint_of
from tests.e2e.processes import Cohort, cohort, run_command
from tests.e2e.scrape import Scrape
from tests.signed import LAST, OURS, THEIRS, publish, trust
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trusted")
    publish(folder / "models", 1)
    (folder / "models/table/config.yaml").write_text("providers: [cpu]\n")
    (folder / "keys").mkdir()
    trust(folder / "keys" / "ours.pem", OURS)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Cohort]:
    models, keys = folder / "models", folder / "keys"
    with cohort(models, folder, trusted_keys=keys) as server:
        yield server


@pytest.fixture
def models(folder: Path, server: Cohort) -> Iterator[Path]:
    """The folder; in the end there is version 1 alone, signed, and our key alone is trusted."""
    models = folder / "models"
    yield models
    trust(folder / "keys" / "ours.pem", OURS)
    for version in (models / "table").glob("[2-9]"):
        version.rename(folder / f"gone-{len(list(folder.iterdir()))}")
    publish(models, 1)
    wait_until(lambda: answer(server) == 1.0 and versions(server).keys() == {"1"})
    wait_until(lambda: not versions(server)["1"]["reason"])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def answer(server: Cohort) -> float:
    """Return the factor of the model that answers, or 0 without an answer."""
    body = {"inputs": {"index": [[LAST]]}}
    response = httpx.post(server.url + "/models/table/predict", json=body)
    if not response.is_success:
        return 0.0
    return float(response.json()["outputs"]["y"][0][0]) / 10 / LAST


def versions(server: Cohort) -> dict[str, Any]:
    return {one["version"]: one for one in server.get("/models/table").json()["versions"]}


def reason(server: Cohort, version: str) -> str:
    found = versions(server).get(version)
    return "" if found is None else str(found["reason"])


def test_signed_version_serves_and_says_by_whom(server: Cohort, models: Path) -> None:
    """The log has the beginning of the key's fingerprint, and the description all of it."""
    signer = fingerprint_of(OURS.public_key())
    publish(models, 2)
    wait_until(lambda: answer(server) == 2.0)
    published = server.get("/models/table/versions/2").json()["published"]
    assert published == {
        "signed_by": signer,
        "source": None,
        "steps": [],
        "difference": None,
        "accuracy": None,
        "rows": None,
        "examples": 1,
    }
    assert f'"signed_by": "{signer[:12]}"' in server.logged or signer[:12] in server.logged
    assert Scrape(server.url).value("trusted_keys") == 1


def test_version_with_a_flipped_weight_byte_does_not_serve(
    server: Cohort, models: Path, tmp_path: Path
) -> None:
    """The reason names the file, and the version before still serves."""
    made = publish(tmp_path, 2)
    flip(made / "weights.bin")
    made.rename(models / "table" / "2")
    wait_until(lambda: "'weights.bin' is not the file that was" in reason(server, "2"))
    assert answer(server) == 1.0
    assert Scrape(server.url).value("model_state", model="table", version="2", state="UNAVAILABLE")


def test_version_that_is_changed_where_it_lies_serves_on_as_it_was(
    server: Cohort, models: Path
) -> None:
    """The loaded files were verified; the changed ones on disk do not replace them."""
    flip(models / "table" / "1" / "weights.bin")
    wait_until(lambda: "is not the file that was published" in reason(server, "1"))
    assert answer(server) == 1.0
    assert versions(server)["1"]["state"] == "READY"


def test_keys_are_rotated_without_a_pause(server: Cohort, folder: Path, models: Path) -> None:
    """Both are trusted for a while; versions with the new signature serve when the old key goes."""
    keys = folder / "keys" / "ours.pem"
    publish(models, 2, key=THEIRS)
    wait_until(lambda: "does not have" in reason(server, "2"))
    trust(keys, OURS, THEIRS)
    wait_until(lambda: answer(server) == 2.0)
    assert Scrape(server.url).value("trusted_keys") == 2
    trust(keys, THEIRS)
    wait_until(lambda: Scrape(server.url).value("trusted_keys") == 1)
    assert answer(server) == 2.0


def test_version_whose_key_is_taken_away_stops(server: Cohort, folder: Path, models: Path) -> None:
    """It stops even if no other version is left: the holder of a stolen key must not serve."""
    trust(folder / "keys" / "ours.pem", THEIRS)
    wait_until(lambda: answer(server) == 0.0)
    wait_until(lambda: "does not have" in reason(server, "1"))
    assert server.get("/health/ready").status_code == 503


def test_keys_that_cannot_be_read_change_nothing(
    server: Cohort, folder: Path, models: Path
) -> None:
    """Half a file is a mistake, not a decision; health and a metric say so."""
    (folder / "keys" / "ours.pem").write_text("-----BEGIN PUBLIC KEY-----\n")
    wait_until(lambda: Scrape(server.url).value("trusted_keys_config_valid") == 0)
    assert any("ours.pem" in one for one in server.get("/health").json()["problems"])
    assert answer(server) == 1.0


def check(models: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_command("check", models, *options)


def test_check_says_the_same(tmp_path: Path) -> None:
    """It reports unsigned versions, and versions with other outputs here, before a server does."""
    models, keys = tmp_path / "models", tmp_path / "ours.pem"
    trust(keys, OURS)
    publish(models, 1)
    (models / "table/config.yaml").write_text("providers: [cpu]\nversions: all\n")
    assert check(models, "--trusted-keys", str(keys)).returncode == 0
    publish(models, 2, key=None)
    other = Example({"index": np.array([[LAST]])}, {"y": np.array([[1.0]], np.float32)})
    publish(models, 3, examples=(other,))
    found = check(models, "--trusted-keys", str(keys))
    assert found.returncode == 1
    assert "table/2/model.onnx: it is not signed" in found.stdout
    assert "table/3/model.onnx: example 1 of its manifest gives other outputs here" in found.stdout
    assert "is off by 3e+04 at [0, 0]" in found.stdout
