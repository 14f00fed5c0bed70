"""The machine and its processes: cores, children, files that are replaced whole."""
