"""A descriptor pool of our own for the generated code.

Every Open Inference client ships the same message names in a file of its own (Triton's
`grpc_service.proto`, KServe's `grpc_predict_v2.proto`), and protobuf's default pool takes each name
once per process. Ours are in a pool of their own. `tools/reference/messages.py` points the
generated code to `Default`, the name it knows.
"""

from __future__ import annotations

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()


def Default() -> DescriptorPool:  # noqa: N802 - generated code calls it by this name
    """The pool of the generated modules."""
    return POOL
