"""Makes a folder on PYTHONPATH one whose .pth files are run; Python imports this from there as `sitecustomize`.

It then runs the `sitecustomize` that it hides, which a distribution or a company may have.
"""

# ruff: noqa: PTH100, PTH120

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

if __name__ == "sitecustomize":
    _own = os.path.dirname(os.path.abspath(__file__))
    _site = vars(sys.modules["site"])  # which imports this
    if _own not in _site["getsitepackages"]() and _own != _site["getusersitepackages"]():
        _site["addsitedir"](_own)
    _others = [place for place in sys.path if os.path.abspath(place) != _own]
    if (_hidden := PathFinder.find_spec("sitecustomize", _others)) and _hidden.loader:
        _hidden.loader.exec_module(sys.modules[__name__])
