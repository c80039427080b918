"""Which CPU instructions a library needs, per function, and which of its functions always run."""

from torchtailor.core.errors import EnvironmentProblem
from torchtailor.core.extras import how_to_add

try:
    import capstone as _capstone  # noqa: F401
    import numpy as _numpy  # noqa: F401
except ImportError as error:
    raise EnvironmentProblem(
        f"Reading the host code of libraries needs the Python package {error.name}, which is not installed.",
        how_to_add("verify"),
    ) from error
