"""Inspect models that were never opened before, in a process of their own.

Opening a model runs parsers and optimizers over what somebody else wrote, and a model is a program
besides: a file can crash ONNX Runtime, or have it take all memory or compute for ever. An
`Inspector` has each unknown model opened, and run first, in a child process under limits of CPU
time, time and memory. What becomes of the child is kept by the model's digest, so that a model is
inspected once.

It is no jail: the child runs as the server's user, and a model that passed is then opened by the
server (docs/contributing/decisions/0014).
"""

from cohort.inspection.inspector import Inspected, InspectionLimits, Inspector

__all__ = ["Inspected", "InspectionLimits", "Inspector"]
