"""List the code blocks of the pages that the tests do not run, with the reasons: `make docs`."""
