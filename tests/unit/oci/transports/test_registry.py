"""Registries: whatever goes wrong on the way, an image arrives whole or not at all, and the tag moves last."""

from __future__ import annotations

import base64
import json
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.oci.transports.samples import (
    SampleImage,
    copy_image,
    digest_of,
    layer_tar,
    read_blob,
    read_image,
    sample_image,
    write_layout,
)
from tests.unit.oci.transports.standin import Fault, StandIn, serve
from torchtailor.core.errors import BadInputError, NetworkError, NoMatchError, TorchtailorError, UsageError
from torchtailor.fetch import client
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.transports import registry as registry_module
from torchtailor.oci.transports.choose import open_destination, open_source

BIG = layer_tar({"big": random.Random(1).randbytes(3 << 20)})
LOGIN = ("joe", "s3cret")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(client, "_LONGEST_WAIT", 0.01)
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[StandIn]:
    with serve(StandIn()) as registry:
        yield registry


@pytest.fixture
def image() -> SampleImage:
    return sample_image()


@pytest.fixture
def big() -> SampleImage:
    return sample_image([BIG], compressed=False)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(registry_module, "_CHUNK", 1 << 20)
    return 1 << 20


def log_in(server: StandIn, login: tuple[str, str] = LOGIN, **entry: str) -> None:
    known = entry or {"auth": base64.b64encode(":".join(login).encode()).decode()}
    folder = Path.home() / ".docker"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"auths": {server.host: known}}))


def layout_of(tmp_path: Path, image: SampleImage) -> str:
    return f"oci:{write_layout(tmp_path / 'stock', {'': image})}"


# Reading


def test_an_image_arrives_as_it_was(server: StandIn, image: SampleImage) -> None:
    server.add("team/x", "1", image)
    assert read_image(open_source(f"docker://{server.host}/team/x:1")) == (image.root, image.blobs)
    by_digest = open_source(f"docker://{server.host}/team/x@{image.digest}")
    assert by_digest.root() == by_digest.document(image.root.descriptor) == image.root


def test_what_is_not_there(server: StandIn, image: SampleImage) -> None:
    server.add("x", "1", image)
    with pytest.raises(NoMatchError, match="There is no image"):
        open_source(f"docker://{server.host}/x:2").root()
    del server.blobs["x"][image.layers[0].digest]
    with pytest.raises(BadInputError, match="lacks the blob"):
        read_image(open_source(f"docker://{server.host}/x:1"))


def test_foreign_layers_are_never_fetched_from_elsewhere(server: StandIn) -> None:
    foreign = Descriptor("x", "sha256:" + "a" * 64, 5, urls=(f"{server.url}/elsewhere/y",))
    with pytest.raises(BadInputError, match="never asked"):
        read_blob(open_source(f"docker://{server.host}/x:1"), foreign)
    assert not server.count("GET", "/elsewhere")


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_taken_up_where_it_broke(server: StandIn, big: SampleImage, ranges: bool) -> None:
    server.add("x", "1", big)
    server.ranges = ranges
    server.faults = [Fault("GET", "/blobs/", drop_after=size) for size in (2_000_000, 500_000, 0, 2_500_000)]
    assert read_image(open_source(f"docker://{server.host}/x:1"))[1] == big.blobs
    asked = [one.headers.get("Range") for one in server.seen if f"/blobs/{big.layers[0].digest}" in one.path]
    assert asked[0] is None
    assert all(one and one.startswith("bytes=") for one in asked[1:])
    assert len(asked) >= 3


def test_a_connection_that_always_breaks(server: StandIn, big: SampleImage) -> None:
    server.add("x", "1", big)
    server.faults = [Fault("GET", big.layers[0].digest, times=999, drop_after=10)]
    with pytest.raises(NetworkError, match=" broke: "):
        read_blob(open_source(f"docker://{server.host}/x:1"), big.layers[0])
    assert server.count("GET", "/blobs/") < 20


def test_another_part_than_was_asked_for(server: StandIn, big: SampleImage) -> None:
    server.add("x", "1", big)
    server.faults = [
        Fault("GET", "/blobs/", drop_after=2_000_000),
        Fault("GET", "/blobs/", headers={"Content-Range": "bytes 5-9/10"}),
    ]
    assert read_blob(open_source(f"docker://{server.host}/x:1"), big.layers[0]) == BIG


