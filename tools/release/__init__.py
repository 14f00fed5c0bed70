"""Compare what callers and operators rely on with the last release: `make release-compare`."""
