"""Write docs/reference/configuration.md, the schemas and rpc's messages: `make reference`."""
