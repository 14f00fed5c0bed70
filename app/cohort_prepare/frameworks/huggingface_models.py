"""Hugging Face models: a folder with a config, safetensors weights and, often, a tokenizer.

optimum defines the tasks, inputs and variable dimensions of some hundred architectures.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import Exported, ExportRequest, Reference
from cohort_prepare.frameworks.callables import call, is_callable_reference
from cohort_prepare.frameworks.embeddings import (
    EMBEDDING,
    Pooling,
    add_pooling,
    pooled,
    read_pooling,
)
from cohort_prepare.frameworks.onnx_values import strip_traces
from cohort_prepare.frameworks.text_files import write_labels, write_text_files

SAMPLES = ("Good morning.", "The second sentence is longer than the first one, by some words.")


@dataclass
class HuggingfaceModel:
    """A model in its folder.

    module: The PyTorch module.
    folder: Its folder.
    architecture: Class name from the config.
    sample: Inputs from its tokenizer; empty without a tokenizer.
    pooling: Pooling of sentence-transformers; default None: not an embedding model.
    """

    module: Any
    folder: Path
    architecture: str
    sample: Mapping[str, Any]
    pooling: Pooling | None = None


class HuggingfaceModels:
    """Folders with a `config.json` of transformers."""

    def load(self, reference: Reference) -> HuggingfaceModel:
        """Load the class that the config names, without downloads and without the model's code."""
        folder = _folder(reference.text)
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            architecture = config["architectures"][0]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise Misused(
                f"{folder.name}/config.json is missing or has no architecture: save the model "
                f"with model.save_pretrained(folder) ({type(error).__name__}: {error})"
            ) from error
        os.environ["HF_HUB_OFFLINE"] = "1"
        import transformers

        kind = getattr(transformers, str(architecture), None)
        if kind is None:
            raise Misused(f"{folder.name} needs {architecture}, which transformers does not have")
        if not reference.trust_pickle and not list(folder.glob("*.safetensors")):
            raise Misused(
                f"{folder.name} has no safetensors weights; other formats are pickles, which can "
                "run arbitrary code: add --trust-pickle, or save the model again with "
                "save_pretrained(folder, safe_serialization=True)"
            )
        module = kind.from_pretrained(
            folder, local_files_only=True, use_safetensors=None if reference.trust_pickle else True
        ).eval()
        return HuggingfaceModel(
            module, folder, str(architecture), _sample(folder), read_pooling(folder)
        )

    def export(self, model: HuggingfaceModel, request: ExportRequest) -> Exported:
        """Export the model with variable rows and lengths."""
        from optimum.exporters.onnx import main_export
        from optimum.exporters.tasks import TasksManager

        task = TasksManager.infer_task_from_model(model.module)
        with tempfile.TemporaryDirectory() as folder:
            try:
                main_export(
                    str(model.folder),
                    output=folder,
                    task=task,
                    opset=request.opset,
                    local_files_only=True,
                    do_validation=False,
                    library_name="transformers",
                )
            except (ValueError, KeyError, NotImplementedError, RuntimeError) as error:
                raise Rejected(
                    f"optimum cannot export {model.architecture} for {task}: "
                    f"{' '.join(str(error).split())[:500]}"
                ) from error
            exported = onnx.load(_only_model(Path(folder), model.architecture))
        strip_traces(exported)
        if model.pooling is not None:
            add_pooling(exported, model.pooling)
        Path(request.out).write_bytes(exported.SerializeToString(deterministic=True))
        labels = getattr(model.module.config, "id2label", None) or {}
        outputs = [one.name for one in exported.graph.output]
        known = task.endswith("classification") and outputs == ["logits"]
        classes = {"logits": [labels[i] for i in sorted(labels)]} if known else {}
        text = write_text_files(
            model.folder,
            Path(request.out).parent,
            inputs=[one.name for one in exported.graph.input],
            longest=getattr(model.module.config, "max_position_embeddings", None),
            pairs=task == "question-answering",
        )
        if task == "text-classification" and known and len(labels) > 1:
            write_labels(text, classes["logits"], model.module.config, Path(request.out).parent)
        return Exported(
            f"{model.architecture} for {task}",
            notes=text.notes,
            classes=classes,
            sample=model.sample,
            files=text.files,
            config=text.config,
        )

    def run(self, model: HuggingfaceModel, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the model; outputs have the names of transformers."""
        import torch

        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        with torch.no_grad():
            outputs = model.module(**tensors)
        if model.pooling is not None:
            hidden, mask = outputs["last_hidden_state"], tensors["attention_mask"]
            return {EMBEDDING: pooled(hidden, mask, model.pooling).numpy()}
        return {
            name: value.numpy()
            for name, value in outputs.items()
            if isinstance(value, torch.Tensor) and not _is_left_out(name, outputs)
        }


def _folder(text: str) -> Path:
    """Return the folder: `text`, or the path that `module:callable` returns after saving."""
    if not is_callable_reference(text):
        return Path(text)
    made = call(text)
    if not isinstance(made, str | os.PathLike):
        raise Misused(
            f"{text} returns {type(made).__name__}, not a folder: call save_pretrained on the "
            "model and the tokenizer, and return the folder's path"
        )
    return Path(made)


def _is_left_out(name: str, outputs: Mapping[str, Any]) -> bool:
    """Return True if optimum does not export the output."""
    return name == "pooler_output" and "last_hidden_state" in outputs


def _only_model(folder: Path, architecture: str) -> Path:
    files = sorted(folder.glob("*.onnx"))
    if len(files) != 1:
        names = ", ".join(one.name for one in files)
        raise Rejected(
            f"{architecture} is exported as several models ({names}) that each request needs; "
            "such models are not supported"
        )
    return files[0]


def _sample(folder: Path) -> dict[str, Any]:
    """Tokenize two sentences with the folder's tokenizer; return {} without a tokenizer."""
    import transformers

    if not list(folder.glob("tokenizer*")) and not (folder / "vocab.txt").exists():
        return {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return dict(tokenizer(list(SAMPLES), padding=True, return_tensors="np"))
