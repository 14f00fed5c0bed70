"""Call a server with the client that openapi-python-client generated; print the answers.

python generated_calls.py FOLDER URL, where FOLDER holds the package `generated`.
"""

# mypy: ignore-errors
# ruff: noqa: T201

import json
import sys

sys.path.insert(0, sys.argv[1])

from generated import Client
from generated.api.model_iris import models_iris_predict, v1_models_iris_predict
from generated.api.model_iris import v2_models_iris_infer as infer
from generated.api.models import get_models_model
from generated.models import (
    ModelsIrisPredictByName,
    ModelsIrisPredictByNameInputs,
    ModelsIrisPredictSimple,
)

ROW = [5.1, 3.5, 1.4, 0.2]

client = Client(base_url=sys.argv[2])
by_name = ModelsIrisPredictByName(inputs=ModelsIrisPredictByNameInputs(features=[ROW]))
v1_body = v1_models_iris_predict.V1ModelsIrisPredictOnlyRows.from_dict({"instances": [ROW]})
v2_body = infer.V2ModelsIrisInfer.from_dict(
    {"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 4], "data": ROW}]}
)
answers = {
    "by name": models_iris_predict.sync(client=client, body=by_name),
    "simple": models_iris_predict.sync(client=client, body=ModelsIrisPredictSimple(input_=[ROW])),
    "rows": v1_models_iris_predict.sync(client=client, body=v1_body),
    "infer": infer.sync(client=client, body=v2_body),
    "missing": get_models_model.sync("nobody", client=client),
}
print(json.dumps({name: answer.to_dict() for name, answer in answers.items()}))
