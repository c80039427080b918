"""One unchanged blob from one place to another, by the cheapest way that there is."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from torchtailor.core.errors import NetworkError
from torchtailor.fetch.client import wait_before, worth_retrying
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.transports.base import ImageDestination, ImageSource

_ATTEMPTS = 4


def copy_blob(
    descriptor: Descriptor,
    source: ImageSource,
    destination: ImageDestination,
    stored: Path | None = None,
) -> None:
    """`stored` is where its bytes lie already, if they do. An upload that broke off starts anew: many registries forget
    what came before."""
    if destination.take(descriptor, source):
        return
    if stored is not None:
        destination.put_file(descriptor, stored)
        return
    for attempt in itertools.count(1):
        try:
            with source.blob(descriptor) as pieces:
                destination.put(descriptor, pieces)
        except NetworkError as error:
            if attempt == _ATTEMPTS or not worth_retrying(error):
                raise
            time.sleep(wait_before(attempt - 1, error))
        else:
            return
