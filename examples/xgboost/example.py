"""An XGBoost regressor, from training to a prediction over HTTP: see README.md."""

import os
import time
from pathlib import Path

import httpx
import numpy as np
from onnxmltools import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from xgboost import XGBRegressor

URL = os.environ.get("SERVER", "http://localhost:8000")

# Train. Callers will send float32, so that is what the model is made from.
features, progression = load_diabetes(return_X_y=True)
train, test, train_progression, _ = train_test_split(
    features.astype(np.float32), progression, random_state=0
)
regressor = XGBRegressor(n_estimators=50, max_depth=3).fit(train, train_progression)

# Export, to where the server looks.
inputs = [("features", FloatTensorType([None, train.shape[1]]))]
file = Path("models/diabetes/1/model.onnx")
file.parent.mkdir(parents=True, exist_ok=True)
file.write_bytes(convert_xgboost(regressor, initial_types=inputs).SerializeToString())

# The server finds it within seconds.
for _ in range(150):
    if httpx.get(f"{URL}/v2/models/diabetes/ready").status_code == 200:
        break
    time.sleep(0.2)

# Ask, and compare with the model it was made from.
answer = httpx.post(
    f"{URL}/predict", json={"model": "diabetes", "inputs": {"features": test.tolist()}}
)
assert answer.status_code == 200, answer.text
served = np.array(answer.json()["outputs"]["variable"])[:, 0]
np.testing.assert_allclose(served, regressor.predict(test), rtol=1e-5)
print(f"{len(test)} patients, the first {served[0]:.1f}: predictions agree")
