"""What is attached to a cut image, where others find it, and what is said of the stock image's signatures."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.tars import unpack_tar
from tests.unit.oci.builder import INDEX, MANIFEST, Layout, read_image, stock, tar_of
from tests.unit.oci.test_cut import BASE, SITE, package
from tests.unit.oci.transports.standin import StandIn, serve
from tests.unit.tailoring.helpers import options as tailoring
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode, UsageError
from torchtailor.oci.transports.choose import open_source
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.options import ImageOptions

PROVENANCE, BILL = "https://slsa.dev/provenance/v1", "https://cyclonedx.org/bom"
SIGNED = "application/vnd.dev.cosign.artifact.sig.v1+json"


def attested(source: str, target: str, **more: Any) -> str:
    platform = more.pop("platform", None)
    report = cut_image(source, target, ImageOptions(tailoring("9.0", **more), attest=True), platform=platform)
    assert report.digest is not None
    return report.digest


def statements_in(folder: Path, subject: str) -> dict[str, dict[str, Any]]:
    """What a layout's index lists for an image, read with nothing but the JSON; each digest is checked."""

    def blob(row: Mapping[str, Any]) -> bytes:
        data = (folder / "blobs" / str(row["digest"]).replace(":", "/")).read_bytes()
        assert (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}") == (row["size"], row["digest"])
        return data

    found = {}
    for row in json.loads((folder / "index.json").read_text())["manifests"]:
        manifest = json.loads(blob(row))
        if manifest.get("subject", {}).get("digest") != subject:
            continue
        assert row["artifactType"] == manifest["artifactType"] == "application/vnd.in-toto+json"
        assert blob(manifest["config"]) == b"{}"
        (layer,) = manifest["layers"]
        statement = json.loads(blob(layer))
        assert statement["_type"] == "https://in-toto.io/Statement/v1"
        assert statement["subject"][0]["digest"] == {"sha256": subject.removeprefix("sha256:")}
        kind = statement["predicateType"]
        assert layer["annotations"] == row["annotations"] == {"in-toto.io/predicate-type": kind}
        found[kind] = statement["predicate"]
    return found


def test_how_it_was_cut_and_what_is_in_it(tmp_path: Path, fat: bytes) -> None:
    files = {**package(fat), "usr/include/a.h": b"//" * 999, "opt/libloose.so": fat}
    source = stock(tmp_path / "stock", [BASE, tar_of(files)])
    digest = attested(source, f"oci:{tmp_path}/cut:x", drop=("headers",))
    found = statements_in(tmp_path / "cut", digest)
    assert found.keys() == {PROVENANCE, BILL}
    before = read_image(tmp_path / "stock")
    built = found[PROVENANCE]["buildDefinition"]
    assert built["resolvedDependencies"][0]["digest"] == {"sha256": before.digest.removeprefix("sha256:")}
    assert built["externalParameters"]["gpus"] == ["9.0"]
    assert built["externalParameters"]["command"] == "torchtailor image --gpu 9.0 --drop headers"
    removed = found[PROVENANCE]["runDetails"]["byproducts"][0]["annotations"]
    layer = json.loads((tmp_path / "cut/index.json").read_text())["manifests"][0]
    image = read_image(tmp_path / "cut", layer["digest"])
    assert removed["files"] == [{"path": "usr/include/a.h", "rule": "headers", "size": 1998}]
    inside = image.files(1)
    for row in removed["libraries"]:
        assert row["sha256_before"] == hashlib.sha256(fat).hexdigest()
        assert row["sha256_after"] == hashlib.sha256(inside[row["path"]]).hexdigest()
        assert row["dropped"]
    assert {row["path"] for row in removed["libraries"]} == {f"{SITE}/demo/lib/libdemo.so", "opt/libloose.so"}
    demo, loose = found[BILL]["components"]
    assert (demo["purl"], demo["pedigree"]["ancestors"][0]["purl"]) == ("pkg:pypi/demo@1.0",) * 2
    assert [file["name"] for file in demo["components"]] == [f"{SITE}/demo/lib/libdemo.so"]
    assert (loose["type"], loose["name"]) == ("file", "opt/libloose.so")
    assert loose["hashes"][0]["content"] == hashlib.sha256(inside["opt/libloose.so"]).hexdigest()
    assert found[BILL]["metadata"]["component"]["bom-ref"] == digest
    assert str(tmp_path) not in json.dumps(found)  # nothing of this machine


def test_the_same_cut_has_the_same_documents(tmp_path: Path, fat: bytes) -> None:
    source = stock(tmp_path / "stock", [BASE, tar_of(package(fat))])
    for _ in range(2):
        digest = attested(source, f"oci:{tmp_path}/cut:x")
    rows = json.loads((tmp_path / "cut/index.json").read_text())["manifests"]
    assert len(rows) == 3  # the image and two documents, once
    assert len(statements_in(tmp_path / "cut", digest)) == 2
    with open_source(f"oci:{tmp_path}/cut") as image:  # documents are not what a folder without a name means
        assert image.root().descriptor.digest == digest
    plain = cut_image(source, f"oci:{tmp_path}/plain:x", ImageOptions(tailoring("9.0")))
    assert plain.digest == digest


