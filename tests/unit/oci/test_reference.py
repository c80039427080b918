"""Names of images: what skopeo, docker and podman mean by them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.core.errors import UsageError
from torchtailor.oci.reference import (
    RepositoryName,
    Transport,
    parse_reference,
    parse_repository,
)

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag", "digest"),
    [
        ("ubuntu", "docker.io", "library/ubuntu", "latest", None),
        ("vllm/vllm-openai:v1", "docker.io", "vllm/vllm-openai", "v1", None),
        ("docker.io/ubuntu", "docker.io", "library/ubuntu", "latest", None),
        ("index.docker.io/library/ubuntu:1", "docker.io", "library/ubuntu", "1", None),
        ("localhost/x", "localhost", "x", "latest", None),
        ("localhost:5000/x/y/z:t", "localhost:5000", "x/y/z", "t", None),
        ("registry:5000/x", "registry:5000", "x", "latest", None),
        ("registry/x", "docker.io", "registry/x", "latest", None),
        ("r.example/a__b/c-d--e.f:T_1.2-3", "r.example", "a__b/c-d--e.f", "T_1.2-3", None),
        ("[::1]:5000/x:1", "[::1]:5000", "x", "1", None),
        (f"r.example/x@{DIGEST}", "r.example", "x", None, DIGEST),
        (f"ubuntu@{DIGEST}", "docker.io", "library/ubuntu", None, DIGEST),
        (f"ubuntu:22.04@{DIGEST}", "docker.io", "library/ubuntu", "22.04", DIGEST),
    ],
)
def test_repositories(text: str, host: str, repository: str, tag: str | None, digest: str | None) -> None:
    reference = parse_reference(f"docker://{text}")
    image = reference.image
    assert reference.transport is Transport.REGISTRY
    assert image is not None
    assert (image.host, image.repository, image.tag, image.digest) == (host, repository, tag, digest)
    assert parse_reference(str(reference)) == reference
    assert parse_repository(image.familiar) == image


def test_the_default_registry_is_served_elsewhere() -> None:
    assert parse_repository("ubuntu").server == "registry-1.docker.io"
    assert parse_repository("r.example/ubuntu").server == "r.example"


@pytest.mark.parametrize(
    ("text", "transport", "path", "inside"),
    [
        ("oci:stock:latest", Transport.OCI_FOLDER, "stock", "latest"),
        ("oci:/a/b", Transport.OCI_FOLDER, "/a/b", None),
        ("oci:a:docker.io/x/y:1.0", Transport.OCI_FOLDER, "a", "docker.io/x/y:1.0"),
        ("oci-archive:out.tar", Transport.OCI_ARCHIVE, "out.tar", None),
        ("oci-archive:-:v1", Transport.OCI_ARCHIVE, "-", "v1"),
        ("docker-archive:-", Transport.DOCKER_ARCHIVE, "-", None),
    ],
)
def test_files(text: str, transport: Transport, path: str, inside: str | None) -> None:
    reference = parse_reference(text)
    assert (reference.transport, reference.path, reference.ref) == (transport, Path(path), inside)
    assert reference.is_pipe == (path == "-")
    assert str(reference) == text


def test_docker_archives_hold_names_as_registries_do() -> None:
    reference = parse_reference("docker-archive:x.tar:vllm:1")
    assert reference.image == parse_repository("docker.io/library/vllm:1")
    assert str(reference) == "docker-archive:x.tar:vllm:1"
    assert parse_reference("docker-archive:x.tar:@2").position == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "docker://HOST"),
        ("ubuntu", "docker://HOST"),
        ("/some/path", "docker://HOST"),
        ("docker:ubuntu", "Write docker://ubuntu"),
        ("docker://", "lower case"),
        ("docker:///x", "lower case"),
        ("docker://r.example/", "lower case"),
        ("docker://r.example/UP", "lower case"),
        ("docker://r.example/x:", "letters, digits"),
        ("docker://r.example/x:a b", "letters, digits"),
        ("docker://r.example/x:" + "a" * 129, "letters, digits"),
        ("docker://r.example/x/../y", "lower case"),
        ("docker://r.example:99999/x", "HOST[:PORT]"),
        ("docker://-r.example/x", "HOST[:PORT]"),
        ("docker://r..example/x", "HOST[:PORT]"),
        ("docker://[::zz]/x", "HOST[:PORT]"),
        ("docker://r.example/" + "x/" * 200 + "x", "lower case"),
        ("docker://r.example/x@sha256:12", "64 hexadecimal"),
        ("docker://r.example/x\ny", "docker://HOST"),
        ("oci:", "oci:PATH"),
        ("oci::name", "oci:PATH"),
        ("oci:-", "oci-archive:-"),
        ("oci:a:..", "letters and digits"),
        ("docker-archive:a:x/UP", "lower case"),
        (f"docker-archive:a:x@{DIGEST}", "NAME:TAG"),
        ("docker-daemon:x", "docker save"),
        ("containers-storage:x", "podman save"),
        ("dir:x", "skopeo copy"),
        ("sif:x", "docker://HOST"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_reference(text)
    assert says in caught.value.hint


@pytest.mark.parametrize("text", ["docker://joe:s3cret@r.example/x", "docker://joe:s3/cret@r.example/x:1"])
def test_passwords_are_not_shown(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_reference(text)
    assert "cret" not in caught.value.message + caught.value.hint
    assert "docker login" in caught.value.hint


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost:5000", True),
        ("127.0.0.1:5000", True),
        ("[::1]:5000", True),
        ("192.168.1.9", True),
        ("10.0.0.1:443", True),
        ("[fd00::1]", True),
        ("registry.local", True),
        ("registry:5000", True),
        ("r.svc.cluster.local:80", True),
        ("docker.io", False),
        ("r.example", False),
        ("8.8.8.8", False),
        ("0.0.0.0:5000", False),
        ("[2606:4700::1]", False),
        ("local.example", False),
        ("127.0.0.1.example", False),
    ],
)
def test_local_hosts(host: str, local: bool) -> None:
    assert parse_repository(f"{host}/x").is_local is local


def test_only_this_machine_may_go_without_tls() -> None:
    here = [
        host
        for host in ("localhost:1", "127.8.0.1:1", "[::1]:1", "10.0.0.1:1", "registry:1", "r.local:1")
        if parse_repository(f"{host}/x").is_on_this_machine
    ]
    assert here == ["localhost:1", "127.8.0.1:1", "[::1]:1"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("localhost:5000", "127.0.0.1:5000", True),
        ("localhost:5000", "[::1]:5000", True),
        ("127.0.0.1:5000", "[::ffff:127.0.0.1]:5000", True),
        ("r.localhost:5000", "LOCALHOST:5000", True),
        ("0.0.0.0:5000", "localhost:5000", True),
        ("localhost:5000", "localhost:5001", False),
        ("localhost", "localhost:443", True),
        ("localhost", "127.0.0.1:80", True),
        ("localhost", "localhost:5000", False),
        ("r.local", "R.local:443", True),
        ("r.local", "r.local.", True),
        ("r.local:443", "r.local:80", False),
        ("r.local", "s.local", False),
        ("10.0.0.1:5000", "10.0.0.2:5000", False),
        ("[fd00::1]:5000", "[FD00:0::1]:5000", True),
        ("docker.io", "registry-1.docker.io", True),
        ("docker.io", "index.docker.io:443", False),  # a port makes it another name, also for docker
    ],
)
def test_one_registry_has_many_names(one: str, other: str, same: bool) -> None:
    first, second = RepositoryName(one, "x"), RepositoryName(other, "x")
    assert first.shares_registry(second) is same
    assert second.shares_registry(first) is same


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_a_usage_error(text: str) -> None:
    for prefix in ("", "docker://", "oci:", "docker-archive:x:", "oci-archive:"):
        try:
            reference = parse_reference(prefix + text)
        except UsageError as error:
            assert error.hint
        else:
            assert parse_reference(str(reference)) == reference


PART = st.from_regex(r"[a-z0-9]{1,5}([._-][a-z0-9]{1,3})?", fullmatch=True)


@given(
    st.sampled_from(["", "docker.io/", "localhost/", "r.example:5000/", "[::1]/"]),
    st.lists(PART, min_size=1, max_size=4),
    st.one_of(st.none(), st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)),
    st.booleans(),
)
def test_every_good_name_is_understood(host: str, parts: list[str], tag: str | None, digest: bool) -> None:
    path = "/".join(parts)
    if not host and len(parts) > 1 and "." in parts[0]:
        return  # then the first part is the host
    text = host + path + (f":{tag}" if tag else "") + (f"@{DIGEST}" if digest else "")
    image = parse_repository(text)
    assert image.repository.removeprefix("library/") == path.removeprefix("library/")
    assert image.tag == (tag or (None if digest else "latest"))
    assert parse_repository(str(image)) == image == parse_repository(image.familiar)
