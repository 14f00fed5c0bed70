"""All generated files: the pages and schemas from types, messages from their .proto."""

from __future__ import annotations

import json
from pathlib import Path

from tools import ROOT
from tools.reference.messages import messages
from tools.reference.page import page
from tools.reference.rounding import rounding_page
from tools.reference.rows import rows_page
from tools.reference.schemas import CONFIG, PIPELINE, RECIPE, ROLLOUTS, schema_of
from tools.reference.template import template

SCHEMAS = ROOT / "app/cohort/cli/schemas"
PAGE = ROOT / "docs" / "reference" / "configuration.md"


def written() -> dict[Path, str]:
    """Return the text of each file by its path."""
    return {
        PAGE: page(),
        PAGE.with_name("row-independence.md"): rows_page(),
        ROOT / "docs" / "reports" / "rounding.md": rounding_page(),
        SCHEMAS / "config.yaml": template(),
        **{
            SCHEMAS / file.name.replace(".yaml", ".schema.json"): json.dumps(
                schema_of(file), indent=2, ensure_ascii=False
            )
            + "\n"
            for file in (CONFIG, ROLLOUTS, RECIPE, PIPELINE)
        },
        **messages(),
    }