def test_an_image_that_stays_has_nothing_attached(tmp_path: Path) -> None:
    attested(stock(tmp_path / "stock", [BASE]), f"oci:{tmp_path}/cut:x")
    assert len(json.loads((tmp_path / "cut/index.json").read_text())["manifests"]) == 1


@pytest.mark.parametrize("native", [True, False])
def test_registries(tmp_path: Path, fat: bytes, native: bool) -> None:
    """Those that list what refers to an image, and those that need a tag for it."""
    source = stock(tmp_path / "stock", [BASE, tar_of(package(fat))])
    with serve(StandIn(referrers=native)) as registry:
        for _ in range(2):
            digest = attested(source, f"docker://{registry.host}/app:cut")
        kept = registry.manifests["app"]
        tag = digest.replace(":", "-")
        assert (tag in kept) != native
        with open_source(f"docker://{registry.host}/app:cut") as image:
            proofs = image.proofs(image.root().descriptor)
        assert (proofs.signatures, proofs.others) == (0, 2)
        if not native:
            rows = json.loads(kept[tag][1])["manifests"]
            assert [row["artifactType"] for row in rows] == ["application/vnd.in-toto+json"] * 2
            manifest = json.loads(kept[rows[0]["digest"]][1])
            statement = json.loads(registry.blobs["app"][manifest["layers"][0]["digest"]])
            assert statement["subject"][0]["digest"]["sha256"] == digest.removeprefix("sha256:")


def test_every_platform_has_its_own(tmp_path: Path, fat: bytes) -> None:
    layout = Layout(tmp_path / "stock")
    rows = [
        {**layout.image([tar_of(package(fat))], architecture=arch), "platform": {"architecture": arch, "os": "linux"}}
        for arch in ("amd64", "arm64")
    ]
    index = layout.blob(json.dumps({"schemaVersion": 2, "manifests": rows}).encode(), INDEX)
    source = layout.name(index)
    attested(source, f"oci:{tmp_path}/cut:x", platform="all")
    whole = json.loads((tmp_path / "cut/index.json").read_text())["manifests"]
    (first,) = [row for row in whole if "artifactType" not in row]
    images = json.loads((tmp_path / "cut/blobs" / first["digest"].replace(":", "/")).read_bytes())["manifests"]
    for image in images:
        found = statements_in(tmp_path / "cut", image["digest"])
        assert found[PROVENANCE]["buildDefinition"]["externalParameters"]["platform"].endswith(
            image["platform"]["architecture"]
        )
    with pytest.raises(UsageError, match="holds one platform"):
        cut_image(source, f"docker-archive:{tmp_path}/x.tar", ImageOptions(tailoring("9.0")), platform="all")


def test_a_docker_archive_holds_none(tmp_path: Path, fat: bytes) -> None:
    source = stock(tmp_path / "stock", [tar_of(package(fat))])
    with pytest.raises(UsageError, match="cannot hold what --attest attaches"):
        attested(source, f"docker-archive:{tmp_path}/x.tar")
    assert not (tmp_path / "x.tar").exists()


def test_an_oci_archive_holds_them(tmp_path: Path, fat: bytes) -> None:
    source = stock(tmp_path / "stock", [tar_of(package(fat))])
    digest = attested(source, f"oci-archive:{tmp_path}/x.tar:cut")
    assert len(statements_in(unpack_tar(tmp_path / "x.tar", tmp_path / "x"), digest)) == 2


def test_the_names_of_the_stock_image(tmp_path: Path, fat: bytes) -> None:
    """An image that says what it is based on is not based on that after a cut."""
    old = {"org.opencontainers.image.base.name": "old.example/base:1", "kept": "yes"}
    source = stock(tmp_path / "stock", [tar_of(package(fat))], manifest={"annotations": old})
    cut_image(source, f"oci:{tmp_path}/cut:x", ImageOptions(tailoring("9.0")))
    notes = read_image(tmp_path / "cut").manifest["annotations"]
    assert "org.opencontainers.image.base.name" not in notes and notes["kept"] == "yes"
    assert notes["org.opencontainers.image.base.digest"] == read_image(tmp_path / "stock").digest


@pytest.mark.parametrize("kind", ["referrer", "cosign tag", "tag", "none"])
def test_signatures_are_spoken_of_where_there_are_some(
    tmp_path: Path, fat: bytes, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    source = stock(tmp_path / "stock", [tar_of(package(fat))])
    layout, index = Layout(tmp_path / "stock"), tmp_path / "stock" / "index.json"
    listed = json.loads(index.read_text())
    (image,) = listed["manifests"]
    tag = image["digest"].replace(":", "-")
    name = {"cosign tag": f"{tag}.sig", "tag": tag}.get(kind)
    subject = {key: image[key] for key in ("mediaType", "digest", "size")}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.blob(b"{}", "application/vnd.oci.empty.v1+json"),
        "layers": [],
        **({} if kind == "cosign tag" else {"artifactType": SIGNED, "subject": subject}),
    }
    row = layout.blob(json.dumps(manifest).encode(), MANIFEST)
    if kind == "tag":
        whole = {"schemaVersion": 2, "manifests": [{**row, "artifactType": SIGNED}]}
        row = layout.blob(json.dumps(whole).encode(), INDEX)
    if kind != "none":
        named = {**row, "annotations": {"org.opencontainers.image.ref.name": name}} if name else row
        index.write_text(json.dumps({**listed, "manifests": [image, named]}))
    assert main(["image", source, f"oci:{tmp_path}/cut:x", "--gpu", "9.0"]) == ExitCode.OK
    said = " ".join(capsys.readouterr().out.split())
    assert ("has 1 signature, which does not hold for the cut one" in said) == (kind != "none")


