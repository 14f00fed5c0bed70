"""The Open Inference Protocol with Triton's extensions, shared by REST and gRPC.

The adapters translate JSON and binary data, or protobuf, to an `InferRequest` and from an
`InferResponse`. For everything else they translate plain documents. Validation, semantics and error
messages are here, so that a request means the same over both protocols.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol
https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from cohort.open_inference.configuration import model_config
from cohort.open_inference.inference import Inference, InferResponse, OutputTensor
from cohort.open_inference.inference_statistics import model_statistics
from cohort.open_inference.metadata import model_metadata, server_metadata
from cohort.open_inference.parameters import NO_PARAMETERS, Parameters, is_shared
from cohort.open_inference.regions import NO_CUDA, NO_REGIONS, Regions
from cohort.open_inference.repository import load_model, repository_index
from cohort.open_inference.request import InferRequest, InputTensor, make_request

__all__ = [
    "NO_CUDA",
    "NO_PARAMETERS",
    "NO_REGIONS",
    "InferRequest",
    "InferResponse",
    "Inference",
    "InputTensor",
    "OutputTensor",
    "Parameters",
    "Regions",
    "is_shared",
    "load_model",
    "make_request",
    "model_config",
    "model_metadata",
    "model_statistics",
    "repository_index",
    "server_metadata",
]
