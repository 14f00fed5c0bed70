"""The engine of ONNX models: opens, tries, measures, batches and monitors them."""

from cohort.onnx_engine.examples import examples_to_try, run_examples
from cohort.onnx_engine.factory import OnnxEngines
from cohort.onnx_engine.opening import OpenVersion, VersionOpener
from cohort.onnx_engine.preparation import PreparedVersion, prepare_version

__all__ = [
    "OnnxEngines",
    "OpenVersion",
    "PreparedVersion",
    "VersionOpener",
    "examples_to_try",
    "prepare_version",
    "run_examples",
]
