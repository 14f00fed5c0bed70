"""Quantization: recipes, applied by ONNX Runtime's tools and measured against the original.

`work` applies and measures recipes in child processes; `quantization` runs these, and `verdict`
decides. Speed and quality of a recipe depend on the model and the machine, so they are measured.
"""

from cohort_prepare.quantizing.quantization import quantize_model
from cohort_prepare.quantizing.recipes import CALIBRATION_METHODS, FAMILIES, Family, Method
from cohort_prepare.quantizing.results import Candidate, Quantized, QuantizeOptions, quality_text
from cohort_prepare.quantizing.verdict import Limits

__all__ = [
    "CALIBRATION_METHODS",
    "FAMILIES",
    "Candidate",
    "Family",
    "Limits",
    "Method",
    "QuantizeOptions",
    "Quantized",
    "quality_text",
    "quantize_model",
]
