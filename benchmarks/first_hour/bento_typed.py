from typing import Annotated

import bentoml
import numpy as np
import onnxruntime
from bentoml.validators import DType, Shape

Features = Annotated[np.ndarray, DType("float32"), Shape((-1, 4))]


@bentoml.service
class Iris:
    def __init__(self):
        self.session = onnxruntime.InferenceSession("model.onnx")

    @bentoml.api
    def predict(self, features: Features) -> dict:
        label, probabilities = self.session.run(None, {"features": features})
        return {"label": label.tolist(), "probabilities": probabilities.tolist()}
