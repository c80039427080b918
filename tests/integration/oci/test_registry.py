"""A real docker-registry: logins, TLS, mounts, and a push that is killed."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.oci.conftest import RealRegistry, Start, need, skopeo
from tests.unit.oci.transports.samples import copy_image, layer_tar, read_image, sample_image, write_layout
from torchtailor.core.errors import NetworkError
from torchtailor.oci.transports import registry as registry_module
from torchtailor.oci.transports.choose import open_destination, open_source

ROOT = Path(__file__).parents[3]

# "joe" and "s3cret", as htpasswd -B writes them
HTPASSWD = "joe:$2y$05$abcdefghijklmnopqrstuuLK7U1u6pVRmL7L1BBM2aS35PSZnDXlK"


def test_blobs_are_mounted_from_another_repository(registry: RealRegistry, tmp_path: Path) -> None:
    image = sample_image([layer_tar({"mounted": b"1"})])
    stock = f"docker://{registry.host}/mount/stock:1"
    copy_image(open_source(f"oci:{write_layout(tmp_path / 'x', {'': image})}"), open_destination(stock))
    with open_source(stock) as source, open_destination(f"docker://{registry.host}/mount/cut:1") as destination:
        assert not destination.has(image.layers[0])
        assert destination.take(image.layers[0], source)
        assert destination.has(image.layers[0])


def test_blobs_larger_than_a_chunk(registry: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_CHUNK", 1 << 20)
    image = sample_image([layer_tar({"big": random.Random(2).randbytes((3 << 20) + 12345)})], compressed=False)
    new = f"docker://{registry.host}/big/x:1"
    copy_image(open_source(f"oci:{write_layout(tmp_path / 'x', {'': image})}"), open_destination(new))
    assert read_image(open_source(new)) == (image.root, image.blobs)


def test_basic_login(start_registry: Start, tmp_path: Path) -> None:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    registry = start_registry(
        REGISTRY_AUTH="htpasswd", REGISTRY_AUTH_HTPASSWD_REALM="x", REGISTRY_AUTH_HTPASSWD_PATH=f"{tmp_path}/htpasswd"
    )
    image = sample_image()
    source, new = f"oci:{write_layout(tmp_path / 'x', {'': image})}", f"docker://{registry.host}/x:1"
    with pytest.raises(NetworkError, match="wants a login"):
        copy_image(open_source(source), open_destination(new))
    for password, works in (("wrong", False), ("s3cret", True)):
        auth = base64.b64encode(f"joe:{password}".encode()).decode()
        (Path.home() / ".docker").mkdir(exist_ok=True)
        (Path.home() / ".docker" / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
        if works:
            copy_image(open_source(source), open_destination(new))
            assert read_image(open_source(new)) == (image.root, image.blobs)
        else:
            with pytest.raises(NetworkError, match="401"):
                copy_image(open_source(source), open_destination(new))


def test_tls_with_a_certificate_of_ones_own(
    start_registry: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.crt"
    line = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    line += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    subprocess.run([*line, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    registry = start_registry(REGISTRY_HTTP_TLS_CERTIFICATE=str(certificate), REGISTRY_HTTP_TLS_KEY=str(key))
    image = sample_image()
    source, new = f"oci:{write_layout(tmp_path / 'x', {'': image})}", f"docker://{registry.host}/x:1"
    with pytest.raises(NetworkError, match="certificate") as caught:
        copy_image(open_source(source), open_destination(new))
    assert "SSL_CERT_FILE" in caught.value.hint
    copy_image(open_source(source), open_destination(new, insecure=True))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert open_source(new).root() == image.root
    monkeypatch.delenv("SSL_CERT_FILE")
    given = Path.home() / ".config" / "containers" / "certs.d" / registry.host
    given.mkdir(parents=True)
    (given / "ca.crt").write_bytes(certificate.read_bytes())
    assert open_source(new).root() == image.root


SLOWLY = """
import sys, time
from tests.unit.oci.transports import samples
from torchtailor.oci.transports import registry
from torchtailor.oci.transports.choose import open_destination, open_source
registry._CHUNK = 1 << 20
def slowly(pieces):
    for piece in pieces:
        yield piece
        print("sent", flush=True)
        time.sleep(0.02)
with open_source(sys.argv[1]) as source, open_destination(sys.argv[2]) as destination:
    root = source.root()
    for part in samples.parts_of(root):
        with source.blob(part) as pieces:
            destination.put(part, slowly(pieces))
    destination.commit(root)
"""


@pytest.mark.parametrize("pieces", [1, 4])
def test_a_push_that_is_killed_leaves_the_tag_and_works_again(
    registry: RealRegistry, tmp_path: Path, pieces: int
) -> None:
    need("skopeo")
    name = f"docker://{registry.host}/killed/after-{pieces}:1"
    old = sample_image([layer_tar({"old": b"1"})])
    tars = [layer_tar({str(number): random.Random(pieces * 10 + number).randbytes(3 << 20)}) for number in range(2)]
    new = sample_image(tars, compressed=False)
    copy_image(open_source(f"oci:{write_layout(tmp_path / 'old', {'': old})}"), open_destination(name))
    source = f"oci:{write_layout(tmp_path / 'new', {'': new})}"
    line = [sys.executable, "-c", SLOWLY, source, name]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(pieces):
            assert process.stdout.readline() == "sent\n"
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert read_image(open_source(name)) == (old.root, old.blobs)
    copy_image(open_source(source), open_destination(name))
    assert json.loads(skopeo("inspect", "--tls-verify=false", name))["Digest"] == new.digest
