"""What holds for all tests."""

from __future__ import annotations

import signal

# A runner that was started in the background ignores Ctrl-C, and every process it starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
