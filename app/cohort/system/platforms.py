"""Settings that hosting platforms give by their own environment variables.

SageMaker: https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html
Vertex AI: https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
Azure Machine Learning: https://learn.microsoft.com/azure/machine-learning/how-to-deploy-online-endpoints
Cloud Run: https://cloud.google.com/run/docs/container-contract

Imports only the standard library, because the image's probe uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Given(NamedTuple):
    """A value that a platform gives, and its variable."""

    variable: str
    value: str


MULTI_MODEL = "SAGEMAKER_MULTI_MODEL"

SAGEMAKER_PORT = "8080"
"""SageMaker's port for containers that it gives no port."""

VARIABLES: Mapping[str, tuple[str, ...]] = {
    "port": ("SAGEMAKER_BIND_TO_PORT", "AIP_HTTP_PORT", "PORT"),
    "models": ("AIP_STORAGE_URI", "AZUREML_MODEL_DIR"),
    "predict_route": ("AIP_PREDICT_ROUTE",),
    "health_route": ("AIP_HEALTH_ROUTE",),
    "multi_model": (MULTI_MODEL,),
}
"""The platforms' variables by setting, in order of precedence."""


def platform_settings(environ: Mapping[str, str]) -> dict[str, Given]:
    """Return the settings that a platform gives, by name. Empty variables do not count."""
    found = {
        setting: Given(name, environ[name])
        for setting, names in VARIABLES.items()
        for name in reversed(names)
        if environ.get(name)
    }
    if "port" not in found and environ.get(MULTI_MODEL, "").lower() == "true":
        found["port"] = Given(MULTI_MODEL, SAGEMAKER_PORT)
    if "models" in found:  # the folder may be one model, whose name is not known
        found["model_name"] = Given(found["models"].variable, "")
    return found
