"""The documentation site, for Sphinx: `make site` builds it into build/site.

Its sources are the Markdown files of the whole repository, so links between them are the same on
the site as in a checkout. The build checks these links. Readers fetch nothing from other hosts:
Furo includes its fonts and scripts, and diagrams are drawn here.
"""

from pathlib import Path

import mermaidx
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "Cohort"
html_title = "Cohort"
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "docs/index"
source_suffix = {".md": "markdown"}
include_patterns = [
    "*.md",
    "docs/**.md",
    "benchmarks/**.md",
    "deploy/**.md",
    "examples/**.md",
    "models/*.md",
    "tests/first_hour/*.md",
]
exclude_patterns = [
    ".*",
    "app",
    "build",
    "dist",
    "requirements",
    "deploy/containers/config",
    "docs/reports",
    "tests/first_hour",
]

nitpicky = True
show_warning_types = True
suppress_warnings = ["misc.highlighting_failure"]  # JSON with "…" in it; tests/pages reads the rest

html_theme = "furo"
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]

# The pages of the site, by the reader's purpose: to learn, to do, to look up, to understand.
# A title here is short and names the topic; the page's own title may be longer.
NAVIGATION = {
    "Learn": ["Tutorial <tutorial/first-model>", "Examples <../examples/README>"],
    "Guides": [
        *("guide/install", "guide/calling", "guide/inputs"),
        *("guide/playground", "guide/benchmark", "guide/browsers"),
        "guide/tables",
        "guide/pipelines",
        "guide/transform",
        "guide/images",
        *("guide/text", "guide/language-models"),
        "guide/sound",
        "guide/labels",
        "guide/custom-operators",
        *("guide/sequences", "guide/response-cache"),
        "Score files <guide/score>",
        "In a Python program <guide/embed>",
        "Rollouts <guide/rollout>",
        *("guide/rollout-replicas", "guide/webhooks"),
        *("guide/remote", "guide/model-stores", "guide/prepare"),
        *("guide/recipes", "guide/in-graph"),
    ],
    "Operations": [
        *("operations/deploy", "operations/kubernetes", "operations/plain-machines"),
        *("operations/kserve", "operations/clouds", "operations/ray"),
        *("operations/load-balancer", "operations/scale", "operations/capacity"),
        *("operations/upgrade", "operations/compatibility"),
        *("operations/security", "operations/keys", "operations/tls"),
        *("operations/limits", "operations/model-safety"),
        *("operations/monitoring", "operations/tracing", "operations/runbook"),
        "operations/reliability",
    ],
    "Migration": ["migration/README", "migration/*"],
    "Reference": [
        *("reference/configuration", "reference/rest", "Open Inference (V2) <reference/v2>"),
        *(
            "reference/grpc",
            "TensorFlow Serving (V1) <reference/v1>",
            "reference/metrics",
            "reference/profile",
            "reference/row-independence",
            "reference/converters",
            "reference/manifest",
        ),
    ],
    "Explanation": ["explanation/*"],
    "Project": [
        *("README <../README>", "../CONTRIBUTING", "Security policy <../SECURITY>"),
        *("contributing/architecture", "contributing/releasing"),
        *("contributing/prose", "contributing/decisions/README"),
        *("../CHANGELOG", "../benchmarks/*", "../models/*"),
    ],
}

# Pages that are listed below another one.
BELOW = {
    "benchmarks/RESULTS": ["results/*"],
    "docs/contributing/decisions/README": ["0*"],
    "docs/operations/deploy": ["../../deploy/containers/README"],
    "docs/operations/monitoring": [
        "Grafana <../../deploy/grafana/README>",
        "Prometheus <../../deploy/prometheus/README>",
    ],
    "examples/README": ["*/README"],
}


def add_navigation(_: Sphinx, page: str, source: list[str]) -> None:
    """Give pages their tables of contents, which readers of the Markdown are spared."""
    if page == root_doc:
        source[0] += "".join(_contents(pages, caption) for caption, pages in NAVIGATION.items())
    if page in BELOW:
        source[0] += _contents(BELOW[page])


def _contents(pages: list[str], caption: str = "") -> str:
    options = [f":caption: {caption}"] if caption else []
    return "\n".join(["\n```{toctree}", *options, ":hidden:", ":glob:", "", *pages, "```\n"])


def resolve_folders(app: Sphinx, document: nodes.document) -> None:
    """Link a folder to its README. Links to other folders and to reports become text."""
    for link in list(document.findall(addnodes.pending_xref)):
        target = (ROOT / app.env.docname).parent / link["reftarget"]
        if link["refdomain"] == "doc" and link["reftarget"] not in app.env.found_docs:
            link.replace_self(link.children)
        if link["reftype"] != "myst" or link["refdomain"] or not target.is_dir():
            continue
        if (target / "README.md").exists():
            readme = (target / "README").resolve().relative_to(ROOT)
            link.attributes |= {"refdomain": "doc", "reftarget": str(readme), "reftargetid": None}
        else:
            link.replace_self(link.children)


class Mermaid(Directive):
    """A diagram, drawn when the site is built."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        try:
            picture = mermaidx.Diagram("\n".join(self.content)).svg()
        except RuntimeError as error:
            raise self.error(str(error)) from None
        return [nodes.raw("", f'<div class="diagram">{picture}</div>', format="html")]


def write_front_door(app: Sphinx, failure: Exception | None) -> None:
    """Lead who opens the site's folder to its first page."""
    if failure is None and app.builder.format == "html":
        door = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        Path(app.outdir, "index.html").write_text(door, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", resolve_folders)
    app.connect("build-finished", write_front_door)
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
