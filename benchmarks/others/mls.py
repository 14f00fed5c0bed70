"""The same model behind MLServer, as a custom runtime: its documentation's numpy codec."""

import onnxruntime as ort
from mlserver import MLModel  # type: ignore[import-not-found]
from mlserver.codecs import NumpyCodec  # type: ignore[import-not-found]
from mlserver.types import InferenceRequest, InferenceResponse  # type: ignore[import-not-found]


class OnnxRuntime(MLModel):  # type: ignore[misc]
    """Runs the file that model-settings.json names."""

    async def load(self) -> bool:
        self.session = ort.InferenceSession(
            self.settings.parameters.uri, providers=["CPUExecutionProvider"]
        )
        self.names = [one.name for one in self.session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feeds = {one.name: NumpyCodec.decode_input(one) for one in payload.inputs}
        values = self.session.run(None, feeds)
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                NumpyCodec.encode_output(name, value)
                for name, value in zip(self.names, values, strict=True)
            ],
        )
