"""`cohort key new`, and the reports of `cohort check` on the files of keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.auth import digest_of, parse_keys
from cohort.cli.options import MISUSED, PROBLEMS
from tests import onnx_models
from tests.auth.issuing import jwk_of, jwks, private_key
from tests.cli.test_cli import run


def test_the_key_is_on_the_first_line_and_its_entry_below() -> None:
    """The rest of the output goes into the file as it is, after other entries."""
    printed = [run("key", "new", name).stdout.splitlines() for name in ("web", "batch")]
    (web, *entry), (batch, *other) = printed
    keys = parse_keys("\n".join([*entry, *other]), "keys.yaml")
    assert [key.name for key in keys] == ["web", "batch"]
    assert [key.sha256 for key in keys] == [digest_of(web).hex(), digest_of(batch).hex()]
    assert web != batch


def test_options_go_into_the_entry() -> None:
    """Names are quoted if YAML would read them as other types."""
    options = ["--model", "iris", "--model", "true", "--rate", "1000000", "--concurrency", "10"]
    options += ["--priority", "-1"]
    key, *entry = run("key", "new", "123", *options).stdout.splitlines()
    (made,) = parse_keys("\n".join(entry), "keys.yaml")
    assert (made.name, made.models, made.rate) == ("123", ("iris", "true"), 1_000_000)
    assert (made.concurrency, made.priority) == (10, -1)
    assert key not in "".join(entry)
    (admin,) = parse_keys(run("key", "new", "ops", "--admin").stdout.partition("\n")[2], "")
    assert admin.admin


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["we b"], "name: 'we b' is not a valid name"),
        (["web", "--rate", "0"], "rate: must be from 0.001"),
        (["web", "--priority", "9"], "priority: must be from -1 to 1"),
        (["web", "--admin", "--model", "iris"], "models: an admin sees every model"),
    ],
)
def test_a_wrong_entry_prints_no_key(arguments: list[str], said: str) -> None:
    """The error names the mistake for which the file would be refused."""
    result = run("key", "new", *arguments)
    assert result.exit_code == MISUSED
    assert not result.stdout
    assert said in result.stderr


def test_check_reads_the_file_of_keys(tmp_path: Path) -> None:
    """It reports mistakes in the file, and models that do not exist."""
    models, file = tmp_path / "models", tmp_path / "keys.yaml"
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    check = ("check", "--no-open", "--models", str(models), "--api-keys", str(file))
    file.write_text(run("key", "new", "web", "--model", "mlp").stdout.partition("\n")[2])
    assert run(*check).exit_code == 0
    file.write_text(run("key", "new", "web", "--model", "mlq").stdout.partition("\n")[2])
    result = run(*check)
    assert result.exit_code == PROBLEMS
    assert "keys.yaml: [0].models[0]: model 'mlq' not found; did you mean 'mlp'?" in result.stdout
    file.write_text("- {}")
    assert "keys.yaml: [0].name: is missing" in run(*check).stdout


def test_check_reads_the_keys_of_an_issuer(tmp_path: Path) -> None:
    """It also reports a missing file of keys if an entry needs one."""
    models, file, jwks_file = tmp_path / "models", tmp_path / "keys.yaml", tmp_path / "jwks.json"
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    file.write_text('- {name: staff, subject: "*"}')
    check = ("check", "--no-open", "--models", str(models), "--api-keys", str(file))
    said = "keys.yaml: [0].subject: COHORT_JWKS is not set: tokens cannot be verified"
    assert said in run(*check).stdout
    issuer = ("--jwks", str(jwks_file), "--jwt-issuer", "i", "--jwt-audience", "a")
    jwks_file.write_text(jwks())
    assert run(*check, *issuer).exit_code == 0
    jwks_file.write_text(jwks(jwk_of(private_key())))
    assert "jwks.json: keys[0].d: is a private key" in run(*check, *issuer).stdout
