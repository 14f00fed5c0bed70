"""The graph of a model as one page of HTML that needs nothing else.

What a model says goes into the page as JSON in which no tag can end, and from there into text: its
names may be anything. A policy in the page lets no script run but its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import onnx

from cohort.inspection.drawing import describe_shape, draw_model
from cohort_prepare.overview.reading import describe_type

_HERE = Path(__file__).parent
_PLAYGROUND = _HERE.parents[1] / "cohort/http/playground/page"

PAGE_PARTS = ("dom.js", "graph_layout.js", "graph_rows.js", "graph_view.js")
PAGE_MODULES = (
    *(_PLAYGROUND / name for name in PAGE_PARTS),
    _HERE / "page.js",
)
PAGE_STYLES = (_PLAYGROUND / "graph.css", _HERE / "page.css")

SEPARATE = frozenset("<>&\u2028\u2029")


def draw(inferred: onnx.ModelProto, job: Mapping[str, Any], page: Path) -> str:
    """Write the page, and say what of the graph it leaves out; "" for nothing. Raises OSError.

    inferred: The model with the shapes of its values.
    job: Has the model's `path`, the `providers` of its nodes, by name, and what is known of `rows`.
    """
    path = Path(job["path"])
    types = dict(map(_named_type, inferred.graph.value_info))
    drawn = draw_model(path, job.get("providers", {}), types)
    data = {"title": path.name, "rows": job.get("rows", {}), **drawn._asdict()}
    page.write_text(_page(data), encoding="utf-8")
    return drawn.left_out


def _named_type(value: onnx.ValueInfoProto) -> tuple[str, str]:
    kind, shape = describe_type(value.type)
    return value.name, kind if shape is None else f"{kind} {describe_shape(shape)}"


def _page(data: Mapping[str, Any]) -> str:
    html = (_HERE / "page.html").read_text(encoding="utf-8")
    style, script = map(_joined, (PAGE_STYLES, PAGE_MODULES))
    for mark, text in (
        ("{{style-source}}", _source(style)),
        ("{{script-source}}", _source(script)),
        ("{{style}}", style),
        ("{{script}}", script),
        ("{{data}}", _embedded(data)),  # last: nothing in it is replaced
    ):
        html = html.replace(mark, text, 1)
    return html


def _joined(files: Iterable[Path]) -> str:
    """Files one after the other; modules need not import what stands before them."""
    texts = (path.read_text(encoding="utf-8") for path in files)
    lines = chain.from_iterable(map(str.splitlines, texts))
    return "\n".join(line for line in lines if not line.startswith("import "))


def _source(text: str) -> str:
    """How a Content-Security-Policy names a script or style that stands in the page itself."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON inside a script element, which no text in it can end."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return "".join(f"\\u{ord(one):04x}" if one in SEPARATE else one for one in text)
