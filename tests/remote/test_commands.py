"""Commands on a remote repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from cohort.cli import cli
from tests import onnx_models
from tests.e2e.processes import ROOT
from tests.remote.servers import Bucket


def run(tmp_path: Path, *arguments: str, **environment: str) -> Result:
    """Run a command with a separate cache."""
    clean = {name: None for name in os.environ if name.startswith("COHORT_")}
    env = {**clean, "COHORT_CACHE": str(tmp_path / "cache"), **environment}
    return CliRunner().invoke(cli, arguments, env=env, prog_name="cohort")


def test_check_opens_what_is_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    """Each version that would be served is fetched and opened, and faults are reported."""
    bucket.put("m/1/model.onnx", onnx_models.save(onnx_models.mlp(), tmp_path / "model.onnx"))
    good = run(tmp_path, "check", bucket.url)
    assert (good.exit_code, good.stderr) == (0, "")
    assert "No problems: 1 model, 1 version." in good.stdout
    bucket.put("m/2/model.onnx", b"no model")
    bucket.put("m/two/model.onnx", b"no version")
    bad = run(tmp_path, "check", bucket.url)
    assert bad.exit_code == 1
    assert "m/2/model.onnx" in bad.stdout
    assert "m/two: a version's folder must be named by its number" in bad.stdout
    gone = run(tmp_path, "check", bucket.url, AWS_ENDPOINT_URL="http://127.0.0.1:1")
    assert gone.exit_code == 1
    assert "cannot be reached" in gone.stdout


def test_profile_measures_a_model_of_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    """The model is fetched first."""
    bucket.put("m/1/model.onnx", onnx_models.save(onnx_models.mlp(), tmp_path / "model.onnx"))
    done = run(tmp_path, "profile", "m", "--models", bucket.url, "--json")
    assert done.exit_code == 0, done.stderr
    assert '"version": "1"' in done.stdout


def test_folder_needs_no_obstore(tmp_path: Path) -> None:
    """It is not imported for a folder; if it is missing, an address reports what to install."""
    program = (
        "import sys, cohort.process, cohort.cli\n"
        "assert 'obstore' not in sys.modules\n"
        "sys.modules['obstore'] = None\n"
        "sys.argv[1:] = ['check', 's3://bucket/models']\n"
        "cohort.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "COHORT_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "s3://bucket/models needs obstore: install the extra cohort[remote]" in done.stdout


def test_model_is_not_made_in_a_bucket(tmp_path: Path) -> None:
    """`cohort init` makes only folders, and its error explains that."""
    done = run(tmp_path, "init", "m", "--models", "s3://bucket/models")
    assert done.exit_code == 1
    assert "s3://bucket/models is not a folder" in done.stderr