@pytest.mark.parametrize("number", ["9" * 5000, "\xb2", "-1", "", "x"])
def test_numbers_in_headers_that_are_none(server: StandIn, big: SampleImage, tmp_path: Path, number: str) -> None:
    server.faults = [
        Fault("HEAD", "/blobs/", times=9, headers={"Content-Length": number}),
        Fault("POST", "/uploads/", times=9, headers={"OCI-Chunk-Min-Length": number}),
        Fault("GET", "/blobs/", drop_after=2_000_000),
        Fault("GET", "/blobs/", headers={"Content-Range": f"bytes {number}-9/10"}),
    ]
    copy_image(open_source(layout_of(tmp_path, big)), open_destination(f"docker://{server.host}/x:1"))
    assert read_image(open_source(f"docker://{server.host}/x:1")) == (big.root, big.blobs)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault("GET", "/blobs/", times=99, flip=True), "damaged"),
        (Fault("GET", "/blobs/", times=99, body=b"short", headers={"Content-Length": "5"}), "broke off"),
        (Fault("GET", "/blobs/", times=99, endless=True), "has more than"),
        (Fault("GET", "/blobs/", times=99, headers={"Content-Type": "text/html"}), "web page"),
        (Fault("GET", "/blobs/", times=99, status=403), "403 Forbidden"),
        (Fault("GET", "/blobs/", times=99, status=503), "503"),
    ],
    ids=["other bytes", "short", "endless", "web page", "forbidden", "unavailable"],
)
def test_wrong_blobs(server: StandIn, image: SampleImage, fault: Fault, says: str, tmp_path: Path) -> None:
    server.add("x", "1", image)
    server.faults = [fault]
    with pytest.raises(TorchtailorError, match=says):
        copy_image(open_source(f"docker://{server.host}/x:1"), open_destination(f"oci:{tmp_path}/out"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault("GET", "/manifests/", times=99, flip=True), "damaged"),
        (Fault("GET", "/manifests/", times=99, endless=True), "larger than 4 MiB"),
        (Fault("GET", "/manifests/", times=99, headers={"Content-Type": "text/html"}), "web page"),
        (Fault("GET", "/manifests/", times=99, headers={"Docker-Content-Digest": "sha256:" + "a" * 64}), "digest"),
        (Fault("GET", "/manifests/", times=99, body=b"{}", headers={"Content-Length": "2"}), "manifest"),
        (Fault("GET", "/manifests/", times=99, status=500), "500"),
        (Fault("GET", "/manifests/", times=99, status=429, headers={"Retry-After": "1"}), "429"),
        (Fault("GET", "/manifests/", times=99, status=302, headers={"Location": "/v2/"}), "manifest"),
        (Fault("GET", "/manifests/", times=99, status=302, headers={"Location": "ftp://x/"}), "redirects"),
        (Fault("GET", "/manifests/", times=99, status=302), "redirects"),
        (Fault("GET", "/v2/", times=99, status=404), "404"),
        (Fault("GET", "/v2/", times=99, status=301, headers={"Location": "https://x.invalid/"}), "another address"),
        (Fault("GET", "/v2/", times=99, status=401), "does not say which"),
        (Fault("GET", "/v2/", times=99, status=401, headers={"WWW-Authenticate": "Negotiate"}), "not known"),
    ],
)
def test_wrong_manifests(server: StandIn, image: SampleImage, fault: Fault, says: str) -> None:
    server.add("x", "1", image)
    server.faults = [fault]
    with pytest.raises(TorchtailorError, match=says) as caught:
        open_source(f"docker://{server.host}/x:1").root()
    assert caught.value.hint


def test_a_redirect_in_circles_ends(server: StandIn, image: SampleImage) -> None:
    server.add("x", "1", image)
    server.faults = [Fault("GET", "/manifests/", times=99, status=307, headers={"Location": "/v2/x/manifests/1"})]
    with pytest.raises(NetworkError, match="without an end"):
        open_source(f"docker://{server.host}/x:1").root()


def test_a_manifest_by_digest_that_is_another_one(server: StandIn, image: SampleImage) -> None:
    other = sample_image([layer_tar({"c": b"3"})])
    server.add("x", "1", image)
    server.manifests["x"][image.digest] = (other.root.descriptor.media_type, other.root.data)
    source = open_source(f"docker://{server.host}/x@{image.digest}")
    for read in (source.root, lambda: source.document(image.root.descriptor)):
        with pytest.raises(BadInputError):
            read()


