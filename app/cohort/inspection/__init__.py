"""Inspect models that were never opened before, in a child process.

Opening a model runs parsers and optimizers on an untrusted file, and the model itself is a program.
A file can crash ONNX Runtime, exhaust memory or compute forever. An `Inspector` opens and runs each
unknown model in a child process with limits on CPU time, wall-clock time and memory. The result is
stored under the model's digest, so each model is inspected once.

The child is not a sandbox: it runs as the server's user. The server itself then opens a model that
passed (docs/contributing/decisions/0014).
"""

from cohort.inspection.inspector import Inspected, InspectionLimits, Inspector

__all__ = ["Inspected", "InspectionLimits", "Inspector"]
