"""The settings of the process: the `COHORT_*` variables, read in one place."""

from cohort.settings.settings import (
    Settings,
    SettingsInvalid,
    default_in_words,
    read_settings,
    variable,
)
from cohort.settings.unknown import unknown_variables

__all__ = [
    "Settings",
    "SettingsInvalid",
    "default_in_words",
    "read_settings",
    "unknown_variables",
    "variable",
]
