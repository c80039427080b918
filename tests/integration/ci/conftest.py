"""Workflows as they are once torchtailor is published."""

from tests.unit.ci.conftest import published

__all__ = ["published"]
