"""The place that a name means."""

from __future__ import annotations

from torchtailor.errors import UsageError
from torchtailor.images.reference import ImageReference, Transport, parse_reference
from torchtailor.images.transports.base import ImageDestination, ImageSource


def open_source(name: str | ImageReference, *, insecure: bool = False) -> ImageSource:
    """The image that a name means, to be used in a `with` block."""
    reference = parse_reference(name) if isinstance(name, str) else name
    if reference.transport is Transport.OCI_FOLDER:
        from torchtailor.images.transports.layout import OciFolderSource

        return OciFolderSource(reference)
    raise UsageError(f"{reference} cannot be read.")


def open_destination(name: str | ImageReference, *, insecure: bool = False) -> ImageDestination:
    """The place that a name means, to be used in a `with` block."""
    reference = parse_reference(name) if isinstance(name, str) else name
    if reference.transport is Transport.OCI_FOLDER:
        from torchtailor.images.transports.layout import OciFolderDestination

        return OciFolderDestination(reference)
    raise UsageError(f"{reference} cannot be written.")
