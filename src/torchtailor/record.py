"""`python -m torchtailor.record -o app.trace -- python app.py`: the command `torchtailor record`."""

from __future__ import annotations

import sys

from torchtailor.__main__ import start

if __name__ == "__main__":
    sys.argv[1:1] = ["record"]
    start()
