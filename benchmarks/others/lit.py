"""The same model behind LitServe, its defaults. MODEL names the file, PORT the port."""

import os

import litserve  # type: ignore[import-not-found]
import numpy as np
import onnxruntime as ort

KINDS = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


class Api(litserve.LitAPI):  # type: ignore[misc]
    """Reads the tutorials' form."""

    def setup(self, device: str) -> None:
        self.session = ort.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"])
        self.inputs = {one.name: KINDS[one.type] for one in self.session.get_inputs()}

    def decode_request(self, request: dict[str, object]) -> dict[str, object]:
        if len(self.inputs) == 1:
            (name, dtype) = next(iter(self.inputs.items()))
            return {name: np.array(request["input"], dtype=dtype)}
        return {name: np.array(request[name], dtype=dtype) for name, dtype in self.inputs.items()}

    def predict(self, feeds: dict[str, object]) -> object:
        return self.session.run(None, feeds)[0]

    def encode_response(self, output: np.ndarray) -> dict[str, object]:
        return {"prediction": output.tolist()}


if __name__ == "__main__":
    litserve.LitServer(Api(), accelerator="cpu").run(
        port=int(os.environ["PORT"]),
        host="127.0.0.1",
        generate_client_file=False,
        log_level="warning",
    )
