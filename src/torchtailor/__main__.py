"""`python -m torchtailor`, and the command itself."""

# Built in: nothing has to be read before Ctrl-C ends us as it ends any program, without a traceback.
import _signal  # type: ignore[import-not-found]

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until the command is imported and runs

import sys

from torchtailor.cli import main


def start() -> None:
    """Run the command and leave with its exit code."""
    sys.exit(main())


if __name__ == "__main__":
    start()
