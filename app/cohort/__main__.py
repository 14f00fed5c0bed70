"""The entry point of `cohort` and `python -m cohort`.

It installs signal handlers before it imports slow modules; its own imports take a few milliseconds.
"""

import os
import signal
import sys

TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Run the `cohort` command."""
    take_signals(sys.argv[1:])
    from cohort.cli import main as run  # noqa: PLC0415 - it takes half a second

    run()


def take_signals(arguments: list[str]) -> None:
    """Handle a supervisor's signals until the command installs its own handlers.

    A server that has not started has no work to finish, so a stop signal ends it with exit code 0.
    The handler calls os._exit, because a library's initialisation may convert an exception into
    another one. SIGHUP, which rereads files, is ignored unless stdin is a terminal.

    The kernel does not deliver signals without a handler to process 1, which any command may be.
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
