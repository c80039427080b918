"""Manifests: what they are by their own words, by what came with them, and what they may not be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.oci.transports.samples import sample_image
from torchtailor.core.errors import BadInputError
from torchtailor.oci.descriptor import MediaType
from torchtailor.oci.manifests import is_index, make_document, to_oci

OCI, DOCKER = MediaType.OCI_MANIFEST.value, MediaType.DOCKER_MANIFEST.value
INDEX = MediaType.OCI_INDEX.value


@pytest.mark.parametrize(
    ("content", "claimed", "found"),
    [
        ({"config": {}, "layers": []}, OCI, OCI),
        ({"config": {}, "layers": []}, "application/json", OCI),
        ({"config": {}, "layers": None}, OCI, OCI),
        ({"config": {}, "layers": [], "mediaType": DOCKER}, "text/plain; charset=utf-8", DOCKER),
        ({"config": {}, "layers": []}, f"{DOCKER}; charset=utf-8", DOCKER),
        ({"manifests": []}, "", INDEX),
        ({"manifests": [], "mediaType": MediaType.DOCKER_LIST.value}, "", MediaType.DOCKER_LIST.value),
        ({"mediaType": "application/vnd.example+json"}, "", "application/vnd.example+json"),
    ],
)
def test_kinds(content: object, claimed: str, found: str) -> None:
    document = make_document(json.dumps(content).encode(), claimed, "x")
    assert document.descriptor.media_type == found
    assert is_index(document) == (found in {INDEX, MediaType.DOCKER_LIST.value})


@pytest.mark.parametrize(
    ("content", "claimed", "says"),
    [
        ({"schemaVersion": 1, "fsLayers": []}, "", "first format"),
        ({}, "application/vnd.docker.distribution.manifest.v1+prettyjws", "first format"),
        ({"manifests": [], "config": {}, "layers": []}, INDEX, "at once"),
        ({"manifests": [], "layers": []}, OCI, "at once"),
        ({"manifests": [], "mediaType": INDEX}, OCI, "expected"),
        ({"config": {}, "layers": [], "mediaType": DOCKER}, OCI, "expected"),
        ({"manifests": []}, OCI, "not the"),
        ({"config": {}, "layers": []}, INDEX, "not the"),
        ({}, "text/plain", "says what it is"),
        ([], OCI, "damaged"),
        ("x", OCI, "damaged"),
    ],
)
def test_what_is_no_manifest(content: object, claimed: str, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        make_document(json.dumps(content).encode(), claimed, "x")


def test_more_than_4_mib_is_refused() -> None:
    with pytest.raises(BadInputError, match="4 MiB"):
        make_document(b'{"config": {}, "layers": []}' + b" " * (4 << 20), OCI, "x")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_document_or_bad_input(data: bytes) -> None:
    try:
        document = make_document(data, "", "x")
    except BadInputError as error:
        assert error.hint
    else:
        assert document.data == data


def test_docker_names_become_oci_names_and_nothing_else_changes() -> None:
    docker, oci = sample_image(docker=True), sample_image()
    assert to_oci(docker.root) == oci.root
    assert to_oci(oci.root) is oci.root
    strange = json.loads(docker.root.data) | {"annotations": {"a": "b"}}
    strange["layers"][0]["mediaType"] = "application/vnd.example"
    kept = json.loads(to_oci(make_document(json.dumps(strange).encode(), "", "x")).data)
    assert kept["annotations"] == {"a": "b"}
    assert kept["layers"][0] == strange["layers"][0]
    assert kept["layers"][1]["mediaType"] == MediaType.OCI_LAYER_GZIP.value


def test_an_oci_manifest_without_its_type_keeps_its_digest() -> None:
    content = json.loads(sample_image().root.data)
    del content["mediaType"]
    document = make_document(json.dumps(content).encode(), "", "x")
    assert to_oci(document) is document
