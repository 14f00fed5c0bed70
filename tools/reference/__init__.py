"""Write docs/reference/configuration.md, app/schemas and app/rpc's messages: `make reference`."""
