"""Damage: of bytes, of text, and of documents whose shape stays and whose values are another's."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import Any

HOSTILE: tuple[Any, ...] = (
    "", ".", "..", "../../../../../victim", "/etc/passwd", "a/../../../victim", "\x00", "\x1b[2J", "<script>", '"><b>',
    "-rf", "--upload-pack=x", "x" * 5000, "9" * 5000, "1" * 4400 + ".0", "\u202e", "http://[x", "http://h:x/",
    "https://user:secret@host/", "0" * 64, "f" * 63, "g" * 64, "nan", "inf", "1e400", "%", "{}", "é", "~",
    0, 1, -1, 2**31, 2**63, 2**64, 10**30, -(2**63), 1.5, 1e308, True, False, None, [], {}, [[]], [None], {"": ""},
)  # fmt: skip


def damage_bytes(data: bytes, dice: random.Random) -> bytes:
    """One to five changes anywhere."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        if not changed:
            break
        at = dice.randrange(len(changed))
        match dice.randrange(6):
            case 0 | 1:
                changed[at] ^= 1 << dice.randrange(8)
            case 2:
                changed[at : at + 4] = dice.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"))
            case 3:
                piece = bytes(changed[at : at + dice.randrange(1, 200)])
                place = dice.randrange(len(changed))
                changed[place : place + (len(piece) if dice.random() < 0.5 else 0)] = piece
            case 4:
                del changed[at : at + dice.randrange(1, 50)]
            case _ if dice.random() < 0.3:
                del changed[at:]
    return bytes(changed)


def damage_document(document: Any, dice: random.Random) -> Any:
    """The same document with one to three values replaced, removed, repeated or wrapped."""
    document = json.loads(json.dumps(document))
    for _ in range(dice.choice((1, 1, 2, 3))):
        holders = list(_holders(document))
        if not holders:
            return dice.choice(HOSTILE)
        holder, key = dice.choice(holders)
        match dice.randrange(8):
            case 0:
                del holder[key]
            case 1:
                holder[key] = [holder[key]]
            case 2:
                other, name = dice.choice(holders)
                holder[key] = json.loads(json.dumps(other[name]))
            case 3 if isinstance(holder[key], str) and holder[key]:
                text = holder[key]
                at = dice.randrange(len(text))
                holder[key] = text[:at] + str(dice.choice(HOSTILE))[:200] + text[at + 1 :]
            case 4 if isinstance(holder, list):
                holder.extend(holder[:5])
            case _:
                holder[key] = deepcopy(dice.choice(HOSTILE))  # a list of these is damaged further
    return document


def damage_json(data: bytes, dice: random.Random) -> bytes:
    """Mostly another document, sometimes no document at all."""
    match dice.randrange(10):
        case 0:
            return damage_bytes(data, dice)
        case 1 if dice.random() < 0.3:
            return dice.choice(
                (b"[" * 200_000, b'{"a":' * 100_000, b"", b"null", b"[]", b"{}", b"\xff\xfe", b"1e999999")
            )
        case _:
            text = json.dumps(damage_document(json.loads(data), dice), ensure_ascii=dice.random() < 0.5)
            return text.encode("utf-8", "surrogatepass")


def damage_text(text: str, dice: random.Random) -> bytes:
    """Lines of a configuration, changed, repeated, emptied, or with a hostile value."""
    lines = text.splitlines()
    for _ in range(dice.choice((1, 1, 2, 4))):
        at = dice.randrange(len(lines)) if lines else 0
        value = str(dice.choice(HOSTILE))
        match dice.randrange(7):
            case 0 | 1 | 2 if lines:
                name, equals, _ = lines[at].partition("=")
                lines[at] = f"{name}{equals} {json.dumps(value) if dice.random() < 0.7 else value}"
            case 3 if lines:
                lines.insert(dice.randrange(len(lines)), lines[at])
            case 4 if lines:
                del lines[at]
            case 5 if lines:
                lines[at] = lines[at].replace("=", dice.choice(("", "==", ":", "= [", "= {")), 1)
            case _:
                lines.insert(at, value)
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return damage_bytes(data, dice) if dice.random() < 0.2 else data


def _holders(document: Any) -> Any:
    """(container, key) of every value."""
    if isinstance(document, dict | list):
        for key in list(document) if isinstance(document, dict) else range(len(document)):
            yield document, key
            yield from _holders(document[key])
