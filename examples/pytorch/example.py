"""A PyTorch network, from training to a prediction over HTTP: see README.md."""

import os
import time
from pathlib import Path

import httpx
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

URL = os.environ.get("SERVER", "http://localhost:8000")

# Train: handwritten digits of 8 by 8 pixels.
torch.manual_seed(0)
images, digits = load_digits(return_X_y=True)
images = images.reshape(-1, 1, 8, 8).astype(np.float32) / 16
train, test, train_digits, test_digits = map(
    torch.from_numpy, train_test_split(images, digits, random_state=0)
)
network = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
for _ in range(30):
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(train), train_digits).backward()
    optimizer.step()
network.eval()

# Export to the server's folder: model.onnx, with the weights in model.onnx.data next to it.
file = Path("models/handwriting/1/model.onnx")
file.parent.mkdir(parents=True, exist_ok=True)
torch.onnx.export(
    network,
    (train[:2],),
    file,
    input_names=["image"],
    output_names=["scores"],
    dynamic_shapes=({0: torch.export.Dim("rows")},),  # any number of rows, not these two
)

# The server finds it within seconds.
for _ in range(150):
    if httpx.get(f"{URL}/v2/models/handwriting/ready").status_code == 200:
        break
    time.sleep(0.2)

# Ask, and compare with the model it was made from.
answer = httpx.post(
    f"{URL}/predict", json={"model": "handwriting", "inputs": {"image": test.tolist()}}
)
assert answer.status_code == 200, answer.text
scores = np.array(answer.json()["outputs"]["scores"])
with torch.no_grad():
    np.testing.assert_allclose(scores, network(test).numpy(), rtol=0, atol=1e-4)
right = np.mean(scores.argmax(axis=1) == test_digits.numpy())
print(f"{len(test)} digits, {right:.0%} of them right: scores agree")
