"""What is built and read in a browser is left to `make docs`, which builds it first."""

from tests.pages.blocks import ASKED

collect_ignore = [] if ASKED == "all" else ["test_site.py"]
