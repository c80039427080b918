"""A second reader of GPU code, which shares no line with torchtailor: what is in a library, and what of it can run.

stock, cut = read_library(Path("libx.so")), read_library(Path("out/libx.so"))
assert runnable(stock, (9, 0)) <= runnable(cut, (9, 0))
assert not foreign(cut, [(9, 0)])
"""

from tests.oracle.library import Container, Entry, Library, read_container, read_library
from tests.oracle.running import Runs, fits, foreign, runnable, unused

__all__ = [
    "Container",
    "Entry",
    "Library",
    "Runs",
    "fits",
    "foreign",
    "read_container",
    "read_library",
    "runnable",
    "unused",
]
