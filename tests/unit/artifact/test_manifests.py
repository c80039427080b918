"""Manifests that others wrote: a value of the wrong type is bad input, wherever it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchtailor.core.errors import BadInputError
from torchtailor.trees.artifact.manifests import read_tailored, read_wheelhouse_manifest

_FILE = {"filename": "torch-2.8.0-cp313-cp313-linux_x86_64.whl", "sha256": "0" * 64, "size": 5}
WHEELHOUSE = {
    "variant": "sm90-avx2",
    "target": {"gpu": "9.0", "isa": "avx2", "arch": "x86_64", "python": "3.13"},
    "requirements": ["torch==2.8.0"],
    "wheels": [{"output": _FILE, "input": _FILE, "step": "cut", "name": "torch"}],
    "totals": {"input_bytes": 5, "output_bytes": 4},
    "proof": {"libraries_of_the_system": ["libc.so.6"]},
}
TAILORED = {
    "target": {"gpus": ["9.0"], "archs": ["9.0", "10.0a+PTX"], "label": "sm90", "keep_ptx": False},
    "policy": {"lto": False, "split": False, "workload": {"pack": False}},
    "libraries": [
        {"path": "a.so", "status": "cut", "size_before": 9, "size_after": 5, "kept": {"sm_90": {"stored": 5}}}
    ],
    "dropped_files": [{"path": "b.a"}],
    "input": {"name": "torch"},
    "output": {"kind": "wheel"},
}
WRONG: tuple[object, ...] = (None, True, -1, 10**30, 1.5, "x\u2028", [], {}, [[]], [{}], {"a": []}, [None])


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in _places(item, (*path, key)))]


def _with(document: Any, path: tuple[Any, ...], wrong: object) -> Any:
    if not path:
        return wrong
    copy = json.loads(json.dumps(document))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = wrong
    return copy


@pytest.mark.parametrize(("document", "read"), [(WHEELHOUSE, read_wheelhouse_manifest), (TAILORED, read_tailored)])
def test_any_type_at_any_place(document: Any, read: Any) -> None:
    assert read(json.dumps(document).encode(), "m.json") == document
    refused = 0
    for path in _places(document):
        for wrong in WRONG:
            try:
                read(json.dumps(_with(document, path, wrong)).encode(), "m.json")
            except BadInputError as error:
                refused += 1
                assert error.message.startswith("m.json is damaged")
    assert refused > 100
