"""Smaller weights: recipes, applied by ONNX Runtime's tools, measured beside the original.

Every recipe is applied and measured in a child process (`process`), which `quantization` asks;
`verdict` decides. Whether a recipe is faster, and what it costs, is a property of the model
and the machine, so it is measured.
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
