"""Frameworks that models come from, and requirements to run each.

A framework's model is loaded, exported and run in a child process (`child.py`), in an environment
that has the framework. So modules here import nothing of Cohort except each other,
`cohort.errors` and `cohort_prepare.failures`. Methods import a framework when they need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework.

    name: Name as in `--from`.
    title: Display name.
    adapter: Class that loads, exports and runs its models, as `module:Class` in this package.
    modules: Modules that the adapter imports.
    requirements: Tested versions for uv to install if a module is missing.
    packages: Top-level modules of its model classes, to detect the framework of an object.
    suffixes: File suffixes, in lower case.
    folder_files: A folder that has one of these files is its model.
    architectures: Architectures in the folder's `config.json`; default: any.
    """

    name: str
    title: str
    adapter: str
    modules: tuple[str, ...]
    requirements: tuple[str, ...]
    packages: tuple[str, ...]
    suffixes: tuple[str, ...] = ()
    folder_files: tuple[str, ...] = ()
    architectures: frozenset[str] = frozenset()


LANGUAGE_MODELS = frozenset(
    f"{name}ForCausalLM"
    for name in (
        *("Ernie4_5", "Gemma", "Gemma2", "Gemma3", "GptOss", "Granite", "HunYuanDenseV1", "Llama"),
        *("Mistral", "Nemotron", "Olmo", "Phi", "Phi3", "Qwen2", "Qwen3", "SmolLM3"),
    )
)
"""Architectures of text models that onnxruntime-genai 0.18 builds with a plain key-value cache."""

ONNX = ("onnx==1.21.*", "protobuf<7")
TENSORFLOW = ("tensorflow-cpu==2.21.*", "tf2onnx==1.17.*", *ONNX)
SKLEARN = ("scikit-learn>=1.6,<1.10", "skl2onnx==1.20.*", "pandas>=2.3,<4", *ONNX)

ONNXMLTOOLS = ("onnxmltools==1.16.*", "packaging", *SKLEARN)  # onnxmltools does not declare it

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
            "generative",
            "onnxruntime-genai",
            "generative_models:GenerativeModels",
            ("torch", "transformers", "onnxruntime_genai", "onnx_ir", "onnx"),
            (
                *("torch==2.13.*", "transformers==5.*", "onnxruntime-genai==0.18.*"),
                *("onnxruntime==1.31.*", "onnx-ir>=0.2", *ONNX),
            ),
            packages=(),
            folder_files=("config.json",),
            architectures=LANGUAGE_MODELS,
        ),
        Framework(
            "huggingface",
            "Hugging Face",
            "huggingface_models:HuggingfaceModels",
            ("torch", "transformers", "optimum", "onnx"),
            ("torch==2.13.*", "optimum-onnx[onnxruntime]==0.1.*", "transformers==4.57.*", *ONNX),
            packages=(),  # a callable returns a PyTorch module
            folder_files=("config.json",),
        ),
    )
}


ANY_FRAMEWORK = Framework("unknown", "Python", "", (), (), ())
"""Framework of a model that is not loaded yet."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Place of a model.

    text: As the user wrote it: a path, or `module:callable`.
    trust_pickle: True if a file may be unpickled, which can run arbitrary code.
    weights: File of weights for the module that a callable returns; "" for none.
    """

    text: str
    trust_pickle: bool = False
    weights: str = ""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Arguments of an export.

    out: Path of the ONNX file, in an empty folder.
    opset: ONNX opset version; None: the adapter's choice.
    example: Inputs by name, with some rows each; empty if not given.
    options: Options for specific adapters.
    """

    out: str
    opset: int | None = None
    example: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export, in addition to the file.

    what: Kind of model, for example "Pipeline of StandardScaler and SVC".
    notes: Notes for the user.
    classes: Classes of an output's columns, by output name.
    sample: Valid inputs by name, with some rows each, if datatypes are not enough to generate them,
        such as text from the training data; default none.
    columns: Column names of the only input, which has all columns; default: unknown.
    missing: Value that the server fills in for a missing one, by input; default none.
    categories: Words or numbers whose positions are codes, by column or input; default none.
    files: Names of files written next to the model that belong to it.
    config: Keys for inputs and outputs in `config.yaml`; default none.
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
    """Interface to a framework."""

    def load(self, reference: Reference) -> Any:
        """Load the model. Raises Misused, Rejected, or errors of the framework."""

    def export(self, model: Any, request: ExportRequest) -> Exported:
        """Export the model as ONNX to `request.out`."""

    def run(self, model: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the model on arrays by input name; return outputs by the exported model's names."""


def adapter_of(framework: Framework) -> Adapter:
    """Import and create the adapter."""
    module, _, name = framework.adapter.partition(":")
    adapter: Adapter = getattr(import_module(f"{__name__}.{module}"), name)()
    return adapter
