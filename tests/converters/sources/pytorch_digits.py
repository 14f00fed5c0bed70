"""Networks in PyTorch."""

import io
import os
import zipfile

import numpy as np
import torch
from safetensors.torch import save_file, save_model
from torch import nn


class Cnn(nn.Module):
    """Digits of 8 x 8."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(8 * 16, 10)

    def forward(self, image):
        hidden = nn.functional.max_pool2d(torch.relu(self.norm(self.first(image))), 2)
        return {"scores": self.last(self.drop(hidden.flatten(1)))}


def cnn():
    torch.manual_seed(0)
    digits, model = np.load("digits.npz"), Cnn()
    images = torch.tensor(digits["images"], dtype=torch.float32)[:, None]
    labels = torch.tensor(digits["labels"])
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images)["scores"], labels).backward()
        optimizer.step()
    return model


def save_program():
    example = {"image": torch.zeros(2, 1, 8, 8)}
    shapes = {"image": {0: torch.export.Dim("rows")}}
    program = torch.export.export(cnn().eval(), (), example, dynamic_shapes=shapes)
    torch.export.save(program, "digits.pt2")


def bare():
    return Cnn()


def small():
    torch.manual_seed(0)
    return Small(), {"x": torch.randn(4, 3).numpy()}


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.first(x))


def tied():
    return Tied(), {"x": torch.ones(2, 3).numpy()}


class Branching(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x - 1


def branching():
    return Branching(), {"x": torch.ones(2, 3).numpy()}


class Cut(nn.Module):
    """A branch that cannot be exported, and a number of rows that the older exporter freezes."""

    def forward(self, x):
        if x.sum() > -1e9:
            return x[: int(x.shape[0])] * 2
        return x


class Summed(nn.Module):
    def forward(self, x):
        return x.sum(1, keepdim=True)


def summed():
    return Summed(), {"x": torch.randn(2, 5).numpy()}


def text():
    return "no module"


def save_weights():
    torch.manual_seed(1)
    save_file(Small().state_dict(), "small.safetensors")
    module = Tied()
    save_model(module, "tied.safetensors")
    np.save("tied.npy", module.first.weight.detach().numpy())
    save_file({"layer.bias": torch.zeros(2)}, "other.safetensors")


class Ran:
    def __reduce__(self):
        return os.system, ("touch ran",)


def save_hostile():
    program = torch.export.export(Small().eval(), (torch.zeros(2, 3),))
    torch.export.save(program, "plain.pt2")
    pickled = io.BytesIO()
    torch.save(Ran(), pickled)
    with zipfile.ZipFile("plain.pt2") as plain, zipfile.ZipFile("hostile.pt2", "w") as hostile:
        for name in plain.namelist():
            content = plain.read(name)
            if name.endswith("weights_config.json"):
                content = content.replace(b'"use_pickle": false', b'"use_pickle": true')
            if name.rsplit("/", 1)[-1].startswith("weight_"):
                content = pickled.getvalue()
            hostile.writestr(name, content)
