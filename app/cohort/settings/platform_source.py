"""Settings from the variables of hosting platforms, below all others."""

from __future__ import annotations

import os
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from cohort.system.platforms import platform_settings


class PlatformEnvironment(PydanticBaseSettingsSource):
    """The variables that SageMaker, Vertex AI, Azure ML or Cloud Run set."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        self._given = platform_settings(os.environ)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return the value of a field, or None if no platform gives it."""
        given = self._given.get(field_name)
        return None if given is None else given.value, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return the values by field."""
        return {name: given.value for name, given in self._given.items()}