def test_a_wrong_content_type_is_seen_through(server: StandIn, image: SampleImage) -> None:
    server.add("x", "1", image)
    server.faults = [Fault("GET", "/manifests/", headers={"Content-Type": "application/octet-stream"})]
    assert open_source(f"docker://{server.host}/x:1").root() == image.root


def test_the_registry_says_how_long_to_wait(
    server: StandIn, image: SampleImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("x", "1", image)
    server.faults = [Fault("GET", "/manifests/", times=2, status=429, headers={"Retry-After": "7"})]
    monkeypatch.setattr(client, "_LONGEST_WAIT", 30.0)
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    assert open_source(f"docker://{server.host}/x:1").root() == image.root
    assert waited == [7.0, 7.0]


def test_what_the_registry_says_is_passed_on_without_control_characters(server: StandIn, image: SampleImage) -> None:
    server.add("x", "1", image)
    said = json.dumps({"errors": [{"code": "DENIED", "message": "pull \x1b[31mlimit\n reached"}]}).encode()
    server.faults = [Fault("GET", "/manifests/", times=99, status=403, body=said)]
    with pytest.raises(NetworkError) as caught:
        open_source(f"docker://{server.host}/x:1").root()
    assert "pull [31mlimit reached" in caught.value.message
    assert caught.value.message.isprintable()


# Logins


def test_basic_login(server: StandIn, image: SampleImage, tmp_path: Path) -> None:
    server.login = LOGIN
    with pytest.raises(NetworkError, match="wants a login") as caught:
        copy_image(open_source(layout_of(tmp_path, image)), open_destination(f"docker://{server.host}/x:1"))
    assert "docker login" in caught.value.hint
    log_in(server)
    copy_image(open_source(layout_of(tmp_path, image)), open_destination(f"docker://{server.host}/x:1"))
    assert read_image(open_source(f"docker://{server.host}/x:1")) == (image.root, image.blobs)
    log_in(server, ("joe", "wrong"))
    with pytest.raises(NetworkError, match="401") as caught:
        open_source(f"docker://{server.host}/x:1").root()
    assert "wrong" not in caught.value.message


def test_bearer_login(server: StandIn, image: SampleImage, tmp_path: Path) -> None:
    server.login, server.bearer = LOGIN, True
    log_in(server)
    copy_image(open_source(layout_of(tmp_path, image)), open_destination(f"docker://{server.host}/team/x:1"))
    assert set(server.scopes) == {"repository:team/x:pull,push"}
    assert read_image(open_source(f"docker://{server.host}/team/x:1")) == (image.root, image.blobs)
    assert server.scopes[-1] == "repository:team/x:pull"
    tokens = [one for one in server.seen if one.path.startswith("/token")]
    assert len(tokens) == 2
    assert all("service=stand-in" in one.path for one in tokens)


def test_a_login_that_the_token_server_refuses(server: StandIn, image: SampleImage) -> None:
    server.login, server.bearer = LOGIN, True
    log_in(server, ("joe", "wrong-one"))
    with pytest.raises(NetworkError, match="refuses the login of joe") as caught:
        open_source(f"docker://{server.host}/x:1").root()
    assert "wrong-one" not in caught.value.message
    assert "config.json" in caught.value.message


def test_a_realm_that_two_readers_of_addresses_read_differently_gets_no_login(
    server: StandIn, image: SampleImage
) -> None:
    """For some readers the host ends at a backslash, for others it begins after the @."""
    server.login, server.bearer = LOGIN, True
    server.add("x", "1", image)
    log_in(server)
    with serve(StandIn()) as thief:
        realm = f"http://{thief.host}\\\\@{server.host}/token"
        server.faults = [
            Fault("GET", "/v2/", times=9, status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}"'})
        ]
        with pytest.raises(NetworkError, match="not a valid address"):
            open_source(f"docker://{server.host}/x:1").root()
        assert not thief.seen


def test_without_a_login_there_is_a_token_for_everybody(server: StandIn, image: SampleImage) -> None:
    server.bearer = server.public = True
    server.add("x", "1", image)
    assert open_source(f"docker://{server.host}/x:1").root() == image.root


def test_an_identity_token(server: StandIn, image: SampleImage) -> None:
    server.bearer, server.identity_token = True, "refresh-me"
    server.add("x", "1", image)
    log_in(server, identitytoken="refresh-me")
    assert open_source(f"docker://{server.host}/x:1").root() == image.root


def test_a_token_that_expires_in_the_middle(
    server: StandIn, tmp_path: Path, big: SampleImage, small_chunks: int
) -> None:
    server.login, server.bearer = LOGIN, True
    log_in(server)
    expired = Fault(
        "PATCH", "/uploads/", status=401, headers={"WWW-Authenticate": f'Bearer realm="{server.url}/token"'}
    )
    server.faults = [Fault("PATCH", "/uploads/", status=500), expired]
    copy_image(open_source(layout_of(tmp_path, big)), open_destination(f"docker://{server.host}/x:1"))
    assert read_image(open_source(f"docker://{server.host}/x:1")) == (big.root, big.blobs)
    assert server.count("GET", "/token") == 3


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"token": ""}', b'{"token": "a\\nb"}', b"\xff", b"[" * 9999])
def test_token_servers_that_give_no_token(server: StandIn, image: SampleImage, body: bytes) -> None:
    server.bearer = True
    server.add("x", "1", image)
    server.faults = [Fault("GET", "/token", times=9, status=200, body=body)]
    with pytest.raises(NetworkError, match="no token"):
        open_source(f"docker://{server.host}/x:1").root()


