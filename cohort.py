"""The command `cohort`, also as `python -m cohort`.

Its package is called `app`, like that of many a project. Started in such a project, with PYTHONPATH
naming it or not, this imports the one beside it.
"""

import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Run the command."""
    here = Path(__file__).parent
    found = find_spec("app")
    if found is None or found.origin != str(here / "app" / "__init__.py"):
        sys.path.insert(0, str(here))
    from app.cli import main as run  # noqa: PLC0415 - which one it is, was just seen to

    run()


if __name__ == "__main__":
    main()
