"""A LightGBM classifier, from training to a prediction over HTTP: see README.md."""

import os
import time
from pathlib import Path

import httpx
import lightgbm
import numpy as np
from onnxmltools import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

URL = os.environ.get("SERVER", "http://localhost:8000")

# Train. Callers will send float32, so that is what the model is made from.
features, labels = load_breast_cancer(return_X_y=True)
train, test, train_labels, _ = train_test_split(features.astype(np.float32), labels, random_state=0)
classifier = lightgbm.LGBMClassifier(n_estimators=50, verbose=-1).fit(train, train_labels)

# Export, to where the server looks.
inputs = [("features", FloatTensorType([None, train.shape[1]]))]
file = Path("models/tumours/1/model.onnx")
file.parent.mkdir(parents=True, exist_ok=True)
file.write_bytes(convert_lightgbm(classifier, initial_types=inputs).SerializeToString())

# The server finds it within seconds.
for _ in range(150):
    if httpx.get(f"{URL}/v2/models/tumours/ready").status_code == 200:
        break
    time.sleep(0.2)

# Ask, and compare with the model it was made from.
answer = httpx.post(
    f"{URL}/predict", json={"model": "tumours", "inputs": {"features": test.tolist()}}
)
assert answer.status_code == 200, answer.text
outputs = answer.json()["outputs"]
np.testing.assert_array_equal(outputs["label"], classifier.predict(test))
np.testing.assert_allclose(
    outputs["probabilities"], classifier.predict_proba(test), rtol=0, atol=1e-5
)
print(f"{len(test)} tumours: labels and probabilities agree")
