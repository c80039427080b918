"""What `--json` prints against docs/json.md."""

from __future__ import annotations

from functools import cache

from jsonschema import Draft202012Validator

from torchtailor.cli.ui.documents import json_schema


@cache
def document_validator(name: str) -> Draft202012Validator:
    """Checks documents of a name; its schema, which takes longer than a document, is checked once."""
    schema = json_schema(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)
