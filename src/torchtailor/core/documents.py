"""Results as JSON documents, which `--json` prints and docs/json.md describes.

A document is a result itself, where its fields are what scripts read; else a Struct beside the result names the
attributes of it that they read:

    class WheelhouseDocument(msgspec.Struct):
        path: Path
        index_url: str  # a property of Wheelhouse
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta

from torchtailor.core.shapes import shaped

Bytes = Annotated[int, Meta(description="bytes")]
Date = Annotated[str, Meta(description="ISO 8601")]
Seconds = Annotated[float, Meta(description="seconds")]

Document = TypeVar("Document")


def document(shape: type[Document], result: object, **more: object) -> Document:
    """The document of a result: every field is the attribute of that name, or one of `more`."""
    if isinstance(result, shape):
        return result
    if more:
        values = {
            field.encode_name: more[field.name] if field.name in more else getattr(result, field.name)
            for field in msgspec.structs.fields(cast("type[msgspec.Struct]", shape))
        }
        result = {name: value for name, value in values.items() if value is not msgspec.UNSET}
    return msgspec.convert(result, shaped(shape), from_attributes=True)


def plain(value: object) -> Any:
    """What JSON has for a value; paths, versions and the like are their text."""
    return msgspec.to_builtins(value, enc_hook=str, order="deterministic")


def json_text(values: object, *, indent: int = -1) -> str:
    """Plain values as JSON, indented or without any spaces; `\\udc..` is a byte of a file name that is not UTF-8."""
    try:
        return msgspec.json.format(msgspec.json.encode(values), indent=indent).decode()
    except UnicodeEncodeError:  # Python reads such names back
        return json.dumps(values, indent=indent if indent > 0 else None)


def schema_parts(shape: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON Schema of a document, and those that it refers to; objects have no keys but those that are named."""
    (top,), parts = msgspec.json.schema_components(
        [shape], schema_hook=lambda _: {"type": "string"}, ref_template="#/$defs/{name}"
    )
    closed = {
        name: part | ({"additionalProperties": False} if "properties" in part else {}) for name, part in parts.items()
    }
    return closed.pop(top["$ref"].rpartition("/")[2]), closed