def test_a_redirect_to_another_host_gets_no_login(server: StandIn, image: SampleImage) -> None:
    with serve(StandIn()) as store:
        store.blobs["x"] = image.blobs
        server.login, server.blobs_at = LOGIN, store.url
        server.add("x", "1", image)
        log_in(server)
        assert read_image(open_source(f"docker://{server.host}/x:1")) == (image.root, image.blobs)
    assert store.count("GET", "/elsewhere/") == 3
    assert not any("Authorization" in one.headers for one in store.seen)


def test_a_broken_download_from_another_host_begins_at_the_registry(server: StandIn, big: SampleImage) -> None:
    with serve(StandIn()) as store:
        store.blobs["x"] = big.blobs
        store.faults = [Fault("GET", "/elsewhere/", drop_after=2_000_000)]
        server.blobs_at = store.url
        server.add("x", "1", big)
        assert read_blob(open_source(f"docker://{server.host}/x:1"), big.layers[0]) == BIG
    assert server.count("GET", "/blobs/") == 2


def test_a_plain_registry_elsewhere_is_not_talked_to_without_tls() -> None:
    with pytest.raises(NetworkError) as caught:
        open_source("docker://registry.invalid:5000/x").root()
    assert "registry.invalid:5000" in caught.value.message


def test_names_by_which_this_machine_is_not_known_need_the_option(
    server: StandIn, image: SampleImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    found = socket.getaddrinfo
    port = server.host.partition(":")[2]
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest: found("127.0.0.1" if host == "r.test" else host, *rest)
    )
    server.add("x", "1", image)
    with pytest.raises(NetworkError) as caught:
        open_source(f"docker://r.test:{port}/x:1").root()
    assert "--insecure" in caught.value.hint
    assert not server.seen
    assert open_source(f"docker://r.test:{port}/x:1", insecure=True).root() == image.root


