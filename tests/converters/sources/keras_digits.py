"""A network in Keras."""

import keras
import numpy as np


def save():
    keras.utils.set_random_seed(0)
    digits = np.load("digits.npz")
    image = keras.Input((8, 8, 1), name="image")
    hidden = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    hidden = keras.layers.Flatten()(keras.layers.MaxPooling2D()(hidden))
    scores = keras.layers.Dense(10, activation="softmax", name="scores")(hidden)
    model = keras.Model(image, {"scores": scores})
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(digits["images"][..., None], digits["labels"], epochs=25, verbose=0)
    model.save("digits.keras")
    model.export("saved", verbose=False)
