"""A scikit-learn classifier, from training to a prediction over HTTP: see README.md."""

import os
import time
from pathlib import Path

import httpx
import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

URL = os.environ.get("SERVER", "http://localhost:8000")

# Train. Callers will send float32, so that is what the model is made from.
wine = load_wine()
features, cultivars = wine.data.astype(np.float32), wine.target_names[wine.target]
train, test, train_cultivars, _ = train_test_split(features, cultivars, random_state=0)
classifier = make_pipeline(StandardScaler(), LogisticRegression()).fit(train, train_cultivars)

# Export, to where the server looks.
file = Path("models/wine/1/model.onnx")
file.parent.mkdir(parents=True, exist_ok=True)
file.write_bytes(to_onnx(classifier, train[:1]).SerializeToString())

# The server finds it within seconds.
for _ in range(150):
    if httpx.get(f"{URL}/v2/models/wine/ready").status_code == 200:
        break
    time.sleep(0.2)

# Ask, and compare with the model it was made from.
answer = httpx.post(f"{URL}/predict", json={"model": "wine", "inputs": {"X": test.tolist()}})
assert answer.status_code == 200, answer.text
outputs = answer.json()["outputs"]
np.testing.assert_array_equal(outputs["output_label"], classifier.predict(test))
np.testing.assert_allclose(
    outputs["output_probability"], classifier.predict_proba(test), rtol=0, atol=1e-5
)
print(f"{len(test)} wines, the first {outputs['output_label'][0]}: labels and probabilities agree")
