"""Draw a model's graph as a self-contained HTML page.

The model's names, which may be anything, are embedded as JSON that cannot end a tag, and displayed
as text. A policy in the page allows only its own script.
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
    """Write the page; return what it omits of the graph, or "". Raises OSError.

    inferred: The model with inferred shapes.
    job: Has the model's `path`, the `providers` of nodes by name, and the verdict on `rows`.
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
        ("{{data}}", _embedded(data)),  # last, so that nothing in it is replaced
    ):
        html = html.replace(mark, text, 1)
    return html


def _joined(files: Iterable[Path]) -> str:
    """Concatenate files, without import lines, since imported modules come before."""
    texts = (path.read_text(encoding="utf-8") for path in files)
    lines = chain.from_iterable(map(str.splitlines, texts))
    return "\n".join(line for line in lines if not line.startswith("import "))


def _source(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _embedded(data: Mapping[str, Any]) -> str:
    """Format JSON for a script element, which no text in it can end."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return "".join(f"\\u{ord(one):04x}" if one in SEPARATE else one for one in text)
