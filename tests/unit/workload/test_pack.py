"""Packs: what is written is read, and damage of any kind is an error and never another container."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gpucode.builders import Entry, container
from torchtailor.code.binary.source import BufferSource
from torchtailor.core.errors import BadInputError
from torchtailor.workload.pack import Pack, PackWriter, container_key, new_pack, open_pack


def containers(count: int) -> dict[bytes, bytes]:
    code = random.Random(count)
    return {
        code.randbytes(16): bytes(container(Entry(code.randbytes(8 * code.randrange(1, 40)), sm=90)))
        for _ in range(count)
    }


def written(path: Path, content: dict[bytes, bytes]) -> bytes:
    with new_pack(path, len(content), {"library": "libx.so"}) as writer:
        for key, data in content.items():
            writer.add(key, [data[:16], data[16:]])
    return path.read_bytes()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_what_is_written_is_found(tmp_path: Path, count: int) -> None:
    content = containers(count)
    written(tmp_path / "a.ttpack", content)
    with open_pack(tmp_path / "a.ttpack") as pack:
        assert pack.description["library"] == "libx.so"
        assert [row.key for row in pack.rows] == sorted(content)
        for key, data in content.items():
            row = pack.find(key)
            assert row is not None and row.offset % 64 == 0
            assert bytes(pack.source.read(row.offset, row.size)) == data
            assert pack.container(row).stored_size == len(data)
        assert pack.find(b"\xff" * 16) is None and pack.find(bytes(16)) is None


def test_the_same_container_is_stored_once(tmp_path: Path) -> None:
    content = containers(1)
    key, data = next(iter(content.items()))
    fd = os.open(tmp_path / "a.ttpack", os.O_RDWR | os.O_CREAT)
    writer = PackWriter(fd, 5, {})
    for _ in range(5):
        writer.add(key, [data])
    assert writer.count == 1
    size = writer.finish()
    os.close(fd)
    assert size == (tmp_path / "a.ttpack").stat().st_size


def test_the_key_is_the_hash_of_the_container(tmp_path: Path) -> None:
    import hashlib

    from torchtailor.code.gpucode.fatbin import read_container

    data = bytes(container(Entry(b"code" * 50, sm=90)))
    source = BufferSource(bytes(24) + data + b"more")
    assert (
        container_key(source, read_container(source, 24, 24 + len(data)))
        == hashlib.blake2b(data, digest_size=16).digest()
    )


@given(st.data())
def test_damage_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Of a pack with one byte changed or cut short nothing comes out but what was put in."""
    content = containers(7)
    whole = written(tmp_path_factory.mktemp("pack") / "a.ttpack", content)
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    try:
        pack = Pack.read(BufferSource(damaged))
    except BadInputError:
        return
    for key, stored in content.items():
        row = pack.find(key)
        if row is not None:
            try:
                found = pack.container(row)
            except BadInputError:
                continue
            assert bytes(pack.source.read(found.offset, found.stored_size)) == stored
