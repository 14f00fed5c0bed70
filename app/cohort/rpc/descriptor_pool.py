"""A separate descriptor pool for the generated code.

Open Inference clients define the same message names in different files: Triton's
`grpc_service.proto`, KServe's `grpc_predict_v2.proto`. Protobuf's default pool accepts each name
once per process, so Cohort's messages are in a separate pool. `tools/reference/messages.py` points
the generated code to `Default`, the name it expects.
"""

from __future__ import annotations

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()


def Default() -> DescriptorPool:  # noqa: N802 - generated code calls it by this name
    """Return the pool of the generated modules."""
    return POOL
