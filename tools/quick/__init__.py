"""Check the files that changed and run the tests that their change needs: `make quick`."""