def test_signatures_in_a_registry(tmp_path: Path, wide: bytes) -> None:
    source = stock(tmp_path / "stock", [tar_of(package(wide))])
    with serve(StandIn()) as registry:
        name = f"docker://{registry.host}/app"
        first = cut_image(source, f"{name}:stock", ImageOptions(tailoring("8.0,9.0"))).digest
        assert first is not None
        registry.manifests["app"][first.replace(":", "-") + ".sig"] = registry.manifests["app"]["stock"]
        report = cut_image(f"{name}:stock", f"{name}:cut", ImageOptions(tailoring("9.0")))
    assert report.differs
    assert [note for note in report.notes if "has 1 signature" in note]


def policy_of_the_documentation() -> dict[str, Any]:
    page = (Path(__file__).parents[3] / "docs" / "image.md").read_text()
    (text,) = [part.partition("```")[0] for part in page.split("```yaml\n") if "ClusterImagePolicy" in part]
    document: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return document


@pytest.mark.slow
@pytest.mark.network
def test_the_policy_of_the_documentation(tmp_path: Path, fat: bytes) -> None:
    """It admits a cut of the known image for its GPU, as an interpreter of Rego says, and nothing else."""
    tools = tmp_path / "tools"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--only-binary=:all:",
        "--target",
        str(tools),
        "regopy==1.5.2",
    ]
    if (done := subprocess.run(pip, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"the index has no regopy for this machine: {done.stderr[-200:]}")
    (authority,) = policy_of_the_documentation()["spec"]["authorities"]
    (attestation,) = authority["attestations"]
    assert attestation["predicateType"] == PROVENANCE and attestation["policy"]["type"] == "rego"

    def cut(
        name: str, data: bytes, gpu: str = "9.0", drop: tuple[str, ...] = ("headers",)
    ) -> tuple[str, dict[str, Any]]:
        files = {**package(data), "usr/include/a.h": b"//" * 999, "usr/share/doc/x/README": b"a" * 999}
        source = stock(tmp_path / name, [BASE, tar_of(files)])
        report = cut_image(source, f"oci:{tmp_path}/{name}-cut:x", ImageOptions(tailoring(gpu, drop=drop), attest=True))
        assert report.digest is not None
        found = statements_in(tmp_path / f"{name}-cut", report.digest)[PROVENANCE]
        return read_image(tmp_path / name).digest.removeprefix("sha256:"), {
            "predicateType": PROVENANCE,
            "predicate": found,
        }

    known, right = cut("right", fat)
    _, other_gpu = cut("gpu", fat, gpu="8.0")
    _, other_image = cut("image", fat + b"\0")
    _, other_rule = cut("rule", fat, drop=("headers", "docs", "static-libs"))
    text = attestation["policy"]["data"]
    policy = text.replace("the digest of the stock image, 64 hexadecimal digits", known)
    assert policy != text
    strict = policy.replace('{"headers", "docs"}', '{"docs"}')

    def changed(path: str, value: object) -> dict[str, Any]:
        statement: dict[str, Any] = json.loads(json.dumps(right))
        inner: Any = statement
        *above, last = path.split(".")
        for key in above:
            inner = inner[int(key) if isinstance(inner, list) else key]
        inner[last] = value
        return statement

    cases: list[tuple[str, dict[str, Any], bool]] = [
        (policy, right, True),
        (policy, other_rule, True),  # docs and headers were there, and both are allowed
        (strict, right, False),
        (text, right, False),
        (policy, other_gpu, False),
        (policy, other_image, False),
        (policy, changed("predicate.buildDefinition.buildType", "pkg:pypi/other#image"), False),
        (policy, changed("predicate.buildDefinition.resolvedDependencies", []), False),
        (policy, changed("predicate.runDetails.byproducts", []), False),
        (policy, changed("predicate", {}), False),
        (policy, {}, False),
    ]
    answers = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps([[module, statement] for module, statement, _ in cases]),
        env={"PYTHONPATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answers.returncode == 0, answers.stderr
    assert json.loads(answers.stdout) == [expected for _, _, expected in cases]


ASK = """
import json, sys
import regopy
answers = []
for module, statement in json.load(sys.stdin):
    rego = regopy.Interpreter()
    rego.add_module("policy", module)
    rego.set_input_term(json.dumps(statement))
    found = rego.query("data.sigstore.isCompliant")
    assert found.ok(), str(found)
    answers.append(str(found) == '{"expressions":[true]}')
print(json.dumps(answers))
"""
