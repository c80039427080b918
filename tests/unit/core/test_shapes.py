"""Types that several threads read data into at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torchtailor

ROOT = Path(torchtailor.__file__).parent
READERS = {"msgspec.json.decode": "type", "msgspec.msgpack.decode": "type", "msgspec.convert": 1}

# Without `shaped`, most runs of this crash.
THREADS = """
import sys, threading
from msgspec import Struct, json
from torchtailor.core.shapes import shaped
sys.setswitchinterval(1e-6)
text = b'{"inner": {"leaf": {"a": 1}, "more": [{"a": 1}]}, "named": {"x": {"leaf": {"a": 1}, "more": []}}}'
for _ in range(300):
    class Leaf(Struct):
        a: int
        b: dict[str, str] = {}
    class Inner(Struct):
        leaf: Leaf
        more: list[Leaf]
    class Outer(Struct):
        inner: Inner
        named: dict[str, Inner]
    def read(together=threading.Barrier(4), outer=Outer):
        together.wait()
        assert json.decode(text, type=shaped(outer)).named
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_threads_that_use_a_type_for_the_first_time() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def unprepared(source: str) -> Iterator[str]:
    """The calls that read data into a type which is not `shaped`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and (where := READERS.get(ast.unparse(node.func))):
            given = [word.value for word in node.keywords if word.arg == "type"]
            shapes = given if where == "type" or given else node.args[1:2]
            yield from (ast.unparse(node) for shape in shapes if not ast.unparse(shape).startswith("shaped("))


def test_all_data_is_read_into_types_that_are_ready() -> None:
    assert list(unprepared("msgspec.json.decode(x, type=T); msgspec.convert(x, T); msgspec.json.decode(x)")) == [
        "msgspec.json.decode(x, type=T)",
        "msgspec.convert(x, T)",
    ]
    files = [path for path in ROOT.rglob("*.py") if "opsuite" not in path.parts]
    found = {str(path.relative_to(ROOT)): list(unprepared(path.read_text("utf-8"))) for path in files}
    assert {name: calls for name, calls in found.items() if calls} == {}
