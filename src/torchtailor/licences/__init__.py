"""Who made a library, and whether it may be cut without --nvidia (docs/licences.md)."""

from torchtailor.licences.makers import Maker, maker_of
from torchtailor.licences.rules import is_closed_text, is_proprietary, needs_nvidia_option

__all__ = ["Maker", "is_closed_text", "is_proprietary", "maker_of", "needs_nvidia_option"]
