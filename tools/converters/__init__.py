"""Write the table of docs/reference/converters.md from recorded conversions: `make converters`."""
