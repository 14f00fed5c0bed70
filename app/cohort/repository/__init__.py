"""What is on disk: versions, the operator's model configs, and what publishers promised.

`scan` looks at the models folder and gives a `Snapshot`, with each model's `ModelConfig`. All
problems of a config are reported at once. The policies are fields of `ModelConfig` as the modules
they govern declare them, so that every option is declared once. `stamp_files` tells whether a
version's files are still those of a snapshot. `read_published` reads what `cohort publish` wrote
beside a version, and verifies it. The YAML reader is for other files of an operator's, too:
`parse_yaml` and `validate_tree` make dataclasses of them, or raise `ConfigProblems`, and
`FollowedFiles` reads them again once they have changed.
"""

from cohort.repository.cache_config import CachePolicy
from cohort.repository.followed_files import FollowedFiles
from cohort.repository.manifest import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Change,
    Distribution,
    Example,
    InputDistribution,
    Manifest,
    MeasuredOn,
    Published,
    PublishedAccuracy,
    PublishedRows,
    SourceDifference,
    SourceFramework,
    StepDifference,
    StepRecord,
    Trust,
    TrustedKeys,
    Untrusted,
    describe_features,
    dump_manifest,
    fingerprint_of,
    load_trusted_keys,
    parse_manifest,
    read_manifest,
    read_published,
    sign_manifest,
    verify_digests,
    verify_opened,
)
from cohort.repository.misplaced import models_beside
from cohort.repository.model_config import (
    CONFIG_FILE,
    GivenExample,
    ModelConfig,
    VersionPolicy,
    WarmUp,
    load_model_config,
    parse_model_config,
)
from cohort.repository.processing_config import (
    METADATA,
    AudioInput,
    ImageInput,
    InputConfig,
    InputConfigs,
    OutputConfig,
    OutputConfigs,
)
from cohort.repository.schema import Range, invalid, show, validate_tree
from cohort.repository.sequence_config import SequencePolicy, StateConfig
from cohort.repository.snapshot import (
    EMPTY_FOLDER,
    QUIET_SECONDS,
    VERSION_NUMBER,
    Found,
    FoundModel,
    Signatures,
    Snapshot,
    scan,
)
from cohort.repository.stamps import NEVER_SEEN, settled_stamp
from cohort.repository.version_files import MAX_FILES, MODEL_FILE, stamp_files
from cohort.repository.yaml_files import (
    ConfigProblems,
    Problem,
    log_problems,
    parse_yaml,
    read_text,
)

__all__ = [
    "CONFIG_FILE",
    "EMPTY_FOLDER",
    "MANIFEST_FILE",
    "MAX_FILES",
    "METADATA",
    "MODEL_FILE",
    "NEVER_SEEN",
    "QUIET_SECONDS",
    "SIGNATURE_FILE",
    "VERSION_NUMBER",
    "AudioInput",
    "CachePolicy",
    "Change",
    "ConfigProblems",
    "Distribution",
    "Example",
    "FollowedFiles",
    "Found",
    "FoundModel",
    "GivenExample",
    "ImageInput",
    "InputConfig",
    "InputConfigs",
    "InputDistribution",
    "Manifest",
    "MeasuredOn",
    "ModelConfig",
    "OutputConfig",
    "OutputConfigs",
    "Problem",
    "Published",
    "PublishedAccuracy",
    "PublishedRows",
    "Range",
    "SequencePolicy",
    "Signatures",
    "Snapshot",
    "SourceDifference",
    "SourceFramework",
    "StateConfig",
    "StepDifference",
    "StepRecord",
    "Trust",
    "TrustedKeys",
    "Untrusted",
    "VersionPolicy",
    "WarmUp",
    "describe_features",
    "dump_manifest",
    "fingerprint_of",
    "invalid",
    "load_model_config",
    "load_trusted_keys",
    "log_problems",
    "models_beside",
    "parse_manifest",
    "parse_model_config",
    "parse_yaml",
    "read_manifest",
    "read_published",
    "read_text",
    "scan",
    "settled_stamp",
    "show",
    "sign_manifest",
    "stamp_files",
    "validate_tree",
    "verify_digests",
    "verify_opened",
]
