"""The server of the tutorials: FastAPI and ONNX Runtime, one process. MODEL names the file."""

import io
import os
import time

import numpy as np
import onnxruntime as ort
from fastapi import FastAPI, Request, UploadFile

app = FastAPI()
session = ort.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"])
kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
inputs = {one.name: kinds[one.type] for one in session.get_inputs()}


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "healthy"}


@app.post("/predict")
async def predict(request: Request) -> dict[str, object]:
    data = await request.json()
    start = time.perf_counter()
    if len(inputs) == 1:
        (name, dtype) = next(iter(inputs.items()))
        feeds = {name: np.array(data["input"], dtype=dtype)}
    else:
        feeds = {name: np.array(data[name], dtype=dtype) for name, dtype in inputs.items()}
    return answer(feeds, start)


@app.post("/npy")
async def predict_npy(request: Request) -> dict[str, object]:
    return answer_file(await request.body())


@app.post("/form")
async def predict_form(file: UploadFile) -> dict[str, object]:
    return answer_file(await file.read())


def answer_file(data: bytes) -> dict[str, object]:
    start = time.perf_counter()
    return answer({next(iter(inputs)): np.load(io.BytesIO(data))}, start)


def answer(feeds: dict[str, np.ndarray], start: float) -> dict[str, object]:
    outputs = session.run(None, feeds)
    return {
        "prediction": outputs[0].tolist(),
        "inference_time_ms": (time.perf_counter() - start) * 1000,
    }
