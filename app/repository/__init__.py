"""What is on disk: versions, the operator's model configs, and what publishers promised.

`scan` looks at the models folder and gives a `Snapshot`. A config is read whole before anybody is
told: all problems of a file come at once. The policies are fields of `ModelConfig` as the modules
they govern declare them, so that every option is declared once.
"""

from app.repository.manifest import Manifest, read_manifest, verify_digests
from app.repository.model_config import (
    ModelConfig,
    VersionPolicy,
    WarmUp,
    load_model_config,
    parse_model_config,
)
from app.repository.schema import Range, check, sentence
from app.repository.snapshot import QUIET, Found, FoundModel, Snapshot, scan
from app.repository.yaml_files import ConfigProblems, Problem, parse_yaml, read_text

__all__ = [
    "QUIET",
    "ConfigProblems",
    "Found",
    "FoundModel",
    "Manifest",
    "ModelConfig",
    "Problem",
    "Range",
    "Snapshot",
    "VersionPolicy",
    "WarmUp",
    "check",
    "load_model_config",
    "parse_model_config",
    "parse_yaml",
    "read_manifest",
    "read_text",
    "scan",
    "sentence",
    "verify_digests",
]
