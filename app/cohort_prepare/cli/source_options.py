"""Options of commands that read a framework's model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from cohort_prepare.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from cohort_prepare.source import SourceModel


def source_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --from, --trust-pickle, --weights, --python and --with; see `detecting.open_source`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@contextmanager
def source_or_onnx(
    text: str,
    framework: str | None,
    *,
    python: str | None,
    packages: Sequence[str],
    on_progress: Callable[[str], None],
    **options: Any,
) -> Iterator[SourceModel | Path]:
    """Yield the source with these options, as in `detecting.open_source`, or its ONNX file.

    A model from MLflow is deleted at the end of the block.
    """
    from cohort_prepare.detecting import open_source
    from cohort_prepare.mlflow_models import source_on_disk

    where: dict[str, Any] = {"python": python, "packages": packages, "on_progress": on_progress}
    with source_on_disk(text, framework, onnx=True, **where) as (on_disk, known):
        if Path(on_disk).suffix.lower() in {".onnx", ".ort"}:
            yield Path(on_disk)
        else:
            with open_source(on_disk, framework=known, **where, **options) as source:
                yield source


_OPTIONS = (
    click.option(
        "--from",
        "framework",
        type=click.Choice(tuple(FRAMEWORKS)),
        help="Framework of the model; default: detected from its file or class.",
    ),
    click.option(
        "--trust-pickle",
        is_flag=True,
        help="Allow pickle files. Loading a pickle can run arbitrary code.",
    ),
    click.option(
        "--weights",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE.safetensors",
        help="Weights for the PyTorch module that module:callable returns.",
    ),
    click.option(
        "--python",
        type=click.Path(),
        help="Python interpreter of the model's environment.",
    ),
    click.option(
        "--with",
        "packages",
        multiple=True,
        metavar="PACKAGE",
        help="Further package that the model needs, in pip's syntax; repeatable.",
    ),
)
