"""The frameworks that models come from, and what it takes to run each.

A model of a framework is loaded, exported and run in a child process (`child.py`), in an
environment that has the framework: this one, one that the user names, or one that uv makes. So the
modules here import nothing of Cohort but each other, `cohort.errors` and `cohort_prepare.failures`;
a framework is imported in the methods that need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework.

    name: As `--from` has it.
    title: As people write it.
    adapter: The class that loads, exports and runs its models, in a module of this package:
        `module:Class`.
    modules: What must be importable for that.
    requirements: What uv installs otherwise: versions that were seen to work together.
    packages: The top modules of its models' classes: an object of one of them is its model.
    suffixes: Of its own files, in lower case.
    folder_files: A folder that has one of these is its model.
    """

    name: str
    title: str
    adapter: str
    modules: tuple[str, ...]
    requirements: tuple[str, ...]
    packages: tuple[str, ...]
    suffixes: tuple[str, ...] = ()
    folder_files: tuple[str, ...] = ()


ONNX = ("onnx==1.21.*", "protobuf<7")
TENSORFLOW = ("tensorflow-cpu==2.21.*", "tf2onnx==1.17.*", *ONNX)
SKLEARN = ("scikit-learn>=1.6,<1.10", "skl2onnx==1.20.*", "pandas>=2.3,<4", *ONNX)

ONNXMLTOOLS = ("onnxmltools==1.16.*", "packaging", *SKLEARN)  # the first does not ask for it

FRAMEWORKS: Mapping[str, Framework] = {
    one.name: one
    for one in (
        Framework(
            "sklearn",
            "scikit-learn",
            "sklearn_models:SklearnModels",
            ("sklearn", "joblib", "skl2onnx", "onnx"),
            SKLEARN,
            packages=("sklearn",),
            suffixes=(".skops",),
        ),
        Framework(
            "xgboost",
            "XGBoost",
            "xgboost_models:XgboostModels",
            ("xgboost", "onnxmltools", "packaging", "skl2onnx", "sklearn", "onnx"),
            ("xgboost-cpu==3.2.*", *ONNXMLTOOLS),
            packages=("xgboost",),
            suffixes=(".ubj", ".json"),
        ),
        Framework(
            "lightgbm",
            "LightGBM",
            "lightgbm_models:LightgbmModels",
            ("lightgbm", "onnxmltools", "packaging", "skl2onnx", "sklearn", "onnx"),
            ("lightgbm==4.7.*", *ONNXMLTOOLS),
            packages=("lightgbm",),
            suffixes=(".txt",),
        ),
        Framework(
            "catboost",
            "CatBoost",
            "catboost_models:CatboostModels",
            ("catboost", "onnx"),
            ("catboost==1.2.*", *SKLEARN),
            packages=("catboost",),
            suffixes=(".cbm",),
        ),
        Framework(
            "pytorch",
            "PyTorch",
            "torch_models:TorchModels",
            ("torch", "onnxscript", "safetensors", "onnx"),
            ("torch==2.13.*", "onnxscript==0.7.*", "safetensors", "numpy", *ONNX),
            packages=("torch",),
            suffixes=(".pt2", ".pt", ".pth", ".safetensors"),
        ),
        Framework(
            "keras",
            "Keras",
            "tensorflow_models:KerasModels",
            ("keras", "tensorflow", "tf2onnx", "onnx"),
            TENSORFLOW,
            packages=("keras",),
            suffixes=(".keras",),
        ),
        Framework(
            "tensorflow",
            "TensorFlow",
            "tensorflow_models:TensorflowModels",
            ("tensorflow", "tf2onnx", "onnx"),
            TENSORFLOW,
            packages=("tensorflow",),
            folder_files=("saved_model.pb",),
        ),
        Framework(
            "paddle",
            "PaddlePaddle",
            "paddle_models:PaddleModels",
            ("paddle", "paddle2onnx", "onnx"),
            ("paddlepaddle==3.3.*", "paddle2onnx==2.1.*", "onnx==1.17.*", "setuptools"),
            packages=("paddle",),
            suffixes=(".pdmodel",),
        ),
        Framework(
            "huggingface",
            "Hugging Face",
            "huggingface_models:HuggingfaceModels",
            ("torch", "transformers", "optimum", "onnx"),
            ("torch==2.13.*", "optimum-onnx[onnxruntime]==0.1.*", "transformers==4.57.*", *ONNX),
            packages=(),  # what a callable makes is a module of PyTorch
            folder_files=("config.json",),
        ),
    )
}


ANY_FRAMEWORK = Framework("unknown", "Python", "", (), (), ())
"""Of a model that was not looked at yet."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a model comes from.

    text: As the user wrote it: a path, or `module:callable`.
    trust_pickle: Whether a file may be unpickled, which runs what is in it.
    weights: A file of weights for the module that a callable makes; "" where it has its own.
    """

    text: str
    trust_pickle: bool = False
    weights: str = ""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What to make.

    out: The path of the ONNX file, in a folder of its own.
    opset: The version of ONNX's operator set; None: the adapter's choice.
    example: Inputs by name, some rows of each; empty where none were given.
    options: What only some adapters know.
    """

    out: str
    opset: int | None = None
    example: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exported:
    """What was made, beside the file.

    what: The kind of model, in words: "Pipeline of StandardScaler and SVC".
    notes: Sentences that the user should read.
    classes: The classes of an output's columns, by the output's name.
    sample: Inputs by name that the model takes, some rows of each, where its kind knows better
        than the datatypes tell: text that it was trained on; default none.
    columns: The names of the columns of its only input, which has all; default: not known.
    missing: What the server puts in the place of a missing value, by input; default: nothing.
    categories: For the name of a column, or of an input, the words or numbers whose places are the
        codes that the model takes; default: nothing.
    files: The names of files that were written beside the model, and belong there.
    config: What `config.yaml` is to say of inputs and outputs; default: nothing.
    """

    what: str
    notes: Sequence[str] = ()
    classes: Mapping[str, Sequence[str] | Sequence[int]] = field(default_factory=dict)
    sample: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    categories: Mapping[str, Sequence[str] | Sequence[float]] = field(default_factory=dict)
    files: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


class Adapter(Protocol):
    """Speaks for a framework."""

    def load(self, reference: Reference) -> Any:
        """Load the model. Raises Misused, Rejected, or what the framework raises."""

    def export(self, model: Any, request: ExportRequest) -> Exported:
        """Write it as ONNX to `request.out`."""

    def run(self, model: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run it on arrays by input name: outputs by the names that the exported model has."""


def adapter_of(framework: Framework) -> Adapter:
    """Import the adapter."""
    module, _, name = framework.adapter.partition(":")
    adapter: Adapter = getattr(import_module(f"{__name__}.{module}"), name)()
    return adapter