def test_no_proxy_leads_to_this_machine(server: StandIn, image: SampleImage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://proxy.invalid:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    server.add("x", "1", image)
    assert open_source(f"docker://{server.host}/x:1").root() == image.root
    with pytest.raises(NetworkError, match="proxy"):
        open_source("docker://192.0.2.1/x:1").root()


# Writing


def test_an_image_is_pushed_and_the_tag_comes_last(server: StandIn, image: SampleImage, tmp_path: Path) -> None:
    root = copy_image(open_source(layout_of(tmp_path, image)), open_destination(f"docker://{server.host}/team/x:1"))
    assert root == image.root
    assert server.manifests["team/x"]["1"][1] == image.root.data
    assert server.blobs["team/x"] == image.blobs
    writing = [one.path for one in server.seen if one.method in {"PUT", "PATCH", "POST"}]
    assert writing[-1] == "/v2/team/x/manifests/1"
    assert not server.uploads


def test_blobs_that_are_there_are_not_sent(server: StandIn, image: SampleImage, tmp_path: Path) -> None:
    server.blobs["x"] = dict(image.blobs)
    copy_image(open_source(layout_of(tmp_path, image)), open_destination(f"docker://{server.host}/x:1"))
    assert not server.count("POST", "/uploads/")


def test_blobs_of_another_repository_are_mounted(server: StandIn, image: SampleImage) -> None:
    server.login, server.bearer = LOGIN, True
    log_in(server)
    server.add("stock", "1", image)
    copy_image(open_source(f"docker://{server.host}/stock:1"), open_destination(f"docker://{server.host}/cut:1"))
    assert server.blobs["cut"] == image.blobs
    assert not server.count("GET", "/blobs/sha256")
    assert not server.count("PATCH", "")
    assert "repository:cut:pull,push repository:stock:pull" in server.scopes


def test_blobs_are_mounted_under_another_name_of_the_registry(server: StandIn, image: SampleImage) -> None:
    try:
        socket.gethostbyname("localhost")
    except OSError:
        pytest.skip("this machine does not know localhost")
    server.add("stock", "1", image)
    port = server.host.rpartition(":")[2]
    source = open_source(f"docker://127.0.0.1:{port}/stock:1")
    copy_image(source, open_destination(f"docker://localhost:{port}/cut:1"))
    assert server.blobs["cut"] == image.blobs
    assert not server.count("GET", "/blobs/sha256")


@pytest.mark.parametrize("refusal", ["upload instead", "error"])
def test_where_mounting_is_refused_the_blob_is_sent(server: StandIn, image: SampleImage, refusal: str) -> None:
    server.add("stock", "1", image)
    server.mounts = False
    if refusal == "error":
        server.faults = [Fault("POST", "mount=", times=9, status=403)]
    copy_image(open_source(f"docker://{server.host}/stock:1"), open_destination(f"docker://{server.host}/cut:1"))
    assert server.blobs["cut"] == image.blobs
    assert not server.uploads  # the upload that was offered instead of the mount was used


def test_large_blobs_go_in_chunks(server: StandIn, big: SampleImage, tmp_path: Path, small_chunks: int) -> None:
    copy_image(open_source(layout_of(tmp_path, big)), open_destination(f"docker://{server.host}/x:1"))
    assert server.blobs["x"] == big.blobs
    assert server.count("PATCH", "/uploads/") == -(-len(BIG) // small_chunks)


def test_registries_without_chunks_get_one_piece(
    server: StandIn, big: SampleImage, tmp_path: Path, small_chunks: int
) -> None:
    server.chunks = False
    copy_image(open_source(layout_of(tmp_path, big)), open_destination(f"docker://{server.host}/x:1"))
    assert server.blobs["x"] == big.blobs


def test_registries_that_want_larger_chunks(
    server: StandIn, big: SampleImage, tmp_path: Path, small_chunks: int
) -> None:
    server.faults = [Fault("POST", "/uploads/", times=9, headers={"OCI-Chunk-Min-Length": str(2 * small_chunks)})]
    copy_image(open_source(layout_of(tmp_path, big)), open_destination(f"docker://{server.host}/x:1"))
    assert server.blobs["x"] == big.blobs
    assert server.count("PATCH", "/uploads/") == 2


def test_an_upload_that_breaks_goes_on_where_it_broke(
    server: StandIn, big: SampleImage, tmp_path: Path, small_chunks: int
) -> None:
    server.faults = [
        Fault("PATCH", "/uploads/", read_only=300_000),
        Fault("PATCH", "/uploads/", read_only=0),
        Fault("PATCH", "/uploads/", status=503),
        Fault("PUT", "/uploads/", status=502),
    ]
    copy_image(open_source(layout_of(tmp_path, big)), open_destination(f"docker://{server.host}/x:1"))
    assert server.blobs["x"] == big.blobs
    assert server.manifests["x"]["1"][1] == big.root.data


@pytest.mark.parametrize("by", ["blob", "file"])
def test_a_registry_that_forgets_broken_uploads_gets_the_blob_anew(
    server: StandIn, big: SampleImage, tmp_path: Path, small_chunks: int, by: str
) -> None:
    server.faults = [
        Fault("PATCH", "/uploads/", times=2, read_only=300_000),
        Fault("GET", "/uploads/", times=2, status=404),
    ]
    if by == "blob":
        copy_image(open_source(layout_of(tmp_path, big)), open_destination(f"docker://{server.host}/x:1"))
    else:
        (tmp_path / "cut").write_bytes(BIG)
        with open_destination(f"docker://{server.host}/x:1") as destination:
            destination.put_file(big.layers[0], tmp_path / "cut")
    assert server.blobs["x"][big.layers[0].digest] == BIG


def test_small_blobs_are_sent_again(server: StandIn, image: SampleImage, tmp_path: Path) -> None:
    server.faults = [Fault("PUT", "/uploads/", read_only=5), Fault("PUT", "/uploads/", status=500)]
    copy_image(open_source(layout_of(tmp_path, image)), open_destination(f"docker://{server.host}/x:1"))
    assert server.blobs["x"] == image.blobs


def test_only_the_answer_was_lost(server: StandIn, image: SampleImage, tmp_path: Path) -> None:
    server.faults = [Fault("PUT", "/manifests/", drop_after=0, headers={"Content-Length": "9"})]
    copy_image(open_source(layout_of(tmp_path, image)), open_destination(f"docker://{server.host}/x:1"))
    assert server.manifests["x"]["1"][1] == image.root.data


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault("POST", "/uploads/", times=99, status=403), "403"),
        (Fault("POST", "/uploads/", times=99, status=202, headers={"Location": ""}), "where to upload"),
        (Fault("POST", "/uploads/", times=99, status=202, headers={"Location": "file:///etc/x"}), "where to upload"),
        (Fault("PUT", "/uploads/", times=99, status=400, body=b"<html>"), "400"),
        (Fault("PUT", "/uploads/", times=99, status=413), "413"),
        (Fault("PUT", "/uploads/", times=99, status=500), "500"),
        (
            Fault("PUT", "/uploads/", times=99, headers={"Docker-Content-Digest": "sha256:" + "a" * 64}),
            "another digest",
        ),
        (Fault("PUT", "/manifests/", times=99, status=400), "400"),
        (Fault("HEAD", "/blobs/", times=99, status=500), "500"),
    ],
)
def test_a_push_that_fails_does_not_move_the_tag(
    server: StandIn, image: SampleImage, tmp_path: Path, fault: Fault, says: str
) -> None:
    old = sample_image([layer_tar({"old": b"1"})])
    server.add("x", "1", old)
    server.faults = [fault]
    with pytest.raises(NetworkError, match=says):
        copy_image(open_source(layout_of(tmp_path, image)), open_destination(f"docker://{server.host}/x:1"))
    assert server.manifests["x"]["1"][1] == old.root.data


