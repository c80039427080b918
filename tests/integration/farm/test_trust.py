"""Who can use a cluster: nobody without its keys, on this machine or on another one."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from tests.integration.backends.conftest import Shell
from tests.integration.farm.clusters import DaskCluster, running
from tests.integration.farm.test_cluster import Watched, plain, site, start, wanted
from tests.torture.intruder import ATTACKS, intrude, listening
from tests.unit.backends.test_build import tree
from tests.waiting import processes, wait_until
from torchtailor.errors import ExitCode

__all__ = ["plain", "site", "wanted"]

pytestmark = pytest.mark.xdist_group("farm")
TLS = "DASK_DISTRIBUTED__COMM__TLS__"


def test_nobody_else_can_use_the_workers_of_this_machine(
    shell: Shell, wanted: dict[str, str], tmp_path: Path
) -> None:
    """Another user tries every port, and puts a module where Dask would import it from."""
    temporary = tmp_path / "tmp"
    scratch = temporary / "dask-scratch-space"
    scratch.mkdir(parents=True)
    scratch.chmod(0o777)  # as another user would make it
    for module in ("lz4", "cloudpickle", "numpy"):
        (scratch / f"{module}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    shell.environment["TMPDIR"] = str(temporary)
    shell.site.gate.clear()
    build = Watched(start(shell, "local:2"))
    try:
        wait_until(lambda: shell.site.waiting >= 2, "both workers download")
        ports = listening(build.process.pid)
        lines = [Path(f"/proc/{pid}/{file}").read_bytes() for pid in processes(build.process.pid) for file in _SHOWN]
        keys = [path for path in [*temporary.rglob("*"), *tmp_path.rglob("*.pem")] if _is_readable_key(path)]
        reached = intrude(ATTACKS, ports)
    finally:
        shell.site.gate.set()
        ended = build.end()
    assert len(ports) == 5, ports  # the scheduler's, two nannies', two workers'
    assert [address for address in ports.values() if not ip_address(address).is_loopback] == []
    assert reached == []
    assert keys == [] and not [line for line in lines if b"PRIVATE KEY" in line]
    assert not (tmp_path / "imported").exists() and not [*scratch.glob("worker-*")]
    assert ended["failed"] == [] and build.other == []
    assert tree(shell.root / "dist") == wanted


_SHOWN = ("cmdline", "environ")


def _is_readable_key(path: Path) -> bool:
    return path.is_file() and b"PRIVATE KEY" in path.read_bytes() and bool(path.parent.stat().st_mode & stat.S_IRWXO)


class Authority:
    """A CA and what it signs, made as docs/farm.md says."""

    def __init__(self, folder: Path, *, days: int = 30) -> None:
        self.ca, self.cert, self.key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
        folder.mkdir()
        self._folder = folder
        self._openssl("req", "-x509", *_NEW, "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=farm", "-days", "30")
        self._openssl("req", *_NEW, "key.pem", "-out", "request.pem", "-subj", "/CN=dask")
        span = ["-days", str(days)] if days else ["-not_before", "20200101000000Z", "-not_after", "20200102000000Z"]
        signer = ["-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial"]
        self._openssl("x509", "-req", "-in", "request.pem", *signer, "-out", "cert.pem", *span)

    def _openssl(self, *words: str) -> None:
        done = subprocess.run(["openssl", *words], cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode and "-not_before" in words:
            pytest.skip("this openssl cannot make a certificate that has expired")
        assert not done.returncode, done.stderr

    def variables(self, *roles: str) -> dict[str, str]:
        named = {f"{TLS}CA_FILE": str(self.ca)}
        for role in roles:
            named |= {f"{TLS}{role}__CERT": str(self.cert), f"{TLS}{role}__KEY": str(self.key)}
        return named


_NEW = ("-newkey", "rsa:2048", "-nodes", "-keyout")
pytest_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "good")


@pytest.fixture(scope="module")
def secured(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """A real scheduler with TLS, without workers."""
    with running(tmp_path_factory.mktemp("secured"), variables=authority.variables("SCHEDULER", "WORKER")) as cluster:
        yield cluster


@pytest_openssl
def test_a_cluster_with_tls_builds_and_nobody_without_its_keys_can_use_it(
    shell: Shell, wanted: dict[str, str], authority: Authority, secured: DaskCluster
) -> None:
    assert secured.address.startswith("tls://")
    secured.start_worker("one")
    shell.environment |= authority.variables("CLIENT")
    build = Watched(start(shell, secured.address))
    assert build.end()["failed"] == [] and build.other == []
    assert tree(shell.root / "dist") == wanted
    assert not build.seen("unprotected")
    assert intrude(("code", "code with own keys", "worker with own keys"), [_port(secured)]) == []


@pytest_openssl
@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ("no keys", ExitCode.ENVIRONMENT, "needs `distributed.comm.tls.ca-file`, which is not set. Set DASK_"),
        ("no certificate", ExitCode.ENVIRONMENT, "needs `distributed.comm.tls.client.cert`, which is not set."),
        ("missing key", ExitCode.ENVIRONMENT, "`distributed.comm.tls.client.key`, cannot be read: No such file"),
        ("another key", ExitCode.ENVIRONMENT, "cannot be used: key values mismatch. Set DASK_"),
        ("no PEM", ExitCode.ENVIRONMENT, "cannot be used: no certificate or crl found. Set DASK_"),
        ("encrypted key", ExitCode.ENVIRONMENT, "cannot be used: "),
        ("another CA", ExitCode.NETWORK, "its certificate is refused, "),
        ("another certificate", ExitCode.NETWORK, "it refuses our certificate, unknown ca."),
        ("expired", ExitCode.NETWORK, "it refuses our certificate, certificate expired."),
        ("tcp", ExitCode.NETWORK, "it has TLS. Write tls://"),
        ("plain scheduler", ExitCode.NETWORK, "it has no TLS (wrong version number). Start it with"),
        ("encryption required", ExitCode.NETWORK, "encryption required by Dask configuration"),
    ],
)
def test_what_is_wrong_with_tls_is_said_in_a_sentence(
    change: str,
    code: ExitCode,
    said: str,
    shell: Shell,
    authority: Authority,
    secured: DaskCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchtailor.farm.address._SPEAK", 2.0)
    variables = authority.variables("CLIENT")
    address, key, ca = secured.address, f"{TLS}CLIENT__KEY", f"{TLS}CA_FILE"
    with _plain_scheduler() as plain_port:
        match change:
            case "no keys":
                variables = {}
            case "no certificate":
                variables = {ca: str(authority.ca)}
            case "missing key":
                variables[key] = str(tmp_path / "nothing.pem")
            case "another key":
                variables[key] = str(Authority(tmp_path / "other").key)
            case "no PEM":
                variables[ca] = str(tmp_path / "text")
                (tmp_path / "text").write_text("not PEM")
            case "encrypted key":
                variables[key] = str(tmp_path / "locked.pem")
                words = ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", authority.key, "-out"]
                subprocess.run([*words, variables[key]], check=True, capture_output=True)
            case "another CA":
                variables[ca] = str(Authority(tmp_path / "other").ca)
            case "another certificate":
                variables = Authority(tmp_path / "other").variables("CLIENT") | {ca: str(authority.ca)}
            case "expired":
                expired = Authority(tmp_path / "expired", days=0)
                pytest.skip("made below") if not expired.cert.exists() else None
            case "tcp":
                address = address.replace("tls://", "tcp://")
            case "plain scheduler":
                address = f"tls://127.0.0.1:{plain_port}"
        done = shell.run(*shell.line("farm", "check", address, "--store", "store"), **variables)
    assert done.returncode == code, done.stderr
    text = " ".join(done.stderr.split())
    assert said in text and "Traceback" not in text and not done.stdout


def _port(cluster: DaskCluster) -> int:
    return int(cluster.address.rpartition(":")[2])
