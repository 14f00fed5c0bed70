"""The options of a command that takes a framework's model."""

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
    """Add --from, --trust-pickle, --weights, --python and --with, for `detecting.open_source`."""
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
    say: Callable[[str], None],
    **options: Any,
) -> Iterator[SourceModel | Path]:
    """The source with these options, as `detecting.open_source` takes them, or its ONNX file.

    That of a registered model of MLflow is as long there as the block lasts.
    """
    from cohort_prepare.detecting import open_source
    from cohort_prepare.mlflow_models import source_on_disk

    where: dict[str, Any] = {"python": python, "packages": packages, "say": say}
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
        help="The model's framework; otherwise found by its file or its class.",
    ),
    click.option(
        "--trust-pickle",
        is_flag=True,
        help="Read SOURCE though it is a pickle, which runs what is in it.",
    ),
    click.option(
        "--weights",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE.safetensors",
        help="Weights for the PyTorch module that module:callable makes.",
    ),
    click.option(
        "--python",
        type=click.Path(),
        help="The Python of your model's own environment.",
    ),
    click.option(
        "--with",
        "packages",
        multiple=True,
        metavar="PACKAGE",
        help="What your model needs besides, as pip writes it; can be given several times.",
    ),
)
