"""Job that downloads a model from an MLflow registry, in an environment with MLflow's client.

It imports no dependency of Cohort, since that environment does not have them.
"""

from __future__ import annotations

import os

# MLflow retries a server that does not answer seven times, which takes minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


def download(uri: str, folder: str) -> dict[str, str]:
    """Download `models:/name/version` or `models:/name@alias` to `folder`; return its version.

    Raises the errors of MLflow and its stores.
    """
    import mlflow.artifacts
    from mlflow import MlflowClient

    client = MlflowClient()
    rest = uri.removeprefix("models:/")
    if "@" in rest:
        found = client.get_model_version_by_alias(*rest.rsplit("@", 1))
    else:
        found = client.get_model_version(*rest.rsplit("/", 1))
    exact = f"models:/{found.name}/{found.version}"  # an alias may move before the download
    mlflow.artifacts.download_artifacts(artifact_uri=exact, dst_path=folder)
    return {"name": found.name, "version": str(found.version), "run_id": found.run_id or ""}
