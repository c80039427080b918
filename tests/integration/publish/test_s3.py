"""Publishing to an S3-compatible server, and installing from it over HTTP."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from tests.integration.building.conftest import Shell
from tests.integration.building.test_build_command import pip_report
from tests.skips import needs_module
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode

pytestmark = [needs_module("boto3", "moto", "s3fs"), pytest.mark.xdist_group("s3")]  # which take seconds to import


def client_of(url: str) -> Any:
    import boto3

    return boto3.client(
        "s3", endpoint_url=url, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
    )


@pytest.fixture
def s3(shell: Shell) -> Iterator[str]:
    """An empty bucket on a server of its own."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # of servers and logins that other tests had
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    url = f"http://{host}:{port}"
    credentials = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    shell.environment |= credentials | {"AWS_ENDPOINT_URL": url, "FSSPEC_S3_ENDPOINT_URL": url}
    client_of(url).create_bucket(Bucket="wheels", ACL="public-read-write")
    try:
        yield url
    finally:
        running.stop()


def test_publish_to_s3_and_install_from_it(
    shell: Shell, s3: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.torchtailor("build", "sm90-avx2", "--release", "main", "--nvidia")
    first = json.loads(shell.torchtailor("publish", "dist", "--to", "s3://wheels/torch", "--json").stdout)
    assert first["targets"] == ["cu128-sm90"]
    assert len(first["left_out"]) == 3  # changed, and NVIDIA's
    shell.torchtailor("build", "sm80-avx2", "--release", "main")
    second = json.loads(shell.torchtailor("publish", "dist", "--to", "s3://wheels/torch", "--json").stdout)
    assert second["targets"] == ["cu128-sm80", "cu128-sm90"]
    assert 0 < second["uploaded"] < first["uploaded"] + 3

    client = client_of(s3)
    page = client.get_object(Bucket="wheels", Key="torch/cu128-sm90/torch/index.html")
    assert page["ContentType"] == "text/html; charset=utf-8"
    text = page["Body"].read().decode()
    assert "torch-2.8.0+cu128.sm90-" in text
    cublas = client.get_object(Bucket="wheels", Key="torch/cu128-sm90/nvidia-cublas-cu12/index.json")
    (stock,) = json.loads(cublas["Body"].read())["files"]
    assert stock["url"].startswith(shell.site.url)  # points at the stock wheel
    (file,) = json.loads(client.get_object(Bucket="wheels", Key="torch/cu128-sm90/torch/index.json")["Body"].read())[
        "files"
    ]
    wheel = client.get_object(Bucket="wheels", Key="torch/" + file["url"].removeprefix("../../").replace("%2B", "+"))
    assert hashlib.sha256(wheel["Body"].read()).hexdigest() == file["hashes"]["sha256"]

    # Its life: what is yanked says so, a generation can be gone back to, and what nothing lists is removed.
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)

    def bucket(*words: str) -> Any:
        """In this process: importing s3fs takes most of the time of a command."""
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # as a new process
        capsys.readouterr()
        assert main(["publish", "--to", "s3://wheels/torch", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    yanked = bucket("--yank", "torch==2.8.0", "--reason", "bad")
    assert len(yanked["changed"]) == 2
    back = bucket("--rollback", "1")
    assert any(name.startswith("cu128-sm80/") for name in back["changed"])
    listed = bucket("--list")
    assert [one["number"] for one in listed["generations"]] == [1, 2, 3, 4]
    kept = bucket("--prune", "--keep", "1")
    assert kept["removed"] == []  # a reader may hold the page of a moment ago
    gone = bucket("--prune", "--keep", "1", "--grace", "0s")["removed"]
    assert any("sm80" in name for name in gone)
    assert not any("sm90" in name for name in gone)

    # pip reads it straight from the bucket: our torch and NCCL, and the stock wheels of NVIDIA's.
    found = pip_report(shell, "--index-url", f"{s3}/wheels/torch/cu128-sm90/", "torch")
    assert found["torch"].startswith(f"{s3}/wheels/torch/files/") and "sm90" in found["torch"]
    assert found["nvidia-cublas-cu12"].startswith(shell.site.url)

    done = shell.torchtailor("publish", "dist", "--to", "s3://nowhere/x", code=ExitCode.NETWORK)
    assert "s3://nowhere/x cannot be" in done.stderr
    assert "Traceback" not in done.stderr
