"""Open ONNX models on a provider chain, and run them.

An `Opener` opens a model file; a `Session` has specs, metadata, a truthful `placement`, and `run`.
"""

from app.session.digests import Digests
from app.session.identity import machine, runtime_build
from app.session.memory import give_back_memory
from app.session.opening import Opener, SessionOptions, open_session
from app.session.processor import available_memory, cores
from app.session.protobuf import Metadata
from app.session.providers import (
    DEFAULT_CHAIN,
    Provider,
    ProviderInvalid,
    ProviderPolicy,
    parse_provider,
)
from app.session.running import Fallback, OrtRunControl, Placement, Session
from app.session.thread_priority import lower_priority

__all__ = [
    "DEFAULT_CHAIN",
    "Digests",
    "Fallback",
    "Metadata",
    "Opener",
    "OrtRunControl",
    "Placement",
    "Provider",
    "ProviderInvalid",
    "ProviderPolicy",
    "Session",
    "SessionOptions",
    "available_memory",
    "cores",
    "give_back_memory",
    "lower_priority",
    "machine",
    "open_session",
    "parse_provider",
    "runtime_build",
]
