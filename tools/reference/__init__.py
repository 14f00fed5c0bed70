"""Write docs/reference/configuration.md and app/schemas from the types: `make reference`."""
