"""A CatBoost classifier, from training to a prediction over HTTP: see README.md."""

import os
import time
from pathlib import Path

import httpx
import numpy as np
from catboost import CatBoostClassifier
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split

URL = os.environ.get("SERVER", "http://localhost:8000")

# Train. Callers will send float32, so that is what the model is made from.
iris = load_iris()
features, species = iris.data.astype(np.float32), iris.target_names[iris.target]
train, test, train_species, _ = train_test_split(features, species, random_state=0)
classifier = CatBoostClassifier(
    iterations=50, verbose=False, allow_writing_files=False, random_seed=0
).fit(train, train_species)

# Export, to where the server looks.
file = Path("models/flowers/1/model.onnx")
file.parent.mkdir(parents=True, exist_ok=True)
classifier.save_model(str(file), format="onnx")

# The server finds it within seconds.
for _ in range(150):
    if httpx.get(f"{URL}/v2/models/flowers/ready").status_code == 200:
        break
    time.sleep(0.2)

# Ask, and compare with the model it was made from.
answer = httpx.post(
    f"{URL}/predict", json={"model": "flowers", "inputs": {"features": test.tolist()}}
)
assert answer.status_code == 200, answer.text
outputs = answer.json()["outputs"]
np.testing.assert_array_equal(outputs["label"], classifier.predict(test)[:, 0])
np.testing.assert_allclose(
    outputs["probabilities"], classifier.predict_proba(test), rtol=0, atol=1e-5
)
print(f"{len(test)} flowers, the first {outputs['label'][0]}: labels and probabilities agree")
