"""`python -m torchtailor`."""

import sys

from torchtailor.cli import main

sys.exit(main())
