"""`cohort prepare`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import rich_click as click

from cohort.cli.frame import Report, report_of, reporting

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cohort_prepare.recipe import GraftSection, ModelRecipe, PublishSection, StepSection


@click.command("prepare")
@click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE.yaml")
@reporting
def prepare(recipe: Path) -> Report:
    """Run all steps that RECIPE.yaml describes, from a framework's model to a published version.

    Each section of the file is the command of that name with its options: convert, verify,
    optimize, quantize, publish. The sections add_image_input, add_tokenizer and add_labels move
    pre- and postprocessing into the model. A model that fails a step ends the run, with that
    step's exit code. The same files give the same model, byte by byte.

    \b
    cohort prepare recipe.yaml
    cohort prepare recipe.yaml --json > report.json
    """
    from cohort_prepare.recipe import read_recipe

    wanted = read_recipe(recipe)
    with chdir(recipe.absolute().parent), _work_folder(wanted) as folder:
        return _Chain(wanted, folder).follow()


@contextmanager
def _work_folder(recipe: ModelRecipe) -> Iterator[Path]:
    """Yield the folder for the models of the steps: the recipe's, or a temporary one."""
    from cohort_prepare.onnx_files import temporary_folder

    if recipe.work is None:
        with temporary_folder(Path()) as folder:
            yield folder
    else:
        folder = Path(recipe.work)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


@dataclass
class _Chain:
    """Steps of a recipe, each applied to the model of the step before."""

    recipe: ModelRecipe
    folder: Path
    model: Path = field(init=False)
    config: dict[str, Any] = field(default_factory=dict)
    example: Path | None = None
    done: list[dict[str, object]] = field(default_factory=list)
    shown: list[RenderableType] = field(default_factory=list)

    def follow(self) -> Report:
        """Run all steps. Raises a failed step's error, with the results so far in its findings."""
        from cohort_prepare.failures import PrepareFailed

        if self.recipe.is_onnx:
            self.model = Path(self.recipe.source)
        inputs = _digests(self.recipe)
        names = [name for name, _ in self.recipe.steps]
        for place, (name, section) in enumerate(self.recipe.steps, 1):
            click.echo(f"{place}/{len(names)} {name}", err=True)
            try:
                good = self._step(name, section)
            except PrepareFailed as failure:
                findings = {"failed": name, **failure.findings, "steps": self.done}
                raise type(failure)(f"{name}: {failure}", findings) from failure
            if not good:
                return Report(
                    False, {"failed": name, "inputs": inputs, "steps": self.done}, self.shown
                )
        findings = {"inputs": inputs, "steps": self.done, "sha256": self._digest()}
        return Report(True, findings, self.shown)

    def _step(self, name: str, section: StepSection) -> bool:
        """Run one step; return True if the next one may run."""
        from cohort_prepare.recipe import (
            GraftSection,
            PublishSection,
            arguments_of,
            publish_arguments,
            source_arguments,
        )

        made = self.folder / f"{name}.onnx"
        if isinstance(section, GraftSection):
            return self._graft(name, section, made)
        options = arguments_of(section)
        match name:
            case "convert":
                before = [self.recipe.source, "--out", str(made), *source_arguments(self.recipe)]
            case "verify":
                worst = (Path(self.recipe.work) if self.recipe.work else Path()) / "worst.npz"
                before = [self.recipe.source, str(self.model), "--worst", str(worst)]
                before += source_arguments(self.recipe)
            case "publish":
                before = [str(self.model), *publish_arguments(self.recipe)]
                if self.example is not None and getattr(section, "examples", None) is None:
                    before += ["--examples", str(self.example)]
            case _:
                before = [str(self.model), "--out", str(made)]
        made.unlink(missing_ok=True)  # from an earlier run: a step may write no file
        report = report_of(_command(name), [*before, *options])
        if made.is_file():
            self.model = made
        self.done.append(
            {"step": name, "good": report.good, **report.findings, "sha256": self._digest()}
        )
        self.shown += [f"— {name}", *report.shown]
        if isinstance(section, PublishSection) and report.good and self.config:
            self.shown.append(self._configure(section))
        left_as_it_is = getattr(section, "recipe", "") == "auto"  # not a failure
        return report.good or left_as_it_is

    def _graft(self, name: str, section: GraftSection, made: Path) -> bool:
        from cohort_prepare.grafting.from_recipe import do_graft, write_config, write_example

        grafted = do_graft(section, self.model, made)
        self.model = made
        self.config.update(grafted.config)
        if grafted.example:
            self.example = write_example(grafted, made)
        if self.config:
            write_config(self.config, made.with_suffix(".config.yaml"), made.name)
        self.done.append({"step": name, "good": True, **grafted.findings, "sha256": self._digest()})
        self.shown += [f"— {name}", grafted.what]
        return True

    def _configure(self, section: PublishSection) -> str:
        """Write the published model's config; return what was done, or what the user must do."""
        from cohort.system.remote_address import is_remote
        from cohort_prepare.grafting.from_recipe import write_config

        needed = ", ".join(f"{key}: {json.dumps(value)}" for key, value in self.config.items())
        config = Path(section.to) / section.name / "config.yaml"
        if is_remote(section.to) or config.exists():
            where = f"{section.to}/{section.name}/config.yaml" if is_remote(section.to) else config
            return f"add to {where}: {needed}"
        write_config(self.config, config, section.name)
        return f"Wrote {config}: {needed}"

    def _digest(self) -> str:
        from cohort_prepare.onnx_files import model_digest

        return model_digest(self.model)


def _command(name: str) -> click.Command:
    """Return the command of a step."""
    context = cast(click.Context, click.get_current_context())
    group = cast(click.Group, context.find_root().command)
    found = group.get_command(context, name)
    if found is None:
        raise LookupError(name)
    return found


def _digests(recipe: ModelRecipe) -> Mapping[str, str]:
    """Return the SHA-256 of each file that the recipe reads, by path."""
    from cohort.session import Digests

    digests = Digests()
    return {name: digests.of(Path(name)) for name in recipe.inputs() if Path(name).is_file()}
