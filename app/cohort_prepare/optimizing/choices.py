"""The steps that an ONNX model can be optimized by, and what each may change."""

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

    name: As the command has it.
    title: What does it, in a word or two.
    allowed: How far outputs may be from those before.
    lossy: Whether weights lose digits: then a step nobody asked for must make runs faster.
    """

    name: str
    title: str
    allowed: Rounding
    lossy: bool = False


_SAME = Rounding(1e-4, 0.01)
"""The same arithmetic in another order; outputs of 16 bits keep three digits."""

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
"""In this order, where nobody asks for others. Fusions come first: in a BERT they find attention
and embeddings before onnxslim, and none after. ONNX Runtime comes last, since its levels put
operators of one provider into the graph, which other tools do not know."""

MODEL_TYPES = (
    *("bert", "bart", "clip", "conformer", "gpt2", "gpt_neox", "mmdit", "phi", "qwen3", "sam2"),
    *("swin", "t5", "tnlr", "unet", "vae", "vit"),
)
"""The families whose patterns `onnxruntime.transformers` knows, as it names them."""


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """What to do to a model.

    steps: Names of `OPTIMIZE_STEPS`, done in this order whether they pay here or not; default None:
        each of `TRIED` is tried, and kept if it is not slower on this machine.
    opset: The opset to convert the model to, before the steps; default None: as it is.
    model_type: Whose patterns to fuse, of `MODEL_TYPES`; default "bert", which fits most encoders.
    sizes: Rows of the runs that are timed; the first is always 1 for a model whose rows vary.
    seconds: How long all of it may take; a step gets a fair share of what is left, so that one
        without end leaves time for the others; default 3600.
    budget: Seconds to time runs for, for each step; default 3.
    ort_format: A folder for the model in ONNX Runtime's own format, for phones and edge devices;
        default None: it is not written.
    ort_target: Whose processor that is for: "arm" (default) or "amd64".
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
        """The steps to try, in order. Raises Misused for one that is unknown."""
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
        """Whether the step is wanted, and not just worth a try."""
        return self.steps is not None or step.name == "opset"
