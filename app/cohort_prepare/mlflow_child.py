"""The process that has MLflow's client: `python mlflow_child.py URI FOLDER ANSWER`.

Downloads a registered model into FOLDER, and writes which one it is, or what is wrong, as JSON into
the file ANSWER. It imports nothing of Cohort, which this environment does not have.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

# MLflow tries a server that does not answer seven times, for minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


def download(uri: str, folder: str) -> dict[str, str]:
    """Which version `models:/name/version` or `models:/name@alias` is, once it is in `folder`."""
    import mlflow.artifacts
    from mlflow import MlflowClient

    client = MlflowClient()
    rest = uri.removeprefix("models:/")
    if "@" in rest:
        found = client.get_model_version_by_alias(*rest.rsplit("@", 1))
    else:
        found = client.get_model_version(*rest.rsplit("/", 1))
    exact = f"models:/{found.name}/{found.version}"  # an alias may move meanwhile
    mlflow.artifacts.download_artifacts(artifact_uri=exact, dst_path=folder)
    return {"name": found.name, "version": str(found.version), "run_id": found.run_id or ""}


def _main(uri: str, folder: str, answer_file: str) -> None:
    try:
        answer = download(uri, folder)
    except Exception as error:  # noqa: BLE001 - whatever MLflow and its stores raise
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"}
    Path(answer_file).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
