"""Open ONNX models on a provider chain, and run them.

An `Opener` opens a model file; a `Session` has specs, metadata, a truthful `placement`, and `run`.
"""

from cohort.model_file.graphs import MAX_NODES
from cohort.model_file.model import Metadata
from cohort.session.assignment import AssignedNode
from cohort.session.cancellation import CancellationToken, WorkCancelled
from cohort.session.chains import DefaultChain, default_chain
from cohort.session.declared_classes import metadata_labels
from cohort.session.declared_inputs import declared_categories
from cohort.session.digests import Digests
from cohort.session.failures import (
    lacks_resources,
    ran_out_of_memory,
    run_failure,
    sentence,
)
from cohort.session.file_decoders import FILE_DECODERS
from cohort.session.file_kinds import why_pointer
from cohort.session.identity import machine, runtime_build
from cohort.session.memory import give_back_memory
from cohort.session.memory_growth import MEMORY_GROWTH
from cohort.session.model_files import find_external
from cohort.session.opening import Opener, SessionOptions, open_session
from cohort.session.private_copy import PrivateCopy, clean_copies
from cohort.session.providers import (
    SPELLINGS,
    Provider,
    ProviderInvalid,
    ProviderPolicy,
    available_providers,
    parse_provider,
)
from cohort.session.room import ROOM
from cohort.session.rules import (
    ANY_MODEL,
    ModelRules,
    check_external,
    check_model_file,
    model_rules,
)
from cohort.session.running import (
    CPU_DEVICE,
    Fallback,
    OrtRunControl,
    Placement,
    Session,
    give_back_arenas,
)
from cohort.session.runtime import ORT_VERSION
from cohort.session.signatures import Signature, read_signature
from cohort.session.thread_priority import lower_priority
from cohort.session.value_types import infer_types
from cohort.system.processor import available_memory, cores, cpu_limit, share_machine

__all__ = [
    "ANY_MODEL",
    "CPU_DEVICE",
    "FILE_DECODERS",
    "MAX_NODES",
    "MEMORY_GROWTH",
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
    "declared_categories",
    "default_chain",
    "find_external",
    "give_back_arenas",
    "give_back_memory",
    "infer_types",
    "lacks_resources",
    "lower_priority",
    "machine",
    "metadata_labels",
    "model_rules",
    "open_session",
    "parse_provider",
    "ran_out_of_memory",
    "read_signature",
    "run_failure",
    "runtime_build",
    "sentence",
    "share_machine",
    "why_pointer",
]
