"""Load Azure ML's YAML with azure-ai-ml, offline. A test runs this in .venv-platforms.

`python azure_files.py FILE…` prints what was loaded as one JSON object, by the file's name: what
Azure would be sent, or {"error": …}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from azure.ai.ml import (
    load_batch_deployment,
    load_batch_endpoint,
    load_online_deployment,
    load_online_endpoint,
)
from azure.ai.ml.entities._load_functions import load_model_batch_deployment

LOADERS = {
    "managedOnlineEndpoint": load_online_endpoint,
    "managedOnlineDeployment": load_online_deployment,
    "batchEndpoint": load_batch_endpoint,
    "batchDeployment": load_batch_deployment,
    "modelBatchDeployment": load_model_batch_deployment,
}


def load(file: Path) -> dict[str, Any]:
    """Load one file by its `$schema`, and return what Azure would be sent, or the error."""
    kind = file.read_text().partition("/latest/")[2].partition(".")[0]
    try:
        loaded = LOADERS[kind](file)
    except Exception as error:  # noqa: BLE001 - the test reads it
        return {"error": str(error)}
    return json.loads(json.dumps(loaded._to_dict(), default=str))  # type: ignore[no-any-return]


if __name__ == "__main__":
    files = map(Path, sys.argv[1:])
    print(json.dumps({file.name: load(file) for file in files}))  # noqa: T201
