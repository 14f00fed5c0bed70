"""The model repository extension: index and load.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
"""

from __future__ import annotations

from cohort.errors import InvalidInput, quoted
from cohort.open_inference.parameters import NO_PARAMETERS, Parameters
from cohort.operating import ControlPlane, Description, ModelReader


def repository_index(plane: ModelReader, *, only_ready: bool) -> list[Description]:
    """Return every version, or every READY one, with its state and the reason."""
    return [one for one in plane.index() if one["state"] == "READY" or not only_ready]


async def load_model(
    plane: ControlPlane, model: str, parameters: Parameters = NO_PARAMETERS
) -> None:
    """Load a model, or retry loading it, and wait until it serves.

    Raises InvalidInput if the request contains a config or files, ModelNotFound, or NotReady with
    the reason. All other parameters are ignored.
    """
    for name in parameters:
        if name == "config" or name.startswith("file:"):
            raise InvalidInput(
                f"parameters.{quoted(name)[1:-1]} is not supported: a model is loaded as the "
                "repository has it"
            )
    await plane.load(model)
