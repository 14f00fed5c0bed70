"""A network in PaddlePaddle."""

import numpy as np
import paddle


class Cnn(paddle.nn.Layer):
    """Digits of 8 x 8."""

    def __init__(self):
        super().__init__()
        self.first = paddle.nn.Conv2D(1, 8, 3, padding=1)
        self.pool, self.last = paddle.nn.MaxPool2D(2), paddle.nn.Linear(8 * 16, 10)

    def forward(self, image):
        hidden = self.pool(paddle.nn.functional.relu(self.first(image)))
        return self.last(hidden.flatten(1))


def cnn():
    paddle.seed(0)
    digits, model = np.load("digits.npz"), Cnn()
    images = paddle.to_tensor(digits["images"].astype("float32")[:, None])
    labels = paddle.to_tensor(digits["labels"].astype("int64"))
    optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
    for _ in range(60):
        loss = paddle.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    return model


def save():
    model = cnn()
    model.eval()
    spec = paddle.static.InputSpec([None, 1, 8, 8], "float32", "image")
    paddle.jit.save(model, "digits", input_spec=[spec])
