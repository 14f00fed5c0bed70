"""What pytest needs to know before it collects."""

from __future__ import annotations

import onnxruntime
from hypothesis import settings

# The second provider is in one of the three runtimes (docs/decisions/0001): elsewhere there is
# nothing to skip, since nothing is collected.
collect_ignore = (
    []
    if "OpenVINOExecutionProvider" in onnxruntime.get_available_providers()
    else ["session/test_providers_openvino.py"]
)

# A deadline for each example would fail on a machine that is busy with something else.
settings.register_profile("cohort", deadline=None)
settings.load_profile("cohort")
