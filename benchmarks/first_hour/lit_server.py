import litserve
import numpy as np
import onnxruntime


class Iris(litserve.LitAPI):
    def setup(self, device):
        self.session = onnxruntime.InferenceSession("model.onnx")

    def predict(self, request):
        features = np.array(request["features"], np.float32)
        label, probabilities = self.session.run(None, {"features": features})
        return {"label": label.tolist(), "probabilities": probabilities.tolist()}


if __name__ == "__main__":
    litserve.LitServer(Iris()).run(port=8000)
