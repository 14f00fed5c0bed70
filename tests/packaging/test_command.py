"""`make install` and `make uninstall`, from the environment on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT


class Place:
    """A checkout with two environments, a home folder, and commands that run in them."""

    def __init__(self, folder: Path) -> None:
        self.home, self.checkout = folder / "home", folder / "checkout"
        self.own = self.home / ".local" / "bin"
        (self.checkout / "deploy").mkdir(parents=True)
        shutil.copy(ROOT / "deploy" / "command.sh", self.checkout / "deploy")
        for name in (".venv", ".venv-cpu"):
            command = self.checkout / name / "bin" / "cohort"
            command.parent.mkdir(parents=True)
            command.write_text(f"#!/bin/sh\necho {name}\n")
            command.chmod(0o755)

    def ask(
        self, *arguments: str, path: str = "/usr/bin:/bin", shell: str = "", folder: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run the script with this PATH, and with HOME, SHELL and BIN where they are not empty."""
        home = str(self.home) if self.home.name else ""
        given = {"HOME": home, "SHELL": shell, "BIN": folder}
        return subprocess.run(
            [self.checkout / "deploy" / "command.sh", *arguments],
            env={"PATH": path} | {name: value for name, value in given.items() if value},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def says(self, path: str) -> str:
        """Return the output of `cohort` in a shell with this PATH."""
        done = subprocess.run(
            ["/bin/sh", "-c", "cohort"],
            check=True,
            env={"PATH": path},
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Nothing installed yet."""
    return Place(tmp_path)


def test_the_runtime_installed_last_is_the_command(place: Place) -> None:
    """The link is in the user's own folder if that is on PATH; and it can be removed."""
    path = f"{place.own}:/usr/bin:/bin"
    for name in (".venv", ".venv-cpu", ".venv-cpu"):
        done = place.ask("link", name, path=path)
        assert done.returncode == 0, done.stderr
        assert f"linked {place.own}/cohort to {name}/bin/cohort" in done.stdout
        assert place.says(path) == name
    assert "removed" in place.ask("unlink", path=path).stdout
    assert list(place.own.iterdir()) == []
    assert "no link" in place.ask("unlink", path=path).stdout


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("/bin/zsh", ".zshrc"),
        ("/bin/bash", ".bashrc"),
        ("/usr/bin/fish", "fish_add_path"),
        ("", "export PATH="),
    ],
)
def test_a_folder_that_is_not_on_the_path_comes_with_the_line_for_it(
    place: Place, shell: str, line: str
) -> None:
    """The line is for the user's shell; running it makes the command available."""
    done = place.ask("link", ".venv", shell=shell)
    assert done.returncode == 0, done.stderr
    assert "is not on PATH" in done.stdout
    assert line in done.stdout.splitlines()[-1]
    assert (place.own / "cohort").is_symlink()
    if not shell:
        given = done.stdout.splitlines()[-1].strip()
        shown = subprocess.run(
            ["/bin/sh", "-c", f"{given}; cohort"],
            check=True,
            env={"PATH": "/bin"},
            capture_output=True,
        )
        assert shown.stdout == b".venv\n"


def test_another_folder_can_be_named(place: Place, tmp_path: Path) -> None:
    """It is made where it is not there, whatever its name."""
    folder = tmp_path / "my tools"
    assert place.ask("link", ".venv", folder=str(folder)).returncode == 0
    assert place.says(str(folder)) == ".venv"
    assert "removed" in place.ask("unlink", folder=str(folder)).stdout
    assert not (folder / "cohort").is_symlink()


def test_a_folder_that_cannot_be_had_changes_nothing(place: Place, tmp_path: Path) -> None:
    """A file may be in its place; or there is neither a home nor a common folder on PATH."""
    (tmp_path / "file").write_text("")
    done = place.ask("link", ".venv", folder=str(tmp_path / "file" / "bin"))
    assert done.returncode != 0
    assert "file" in done.stderr
    place.home = Path()
    done = place.ask("link", ".venv")
    assert done.returncode == 1
    assert "HOME is not set" in done.stderr


def test_what_is_not_ours_is_left_alone(place: Place, tmp_path: Path) -> None:
    """A program, and links of another tool, to another checkout or to nothing stay."""
    place.own.mkdir(parents=True)
    command = place.own / "cohort"
    other = tmp_path / "tools" / "cohort"
    other.parent.mkdir()
    other.write_text("theirs")
    for make in (
        lambda: command.write_text("theirs"),
        lambda: command.symlink_to(other),
        lambda: command.symlink_to(tmp_path / "gone" / ".venv" / "bin" / "cohort"),
    ):
        make()
        before = str(command.readlink()) if command.is_symlink() else command.read_text()
        done = place.ask("link", ".venv")
        assert done.returncode == 1
        assert "nothing was changed" in done.stderr
        assert "BIN=" in done.stderr
        place.ask("unlink")
        assert before == (str(command.readlink()) if command.is_symlink() else command.read_text())
        command.unlink()


def test_another_command_of_that_name_is_told(place: Place, tmp_path: Path) -> None:
    """One that comes first on PATH would be what runs."""
    first = tmp_path / "first"
    first.mkdir()
    shutil.copy(place.checkout / ".venv" / "bin" / "cohort", first)
    done = place.ask("link", ".venv-cpu", path=f"{first}:{place.own}:/usr/bin:/bin")
    assert f"'cohort' runs {first}/cohort" in done.stderr
