"""Optimization steps for ONNX models, and their allowed differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cohort.comparing import Rounding
from cohort.errors import did_you_mean, quoted
from cohort_prepare.failures import Misused


@dataclass(frozen=True, slots=True)
class OptimizeStep:
    """A way to rewrite a model.

    name: Name in the command.
    title: Short description.
    allowed: Allowed difference of outputs from those before.
    lossy: True if weights lose precision; unless requested, the step must then make runs faster.
    """

    name: str
    title: str
    allowed: Rounding
    lossy: bool = False


_SAME = Rounding(1e-4, 0.01)
"""The same arithmetic in another order; 16-bit outputs keep three digits."""

OPTIMIZE_STEPS: Mapping[str, OptimizeStep] = {
    step.name: step
    for step in (
        OptimizeStep("opset", "opset conversion", _SAME),
        OptimizeStep("slim", "onnxslim", _SAME),
        OptimizeStep("fuse", "transformer fusions", _SAME),
        OptimizeStep(
            "fp16", "float16, inputs and outputs as they are", Rounding(0.01, 0.05), lossy=True
        ),
        OptimizeStep(
            "bf16", "bfloat16 weights, computed in float32", Rounding(0.03, 0.05), lossy=True
        ),
        OptimizeStep("ort-basic", "ONNX Runtime, level basic", _SAME),
        OptimizeStep("ort-extended", "ONNX Runtime, level extended", _SAME),
        OptimizeStep("ort-all", "ONNX Runtime, level all", _SAME),
    )
}

TRIED = ("fuse", "slim", "fp16", "ort-basic", "ort-extended")
"""Default steps, in order. Fusions come first: in BERT models they find attention and embeddings
before onnxslim, but not after it. ONNX Runtime comes last, since its levels add operators of one
provider, which other tools do not support."""

MODEL_TYPES = (
    *("bert", "bart", "clip", "conformer", "gpt2", "gpt_neox", "mmdit", "phi", "qwen3", "sam2"),
    *("swin", "t5", "tnlr", "unet", "vae", "vit"),
)
"""Model families with patterns in `onnxruntime.transformers`."""


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """Options of an optimization.

    steps: Names of `OPTIMIZE_STEPS`, applied in order even if slower; default None: those of
        `TRIED` that are not slower on this machine.
    opset: Opset to convert the model to before the steps; default None: unchanged.
    model_type: Model family to fuse, of `MODEL_TYPES`; default "bert", which fits most encoders.
    sizes: Batch sizes that are timed; the first is always 1 for a model with variable rows.
    seconds: Total time limit. Each step gets a share of the rest, so that a slow one leaves time
        for others; default 3600.
    budget: Seconds of timing per step; default 3.
    ort_format: Folder for the model in ORT format, for mobile and edge devices; default None: not
        written.
    ort_target: Processor for the ORT format: "arm" (default) or "amd64".
    """

    steps: Sequence[str] | None = None
    opset: int | None = None
    model_type: str = "bert"
    sizes: Sequence[int] = (1, 8, 32)
    seconds: float = 3600.0
    budget: float = 3.0
    ort_format: Path | None = None
    ort_target: str = "arm"

    def plan(self) -> list[OptimizeStep]:
        """Return the steps to try, in order. Raises Misused for an unknown one."""
        names = ["opset"] if self.opset is not None else []
        names += TRIED if self.steps is None else self.steps
        for name in names:
            if name == "opset" and self.opset is None:
                raise Misused("step opset needs a number: --opset N")
            if name not in OPTIMIZE_STEPS:
                known = [one for one in OPTIMIZE_STEPS if one != "opset"]
                raise Misused(f"step {quoted(name)} not found{did_you_mean(name, known)}")
        if self.model_type not in MODEL_TYPES:
            hint = did_you_mean(self.model_type, MODEL_TYPES)
            raise Misused(f"model type {quoted(self.model_type)} not found{hint}")
        return [OPTIMIZE_STEPS[name] for name in names]

    def asked(self, step: OptimizeStep) -> bool:
        """Return True if the user requested the step."""
        return self.steps is not None or step.name == "opset"