def test_a_source_that_breaks_moves_no_tag(
    server: StandIn, big: SampleImage, tmp_path: Path, small_chunks: int
) -> None:
    source = layout_of(tmp_path, big)
    (tmp_path / "stock" / "blobs" / "sha256" / big.layers[0].hex).write_bytes(BIG[:-1] + b"?")
    with pytest.raises(BadInputError, match="damaged"):
        copy_image(open_source(source), open_destination(f"docker://{server.host}/x:1"))
    assert not server.manifests.get("x")
    assert not server.blobs.get("x")
    assert not server.uploads  # the upload that had begun was taken back


def test_a_push_that_is_stopped_by_hand(server: StandIn, big: SampleImage, small_chunks: int) -> None:
    def pieces() -> Iterator[bytes]:
        yield BIG[: 2 * small_chunks]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_destination(f"docker://{server.host}/x:1") as destination:
        destination.put(big.layers[0], pieces())
    assert not server.uploads
    assert not server.blobs.get("x")


def test_wrong_bytes_are_never_completed(server: StandIn, image: SampleImage) -> None:
    layer = image.layers[0]
    with open_destination(f"docker://{server.host}/x:1") as destination, pytest.raises(BadInputError):
        destination.put(layer, iter((b"x" * layer.size,)))
    assert not server.blobs.get("x")
    assert not server.uploads


def test_a_digest_is_no_destination(image: SampleImage) -> None:
    with pytest.raises(UsageError, match="digest"):
        open_destination(f"docker://localhost/x@{image.digest}")


def test_an_upload_elsewhere_gets_no_login(server: StandIn, image: SampleImage, tmp_path: Path) -> None:
    with serve(StandIn()) as store:
        server.login = LOGIN
        log_in(server)
        server.faults = [Fault("POST", "/uploads/", times=9, status=202, headers={"Location": f"{store.url}/up"})]
        with pytest.raises(NetworkError):
            copy_image(open_source(layout_of(tmp_path, image)), open_destination(f"docker://{server.host}/x:1"))
    assert store.count("PUT", "/up")
    assert not any("Authorization" in one.headers for one in store.seen)


def test_an_empty_layer(server: StandIn, tmp_path: Path) -> None:
    empty = Descriptor("x", digest_of(b""), 0)
    with open_destination(f"docker://{server.host}/x:1") as destination:
        destination.put(empty, iter(()))
    assert server.blobs["x"] == {empty.digest: b""}
