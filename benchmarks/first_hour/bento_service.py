import bentoml
import numpy as np
import onnxruntime


@bentoml.service
class Iris:
    def __init__(self):
        self.session = onnxruntime.InferenceSession("model.onnx")

    @bentoml.api
    def predict(self, features: np.ndarray) -> dict:
        label, probabilities = self.session.run(None, {"features": features.astype(np.float32)})
        return {"label": label.tolist(), "probabilities": probabilities.tolist()}
