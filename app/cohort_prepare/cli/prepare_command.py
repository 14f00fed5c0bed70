"""`cohort prepare`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import rich_click as click

from cohort.cli.frame import Report, report_of, reporting

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cohort_prepare.recipe import ModelRecipe, StepSection


@click.command("prepare")
@click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE.yaml")
@reporting
def prepare(recipe: Path) -> Report:
    """Take a model the whole way that RECIPE.yaml describes, from its framework to a version.

    Each section of the file is the command of that name with its options: convert, verify,
    optimize, quantize, publish. Ends at the first verdict against the model, with that command's
    exit code. The same files give the same model, digest by digest.

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
    """Where the steps leave their models: what the recipe says, or a folder that is gone after."""
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
    """The steps of a recipe, one after the other, each on the model of the one before."""

    recipe: ModelRecipe
    folder: Path
    model: Path = field(init=False)
    done: list[dict[str, object]] = field(default_factory=list)
    shown: list[RenderableType] = field(default_factory=list)

    def follow(self) -> Report:
        """Do all steps. Raises as the step does that fails, with what was done in its findings."""
        from cohort_prepare.failures import PrepareFailed

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
        """Do one step, and say whether the chain goes on."""
        from cohort_prepare.recipe import arguments_of, publish_arguments, source_arguments

        made = self.folder / f"{name}.onnx"
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
            case _:
                before = [str(self.model), "--out", str(made)]
        made.unlink(missing_ok=True)  # of an earlier time: a step may well write none
        report = report_of(_command(name), [*before, *options])
        if made.is_file():
            self.model = made
        self.done.append(
            {"step": name, "good": report.good, **report.findings, "sha256": self._digest()}
        )
        self.shown += [f"— {name}", *report.shown]
        left_as_it_is = getattr(section, "recipe", "") == "auto"  # which is no verdict against it
        return report.good or left_as_it_is

    def _digest(self) -> str:
        from cohort_prepare.onnx_files import model_digest

        return model_digest(self.model)


def _command(name: str) -> click.Command:
    """The command of a step."""
    context = cast(click.Context, click.get_current_context())
    group = cast(click.Group, context.find_root().command)
    found = group.get_command(context, name)
    if found is None:
        raise LookupError(name)
    return found


def _digests(recipe: ModelRecipe) -> Mapping[str, str]:
    """The SHA-256 of each file that the recipe reads, by its path."""
    from cohort.session import Digests

    digests = Digests()
    return {name: digests.of(Path(name)) for name in recipe.inputs() if Path(name).is_file()}
