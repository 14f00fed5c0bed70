"""The machine and its processes: cores, child processes, atomically replaced files."""
