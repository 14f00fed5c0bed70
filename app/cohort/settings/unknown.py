"""Variables that look like settings but are not."""

from __future__ import annotations

from collections.abc import Mapping

from cohort.errors import did_you_mean, quoted
from cohort.settings.service_variables import is_service_address, is_service_variable
from cohort.settings.settings import PREFIX, Settings, variable


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each `COHORT_*` variable that is not a setting, usually a typo.

    Variables that Kubernetes sets for a Service are left out, unless one hides a setting.
    """
    known = [*map(variable, Settings.model_fields), "COHORT_API_KEY"]  # commands read that
    problems = []
    for name, value in sorted(environ.items()):
        upper = name.upper()
        if not upper.startswith(PREFIX):
            continue
        if is_service_address(value):
            if upper in known:
                service = upper.removesuffix("_PORT").lower().replace("_", "-")
                problems.append(
                    f"{name} is ignored: Kubernetes sets {quoted(value)} for a Service named "
                    f"{service}; the default is used"
                )
        elif upper not in known and not is_service_variable(upper):
            problems.append(f"{name} is not a setting{did_you_mean(upper, known)}")
    return problems
