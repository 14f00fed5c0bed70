"""Measure the wait of a caller for one image, by its form: `python -m benchmarks.inputs`.

The model takes FP32 [N, 3, 224, 224] and does next to nothing; there is one caller on one
connection. The client's time to write its request and read the response counts. The last form is a
PNG file for a model that decodes it (onnxruntime-extensions).
"""

from __future__ import annotations

import io
import json
import tempfile
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import httpx
import numpy as np
import tritonclient.http as triton

from benchmarks.models import means
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.http.test_files import npy, png

ROUNDS = 30
IMAGE = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
PIXELS = np.random.default_rng(0).integers(0, 255, (224, 224, 3), np.uint8)
FILE = png(PIXELS)


def main() -> None:
    """Measure each form, and print a table in Markdown."""
    library = onnx_models.decoders_library()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx_models.save(means(), folder / "models/image/1/model.onnx")
        onnx_models.save(onnx_models.decoded_image(), folder / "models/file/1/model.onnx")
        (folder / "models/file/config.yaml").write_text(
            json.dumps({"session": {"custom_op_libraries": [library.name]}})
        )
        with cohort(folder / "models", folder, custom_ops=library.parent) as server:
            show(server)


def show(server: Cohort) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        host = server.url.removeprefix("http://")
        with triton.InferenceServerClient(host) as other:
            print("| sent as | bytes | milliseconds |\n|---|---:|---:|")
            for what, (size, ask) in forms(client, other).items():
                for _ in range(3):
                    ask()
                print(f"| {what} | {size:,} | {median(timed(ask) for _ in range(ROUNDS)):.1f} |")


def forms(
    client: httpx.Client, other: triton.InferenceServerClient
) -> dict[str, tuple[int, Callable[[], object]]]:
    """Return each form: its size in bytes, and a function that sends it and reads the response."""

    def post(path: str, content: bytes, **headers: str) -> Any:
        sent = {key.replace("_", "-"): value for key, value in headers.items()}
        answer = client.post(path, content=content, headers=sent)
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer

    def as_json() -> Any:
        body = json.dumps({"input": IMAGE.tolist()}).encode()
        return post("/models/image/predict", body).json()

    def as_npy() -> Any:
        return post("/models/image/predict", npy(IMAGE), content_type="application/x-npy").json()

    def as_raw() -> Any:
        answer = post(
            "/v2/models/image/infer", IMAGE.tobytes(), inference_header_content_length="0"
        )
        head = int(answer.headers["inference-header-content-length"])
        return np.frombuffer(answer.content[head:], np.float32)

    def by_triton() -> Any:
        tensor = triton.InferInput("image", IMAGE.shape, "FP32")
        tensor.set_data_from_numpy(IMAGE)
        return other.infer("image", [tensor]).as_numpy("mean")

    def as_file(accept: str) -> Any:
        path = "/models/file/predict"
        answer = post(path, FILE, content_type="image/png", accept=accept)
        return np.load(io.BytesIO(answer.content)) if "npy" in accept else answer.json()

    def as_base64() -> Any:
        body = json.dumps({"input": {"b64": b64encode(FILE).decode()}}).encode()
        return post("/models/file/predict", body, accept="application/x-npy").content

    text = len(json.dumps({"input": IMAGE.tolist()}))
    return {
        "JSON": (text, as_json),
        "`application/x-npy`": (len(npy(IMAGE)), as_npy),
        "the bytes alone, `Inference-Header-Content-Length: 0`": (IMAGE.nbytes, as_raw),
        "tritonclient": (IMAGE.nbytes, by_triton),
        "a PNG file, answered by 150,528 numbers in JSON": (len(FILE), lambda: as_file("*/*")),
        "a PNG file, answered as `.npy`": (len(FILE), lambda: as_file("application/x-npy")),
        "the file in base64 in JSON, answered as `.npy`": (len(FILE) * 4 // 3, as_base64),
    }


def timed(ask: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    before = perf_counter()
    ask()
    return (perf_counter() - before) * 1000


if __name__ == "__main__":
    main()
