"""Where the process starts: `cohort`, and `python -m cohort`.

It takes signals before it imports anything that takes time. What it needs for that is imported in a
few milliseconds.
"""

import os
import signal
import sys

TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """What `cohort` runs."""
    take_signals(sys.argv[1:])
    from cohort.cli import main as run  # noqa: PLC0415 - it takes half a second

    run()


def take_signals(arguments: list[str]) -> None:
    """Take the signals that a supervisor sends, until the command does.

    A server that has not begun has nothing to finish: a signal to stop ends it with 0. An exception
    would not do: what initialises a library may turn it into another one. SIGHUP, which looks at
    files, is for later, unless it is from a terminal that closes.

    The kernel keeps signals without a handler from process 1, which any command may be.
    """
    if arguments[:1] == ["serve"]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(0))
        if not os.isatty(0):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
    elif os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))


if __name__ == "__main__":
    main()
