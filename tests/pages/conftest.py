"""Leave tests of the built site to `make docs`, which builds it first."""

from tests.pages.blocks import ASKED

collect_ignore = [] if ASKED == "all" else ["test_site.py"]
