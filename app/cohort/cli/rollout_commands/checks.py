"""Checks of commands before they edit the rollouts file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

import rich_click as click

from cohort.cli.options import fail

if TYPE_CHECKING:
    from cohort.cli.rollout_commands.yaml_edit import RolloutsFile
    from cohort.repository import Signatures
    from cohort.rollouts import Rollout
    from cohort.settings import Settings


def check_model(settings: Settings, file: RolloutsFile, model: str) -> None:
    """Exit if the model does not exist. Skipped if there is no models folder."""
    from cohort.errors import did_you_mean, quoted

    folder = settings.models_folder
    if not folder.is_dir():
        return
    known = {one.name for one in folder.iterdir() if one.is_dir()}
    if model not in known:
        known |= file.configs.keys()
        fail(f"model {quoted(model)} not found in {folder}{did_you_mean(model, known)}")


def check_version(settings: Settings, model: str, name: str, version: int) -> None:
    """Exit if a version does not exist. Skipped if there is no models folder."""
    from cohort.errors import available

    folder = settings.models_folder / model
    if not folder.is_dir() or (folder / str(version)).is_dir():
        return
    names = (one.name for one in folder.iterdir() if one.is_dir())
    there = [int(one) for one in names if one.isascii() and one.isdecimal()]
    fail(f"version {version} of {name} not found in {folder}{available(there)}")


def check_first(model: str, shares: Mapping[str, float], versions: Mapping[str, int]) -> None:
    """Exit if a model's first rollout lacks variants or versions. Shares are in percent."""
    rest = 100 - sum(shares.values())
    if rest < 0 or (shares.keys() <= versions.keys() and rest <= 1e-9):
        return  # complete, or over 100 %, which is reported elsewhere
    wanted = {**({"stable": rest} if rest > 0 else {}), **shares}
    words = [f"{name}={share:g}%" for name, share in wanted.items()]
    words += [
        f"--version {name}={versions.get(name, place)}" for place, name in enumerate(wanted, 1)
    ]
    fail(
        f"{model} has no rollout: name all variants and their versions, "
        f"for example: cohort rollout set {model} {' '.join(words)}"
    )


def check_highest(settings: Settings, model: str, version: int) -> None:
    """Exit if the model would serve another version without a rollout."""
    from cohort.registry import hold_back
    from cohort.repository import VERSION_FILES, scan

    found = scan(settings.models_folder, quiet=0, kinds=VERSION_FILES).models.get(model)
    if found is None or found.config is None:
        fail(f"{model} cannot be read in {settings.models_folder}")
    held_back = hold_back(found.signatures)
    highest = max(found.config.versions.wanted(found.versions.keys() - held_back), default=None)
    if highest != version:
        why = f": {held_back[version]}" if version in held_back else ""
        fail(f"without a rollout, version {highest} of {model} would serve, not {version}{why}")


def read_signatures(settings: Settings, model: str, versions: Iterable[int]) -> Signatures:
    """Return the signatures of a model's versions, as far as their files can be read."""
    from cohort.repository import MODEL_FILE, ConfigProblems, load_model_config
    from cohort.session import read_signature

    folder = settings.models_folder / model
    found = {}
    try:
        if load_model_config(folder).allow_signature_change:
            return {}
        for version in versions:
            path = folder / str(version) / MODEL_FILE
            found[version] = read_signature(path) if path.is_file() else None
    except (ConfigProblems, OSError):
        return {}
    return found


def read_file(settings: Settings) -> RolloutsFile:
    """Read the rollouts file; print its problems and exit if it is invalid."""
    from cohort.cli.rollout_commands.yaml_edit import RolloutsFile
    from cohort.repository import ConfigProblems

    try:
        return RolloutsFile.read(settings.rollouts)
    except ConfigProblems as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        fail("the rollouts file is invalid; nothing was changed")


def rollout_of(file: RolloutsFile, model: str) -> Rollout:
    """Return the rollout of a model; exit if it has no rollout."""
    if model not in file.configs:
        no_rollout(file, model)
    return file.configs[model].rollout


def variant_of(rollout: Rollout, variant: str) -> str:
    """Return the name of a variant; exit if it does not exist."""
    if variant not in rollout.variants:
        no_variant(rollout.model, variant, rollout.variants)
    return variant


def no_rollout(file: RolloutsFile, model: str) -> NoReturn:
    """Exit with an error: the model has no rollout."""
    from cohort.errors import did_you_mean, quoted

    fail(f"model {quoted(model)} has no rollout{did_you_mean(model, file.configs)}")


def no_variant(model: str, name: str, known: Collection[str], more: str = "") -> NoReturn:
    """Exit with an error: the variant does not exist. `more` is added to the message."""
    from cohort.errors import did_you_mean, quoted

    there = did_you_mean(name, known)
    fail(f"variant {quoted(name)} of model {quoted(model)} not found{there}{more}")
