"""Open ONNX models on a provider chain, and run them.

An `Opener` opens a model file; a `Session` has specs, metadata, a truthful `placement`, and `run`.
"""

from app.model_file.graphs import MAX_NODES
from app.model_file.protobuf import Metadata
from app.processor import available_memory, cores, cpu_limit, share_machine
from app.session.assignment import AssignedNode
from app.session.cancellation import CancellationToken, WorkCancelled
from app.session.chains import DefaultChain, default_chain
from app.session.digests import Digests
from app.session.failures import lacks_resources, ran_out_of_memory, sentence
from app.session.file_kinds import why_pointer
from app.session.identity import machine, runtime_build
from app.session.memory import give_back_memory
from app.session.model_files import find_external
from app.session.opening import Opener, SessionOptions, open_session
from app.session.private_copy import PrivateCopy, clean_copies
from app.session.providers import (
    SPELLINGS,
    Provider,
    ProviderInvalid,
    ProviderPolicy,
    available_providers,
    parse_provider,
)
from app.session.room import ROOM
from app.session.rules import (
    ANY_MODEL,
    ModelRules,
    check_external,
    check_model_file,
    model_rules,
)
from app.session.running import Fallback, OrtRunControl, Placement, Session
from app.session.runtime import ORT_VERSION
from app.session.signatures import Signature, read_signature
from app.session.thread_priority import lower_priority
from app.session.value_types import infer_types

__all__ = [
    "ANY_MODEL",
    "MAX_NODES",
    "ORT_VERSION",
    "ROOM",
    "SPELLINGS",
    "AssignedNode",
    "CancellationToken",
    "DefaultChain",
    "Digests",
    "Fallback",
    "Metadata",
    "ModelRules",
    "Opener",
    "OrtRunControl",
    "Placement",
    "PrivateCopy",
    "Provider",
    "ProviderInvalid",
    "ProviderPolicy",
    "Session",
    "SessionOptions",
    "Signature",
    "WorkCancelled",
    "available_memory",
    "available_providers",
    "check_external",
    "check_model_file",
    "clean_copies",
    "cores",
    "cpu_limit",
    "default_chain",
    "find_external",
    "give_back_memory",
    "infer_types",
    "lacks_resources",
    "lower_priority",
    "machine",
    "model_rules",
    "open_session",
    "parse_provider",
    "ran_out_of_memory",
    "read_signature",
    "runtime_build",
    "sentence",
    "share_machine",
    "why_pointer",
]
