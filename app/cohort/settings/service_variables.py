"""Variables that Kubernetes sets in every pod for a Service; they may look like settings.

For a Service named `cohort` there is COHORT_PORT=tcp://10.96.12.7:8000, as Docker sets for links:
https://kubernetes.io/docs/tutorials/services/connect-applications-service/
"""

from __future__ import annotations

import re
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+:\d+", re.IGNORECASE)

_NAME = re.compile(r".+_(SERVICE_(HOST|PORT(_.+)?)|PORT_\d+_(TCP|UDP|SCTP)(_.+)?)")


class OwnEnvironment(EnvSettingsSource):
    """The environment, without the addresses of Services."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return the value of a field, or None if the environment does not have one."""
        value, key, is_complex = super().get_field_value(field, field_name)
        return None if is_service_address(value or "") else value, key, is_complex


def is_service_address(value: str) -> bool:
    """Return True if a variable's value is the address of a Service."""
    return _ADDRESS.fullmatch(value) is not None


def is_service_variable(name: str) -> bool:
    """Return True for a Service's variable without an address; `name` is in upper case."""
    return _NAME.fullmatch(name) is not None
