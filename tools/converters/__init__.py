"""Write the table of docs/reports/conversions.md from recorded conversions: `make converters`."""
