"""Every framework, each in its environment: what `make converters` runs."""
