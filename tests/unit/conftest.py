"""What holds for tests that reach nothing outside of this machine."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)  # other tests of the worker do reach what is outside
def one_certificate(homes: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All the certificates of a system take a twentieth of a second to load, which hundreds of tests would spend."""
    with pytest.MonkeyPatch.context() as patch:
        if known := ssl.create_default_context().get_ca_certs(binary_form=True):
            file = tmp_path_factory.mktemp("certificates") / "one.pem"
            file.write_text(ssl.DER_cert_to_PEM_cert(known[0]))
            for name in {"SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"} & {"SSL_CERT_FILE", *os.environ}:
                patch.setenv(name, str(file))
        yield
