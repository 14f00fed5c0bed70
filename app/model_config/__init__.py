"""What an operator may say about models, and every way to get it wrong.

The policies are fields of `ModelConfig` as the modules they govern declare them, so that every
option is declared once. A file is read whole before anybody is told: all its problems come at once.
"""

from app.model_config.config import (
    FILE,
    ModelConfig,
    VersionPolicy,
    WarmUp,
    load_model_config,
    parse_model_config,
)
from app.model_config.files import MOST_BYTES, ConfigProblems, Problem, parse_yaml, read_text
from app.model_config.rollouts import RolloutConfig, load_rollouts, parse_rollouts

__all__ = [
    "FILE",
    "MOST_BYTES",
    "ConfigProblems",
    "ModelConfig",
    "Problem",
    "RolloutConfig",
    "VersionPolicy",
    "WarmUp",
    "load_model_config",
    "load_rollouts",
    "parse_model_config",
    "parse_rollouts",
    "parse_yaml",
    "read_text",
]
