"""The job that downloads a model of an MLflow registry, in an environment that has MLflow's client.

It imports nothing of Cohort's dependencies, which that environment does not have.
"""

from __future__ import annotations

import os

# MLflow tries a server that does not answer seven times, for minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


def download(uri: str, folder: str) -> dict[str, str]:
    """Which version `models:/name/version` or `models:/name@alias` is, once it is in `folder`.

    Raises whatever MLflow and its stores raise.
    """
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
