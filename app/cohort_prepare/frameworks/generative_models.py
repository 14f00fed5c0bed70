"""Language models: a Hugging Face folder that onnxruntime-genai's builder converts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

from cohort.system.job_child import report
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import LANGUAGE_MODELS, Exported, ExportRequest, Reference

LINES_KEPT = 15
"""Lines of the builder's output that an error shows."""

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass
class GenerativeModel:
    """A language model in its folder."""

    folder: Path
    architecture: str

    @cached_property
    def module(self) -> Any:
        """The PyTorch module in FP32."""
        import torch
        import transformers

        kind = getattr(transformers, self.architecture)
        return kind.from_pretrained(
            self.folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
        ).eval()


class GenerativeModels:
    """Folders with a `config.json`, safetensors weights and a `tokenizer.json`."""

    def load(self, reference: Reference) -> GenerativeModel:
        """Check the folder. Raises Misused if the builder cannot read it."""
        folder = Path(reference.text)
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            architecture = str(config["architectures"][0])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise Misused(
                f"{folder.name}/config.json is missing or has no architecture: save the model "
                f"with model.save_pretrained(folder) ({type(error).__name__}: {error})"
            ) from error
        check_folder(folder, architecture)
        os.environ.update(OFFLINE)
        return GenerativeModel(folder, architecture)

    def export(self, model: GenerativeModel, request: ExportRequest) -> Exported:
        """Run the builder, which writes all files into the folder of `request.out`."""
        out = Path(request.out).parent
        command = builder_command(model.folder, out, str(request.options["precision"]))
        started = subprocess.Popen(  # noqa: S603 - this Python, with the builder
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **OFFLINE},
        )
        last: deque[str] = deque(maxlen=LINES_KEPT)
        with started:
            assert started.stdout is not None  # noqa: S101 - a pipe was asked for
            for line in started.stdout:
                last.append(line.strip()[:300])
                if line.startswith(("Reading", "Saving")):
                    report(f"onnxruntime-genai: {line.strip()[:80]}")
        if started.returncode or not Path(request.out).is_file():
            raise Rejected(_failure(model, started.returncode, last))
        return Exported(model.architecture)

    def run(self, model: GenerativeModel, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run PyTorch on one window of tokens.

        inputs: `input_ids` [1, length]; with `steps` [1], the number of tokens to choose after it.

        Returns `logits` [length, vocabulary], or `tokens` [steps] and `seconds` [1] of choosing all
        but the first.
        """
        import numpy as np
        import torch

        ids = torch.from_numpy(np.asarray(inputs["input_ids"], np.int64))
        with torch.no_grad():
            if "steps" not in inputs:
                return {"logits": model.module(input_ids=ids).logits[0].numpy()}
            chosen: list[int] = []
            cache, began = None, 0.0
            for _ in range(int(inputs["steps"][0])):
                made = model.module(input_ids=ids, past_key_values=cache, use_cache=True)
                cache, ids = made.past_key_values, made.logits[:, -1:].argmax(-1)
                began = began or perf_counter()
                chosen.append(int(ids[0, 0]))
            seconds = perf_counter() - began
        return {"tokens": np.array(chosen), "seconds": np.array([seconds])}


def check_folder(folder: Path, architecture: str) -> None:
    """Raise Misused if the builder cannot convert the folder; the message states what to do."""
    if architecture not in LANGUAGE_MODELS:
        known = ", ".join(sorted(one.removesuffix("ForCausalLM") for one in LANGUAGE_MODELS))
        raise Misused(
            f"{folder.name} is a {architecture}, which onnxruntime-genai's builder cannot convert; "
            f"it converts {known}. To convert it to a model that returns logits or embeddings, use "
            "--from huggingface without --precision"
        )
    if not (folder / "tokenizer.json").is_file():
        raise Misused(
            f"{folder.name} has no tokenizer.json: save it with "
            "AutoTokenizer.from_pretrained(folder, use_fast=True).save_pretrained(folder)"
        )
    if not list(folder.glob("*.safetensors")):
        raise Misused(
            f"{folder.name} has no safetensors weights: save the model again with "
            "save_pretrained(folder)"
        )


def builder_command(folder: Path, out: Path, precision: str) -> list[str]:
    """Return the command that builds `folder` into `out` without downloads.

    FP16 is built for CUDA: for the CPU, version 0.18 writes attention that ONNX Runtime 1.31 fails
    to run for a second token. The result of both runs on both.
    """
    provider = "cuda" if precision == "fp16" else "cpu"
    where = [*("-m", str(folder)), *("-i", str(folder)), *("-o", str(out))]
    how = ["-p", precision, "-e", provider, "-c", str(out.parent / "cache")]
    return [sys.executable, "-m", "onnxruntime_genai.models.builder", *where, *how]


def _failure(model: GenerativeModel, status: int, last: deque[str]) -> str:
    text = "\n".join(last)
    if "not currently supported" in text:
        return (
            f"this version of onnxruntime-genai does not know {model.architecture}: use --with "
            f"onnxruntime-genai==0.18.*\n{text}"
        )
    killed = " (out of memory?)" if status in {-9, 137} else ""
    return f"onnxruntime-genai's builder failed with exit code {status}{killed}:\n{text}"
