"""A picture's label behind FastAPI, as a program of one's own does it: Pillow, and torchvision's
transforms where there is torchvision, else numpy. MODEL names the file."""

import io
import os

import numpy as np
import onnxruntime as ort
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from PIL import Image

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
LABELS = [f"class {number}" for number in range(10)]

try:
    from torchvision import transforms
except ImportError:
    WITH = "Pillow, numpy"

    def pixels(image: Image.Image) -> np.ndarray:
        width, height = image.size
        short = min(width, height)
        whole = (int(256 * width / short), int(256 * height / short))
        left, top = round((whole[0] - 224) / 2), round((whole[1] - 224) / 2)
        small = image.resize(whole, Image.Resampling.BILINEAR)
        small = small.crop((left, top, left + 224, top + 224))
        values = (np.asarray(small, np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
        return values.transpose(2, 0, 1)
else:
    WITH = "Pillow, torchvision"
    transform = transforms.Compose([
        transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ])  # fmt: skip

    def pixels(image: Image.Image) -> np.ndarray:
        return transform(image).numpy()


app = FastAPI()
session = ort.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"])


def label(body: bytes) -> dict[str, object]:
    """Decode, transform, run, name."""
    image = Image.open(io.BytesIO(body)).convert("RGB")
    scores = session.run(None, {"image": pixels(image)[None]})[0][0]
    best = int(scores.argmax())
    return {"label": LABELS[best], "score": float(scores[best]), "scores": scores.tolist()}


@app.post("/predict")
async def predict(request: Request) -> dict[str, object]:
    """On a thread, so that others are not held up."""
    return await run_in_threadpool(label, await request.body())


@app.get("/health/ready")
def ready() -> dict[str, str]:
    """Where it is up."""
    return {"with": WITH}
