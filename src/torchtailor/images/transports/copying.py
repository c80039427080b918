"""One unchanged blob from one place to another, by the cheapest way that there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from torchtailor.errors import NetworkError
from torchtailor.fetch.client import wait_before, worth_retrying
from torchtailor.images.descriptor import Descriptor
from torchtailor.images.transports.base import ImageDestination, ImageSource

_ATTEMPTS = 4


def copy_blob(
    descriptor: Descriptor,
    source: ImageSource,
    destination: ImageDestination,
    advanced: Callable[[int], None] = lambda _: None,
) -> bool:
    """Whether bytes had to be sent. `advanced` gets the number of bytes that went through here, less than nothing where
    an upload starts anew: many registries forget what came before a connection broke."""
    if destination.has(descriptor) or destination.take(descriptor, source):
        return False
    for attempt in range(_ATTEMPTS):
        sent = 0

        def counted(pieces: Iterator[bytes]) -> Iterator[bytes]:
            nonlocal sent
            for piece in pieces:
                yield piece
                sent += len(piece)
                advanced(len(piece))

        try:
            with source.blob(descriptor) as pieces:
                destination.put(descriptor, counted(pieces))
        except NetworkError as error:
            if attempt + 1 == _ATTEMPTS or not worth_retrying(error):
                raise
            advanced(-sent)
            time.sleep(wait_before(attempt, error))
        else:
            return True
    raise AssertionError("unreachable")
