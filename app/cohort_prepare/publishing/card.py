"""MODEL.md, the description of a version for people, and its pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cohort.errors import quoted
from cohort.repository import CARD_FILE, Change, Distribution, Manifest
from cohort.tensors import Arrays
from cohort_prepare.publishing.pictures import draw_features, draw_latency

_MAX_ROWS = 20
"""Maximum rows of a table."""

_MAX_SHOWN = 2000
"""Maximum characters of the example request."""


def write_card(
    folder: Path, manifest: Manifest, *, given: bool, signer: str, notes: Sequence[str]
) -> None:
    """Write MODEL.md and its pictures.

    given: True if the inputs are the user's; False if they were generated.
    signer: Fingerprint of the key that signed the version; "" for none.
    notes: Notes for users of the model.
    """
    lines = [
        *_head(manifest, given, signer),
        *_steps(manifest),
        *_figures(manifest, folder),
        *_features(manifest, folder),
        *_call(manifest),
    ]
    if notes:
        lines += ["## Notes", "", *(f"- {_cell(one)}" for one in notes), ""]
    (folder / CARD_FILE).write_text("\n".join(lines), encoding="utf-8")


def _head(manifest: Manifest, given: bool, signer: str) -> Iterator[str]:
    yield f"# {manifest.model}"
    yield ""
    if manifest.source is not None:
        made = f"{manifest.source.framework} {manifest.source.version}".strip()
        yield f"- Made with {_cell(made)}; ONNX opset {manifest.opset}."
    if manifest.accuracy is not None:
        one = manifest.accuracy
        was = f", its source {one.before:.2%}" if one.before is not None else ""
        yield f"- Accuracy {one.after:.2%} on {one.rows:,} labelled rows{was}."
    if manifest.difference is not None:
        off = manifest.difference
        yield (
            f"- Largest difference from its source: {off.max_absolute:.3g} over {off.rows:,} rows "
            f"({off.max_relative:.3g} relative)."
        )
    yield (
        f"- A server runs examples of {'given' if given else 'generated'} inputs before it sends "
        f"traffic to the version: {len(manifest.examples)}."
    )
    if manifest.rows is not None and manifest.rows.independent:
        shared = [quoted(name) for name, axis in manifest.rows.input_axes.items() if axis is None]
        where = f" in requests of equal {' and '.join(shared)}" if shared else ""
        yield f"- A server may batch its requests: rows do not influence each other{where}."
    yield f"- Signed by {signer}." if signer else "- Not signed."
    yield ""
    yield "| file | SHA-256 |"
    yield "|---|---|"
    for name, digest in list(manifest.files.items())[:_MAX_ROWS]:
        yield f"| {_cell(name)} | `{digest}` |"
    yield ""


def _steps(manifest: Manifest) -> Iterator[str]:
    if not manifest.steps:
        return
    yield "## Steps"
    yield ""
    yield "| step | description | tools | difference |"
    yield "|---|---|---|---|"
    for one in manifest.steps:
        tools = ", ".join(f"{name} {version}" for name, version in one.versions.items())
        off = "" if one.difference is None else f"{one.difference.max_absolute:.3g}"
        yield f"| {_cell(one.step)} | {_cell(one.what)} | {_cell(tools)} | {off} |"
    yield ""


def _figures(manifest: Manifest, folder: Path) -> Iterator[str]:
    yield "## Size and speed"
    yield ""
    if manifest.size_bytes is not None:
        yield f"{_change(manifest.size_bytes, 1e-6, 'MB')}."
    if manifest.measured_on is not None:
        on = manifest.measured_on
        machine = ", ".join(on.machine.splitlines())
        yield f"Runs on {on.provider}, ONNX Runtime {on.runtime}, {_cell(machine)}, one at a time:"
    yield ""
    yield "| rows | run time |"
    yield "|---|---|"
    for rows, change in manifest.latency_ms.items():
        yield f"| {rows} | {_change(change, 1, 'ms')} |"
    yield ""
    draw_latency(manifest, folder / "latency.svg")
    yield "![Run time by rows](latency.svg)"
    yield ""


def _change(change: Change, scale: float, unit: str) -> str:
    now = f"{change.after * scale:,.3g} {unit}"
    return now if change.before is None else f"{now}, before {change.before * scale:,.3g} {unit}"


def _features(manifest: Manifest, folder: Path) -> Iterator[str]:
    if not manifest.features:
        return
    yield "## Inputs"
    yield ""
    yield "| input | column | values | missing | minimum | median | maximum | most frequent |"
    yield "|---|---|---|---|---|---|---|---|"
    rows = [
        _feature_row(name, place, len(feature.columns), one)
        for name, feature in manifest.features.items()
        for place, one in enumerate(feature.columns)
    ]
    yield from rows[:_MAX_ROWS]
    if len(rows) > _MAX_ROWS:
        yield ""
        yield f"And {len(rows) - _MAX_ROWS} more columns, in `manifest.json`."
    yield ""
    draw_features(manifest.features, folder / "features.svg")
    yield "![Distribution of values](features.svg)"
    yield ""


def _feature_row(name: str, place: int, columns: int, one: Distribution) -> str:
    quantiles = [f"{one.quantiles[at]:.4g}" for at in (0, 10, 20)] if one.quantiles else [""] * 3
    listed = ", ".join(f"{value} ({share:.0%})" for value, share in list(one.shares.items())[:3])
    cells = [name, str(place) if columns > 1 else "", f"{one.count:,}", f"{one.missing:,}"]
    return "| " + " | ".join(map(_cell, [*cells, *quantiles, listed])) + " |"


def _call(manifest: Manifest) -> Iterator[str]:
    if not manifest.examples:
        return
    inputs = _plain(manifest.examples[0].inputs)
    try:
        body = _json({"model": manifest.model, "inputs": inputs})
    except (TypeError, ValueError):  # NaN, or bytes
        return
    yield "## Call it"
    yield ""
    if len(body) > _MAX_SHOWN:
        body = _json({"model": manifest.model, "inputs": dict.fromkeys(inputs, "…")})
    yield "```sh"
    yield "curl -s localhost:8000/predict -H 'content-type: application/json' \\"
    yield f"     -d '{body}'"
    yield "```"
    yield ""


def _json(request: Mapping[str, object]) -> str:
    """Format a request as JSON for single quotes in a shell."""
    return json.dumps(request, allow_nan=False, ensure_ascii=False).replace("'", "\\u0027")


def _plain(arrays: Arrays) -> dict[str, object]:
    return {name: array.tolist() for name, array in arrays.items()}


def _cell(text: str) -> str:
    """Escape text so that it stays in its table cell and is not markup."""
    flat = " ".join(text.split())
    for mark in "\\`*_<>[]|!":
        flat = flat.replace(mark, "\\" + mark)
    return flat[:300]
