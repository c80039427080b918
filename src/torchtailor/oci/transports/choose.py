"""The place that a name means."""

from __future__ import annotations

from collections.abc import Callable

from torchtailor.oci.reference import ImageReference, Transport, parse_reference
from torchtailor.oci.transports.base import ImageDestination, ImageSource


def open_source(
    name: str | ImageReference, *, insecure: bool = False, received: Callable[[int], None] | None = None
) -> ImageSource:
    """The image that a name means, to be used in a `with` block.

    `insecure` lets a registry be one without TLS or with a certificate that nobody knows. `received` is told of the
    bytes of an archive that comes through a pipe, which must be stored before it can be read.
    """
    reference = parse_reference(name) if isinstance(name, str) else name
    if reference.transport is Transport.REGISTRY:
        from torchtailor.oci.transports.registry import RegistrySource

        return RegistrySource(reference, insecure=insecure)
    if reference.transport is Transport.OCI_FOLDER:
        from torchtailor.oci.transports.layout import OciFolderSource

        return OciFolderSource(reference)
    from torchtailor.oci.transports.archive import DockerArchiveSource, OciArchiveSource

    if reference.transport is Transport.OCI_ARCHIVE:
        return OciArchiveSource(reference, received)
    return DockerArchiveSource(reference, received)


def open_destination(name: str | ImageReference, *, insecure: bool = False) -> ImageDestination:
    """The place that a name means, to be used in a `with` block; nothing is there before `commit`."""
    reference = parse_reference(name) if isinstance(name, str) else name
    if reference.transport is Transport.REGISTRY:
        from torchtailor.oci.transports.registry import RegistryDestination

        return RegistryDestination(reference, insecure=insecure)
    if reference.transport is Transport.OCI_FOLDER:
        from torchtailor.oci.transports.layout import OciFolderDestination

        return OciFolderDestination(reference)
    from torchtailor.oci.transports.archive_output import DockerArchiveDestination, OciArchiveDestination

    if reference.transport is Transport.OCI_ARCHIVE:
        return OciArchiveDestination(reference)
    return DockerArchiveDestination(reference)
