"""A Keras network, from training to a prediction over HTTP: see README.md."""

import os
import time
from pathlib import Path

import httpx
import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

URL = os.environ.get("SERVER", "http://localhost:8000")

# Train: handwritten digits of 8 by 8 pixels. Keras keeps the channel last.
keras.utils.set_random_seed(0)
images, digits = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype(np.float32) / 16
train, test, train_digits, test_digits = train_test_split(images, digits, random_state=0)
network = keras.Sequential([
    keras.Input((8, 8, 1), name="image"),
    keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
    keras.layers.MaxPooling2D(),
    keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
    keras.layers.Flatten(),
    keras.layers.Dense(10, activation="softmax", name="probabilities"),
])  # fmt: skip
network.compile("adam", "sparse_categorical_crossentropy")
network.fit(train, train_digits, epochs=10, verbose=0)

# Export, to where the server looks.
file = Path("models/digits-keras/1/model.onnx")
file.parent.mkdir(parents=True, exist_ok=True)
network.export(file, format="onnx", verbose=False)

# The server finds it within seconds, and logs the exporter's names of inputs and outputs.
for _ in range(150):
    if httpx.get(f"{URL}/v2/models/digits-keras/ready").status_code == 200:
        break
    time.sleep(0.2)

# Ask, and compare with the model it was made from. One input needs no name.
answer = httpx.post(f"{URL}/models/digits-keras/predict", json={"input": test.tolist()})
assert answer.status_code == 200, answer.text
probabilities = np.array(answer.json()["prediction"])
np.testing.assert_allclose(probabilities, network.predict(test, verbose=0), rtol=0, atol=1e-5)
right = np.mean(probabilities.argmax(axis=1) == test_digits)
print(f"{len(test)} digits, {right:.0%} of them right: probabilities agree")
