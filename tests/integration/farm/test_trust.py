"""Who can use a cluster: nobody without its keys, on this machine or on another one."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.catalogs import load_pinned
from tests.integration.building.conftest import Shell
from tests.integration.farm.clusters import DaskCluster, running
from tests.integration.farm.test_cluster import Watched, plain, site, start, wanted
from tests.torture.intruder import ATTACKS, intrude, listening
from tests.unit.building.test_build import tree
from tests.waiting import processes, wait_until
from torchtailor.building.farm.where import check_answers, parse_where
from torchtailor.core.errors import ExitCode, TorchtailorError

__all__ = ["plain", "site", "wanted"]

pytestmark = pytest.mark.xdist_group("farm")


def test_nobody_else_can_use_the_workers_of_this_machine(shell: Shell, wanted: dict[str, str], tmp_path: Path) -> None:
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
        # the scheduler's, two nannies', two workers'; one worker can be at two downloads before the other listens
        wait_until(lambda: len(listening(build.process.pid)) >= 5, "both workers listen")
        ports = listening(build.process.pid)
        lines = [Path(f"/proc/{pid}/{file}").read_bytes() for pid in processes(build.process.pid) for file in _SHOWN]
        keys = [path for path in [*temporary.rglob("*"), *tmp_path.rglob("*.pem")] if _is_readable_key(path)]
        reached = intrude(ATTACKS, ports)
    finally:
        shell.site.gate.set()
        ended = build.end()
    assert len(ports) == 5, ports
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
    """A CA and a certificate that it signed, made as docs/farm.md says."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._openssl("req", "-x509", *_NEW, "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=farm", "-days", "30")
        self._openssl("req", *_NEW, "key.pem", "-out", "request.pem", "-subj", "/CN=dask")
        self.sign("cert.pem", days=30)

    def sign(self, name: str, days: int) -> str:
        """For so many days from yesterday on; openssl 3.5 no longer signs what has expired already."""
        request = x509.load_pem_x509_csr(Path(self.path("request.pem")).read_bytes())
        issuer = x509.load_pem_x509_certificate(Path(self.path("ca.pem")).read_bytes())
        key = serialization.load_pem_private_key(Path(self.path("ca-key.pem")).read_bytes(), None)
        assert isinstance(key, rsa.RSAPrivateKey)
        yesterday = datetime.now(UTC) - timedelta(days=1)
        certificate = (
            x509.CertificateBuilder(issuer.subject, request.subject, request.public_key(), x509.random_serial_number())
            .not_valid_before(yesterday)
            .not_valid_after(yesterday + timedelta(days=days, minutes=1))
            .sign(key, hashes.SHA256())
        )
        Path(self.path(name)).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return self.path(name)

    def path(self, name: str) -> str:
        return str(self._folder / name)

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self._folder, capture_output=True, check=True)

    def variables(self, *roles: str) -> dict[str, str]:
        named = {f"{_TLS}CA_FILE": self.path("ca.pem")}
        for role in roles:
            named |= {f"{_TLS}{role}__CERT": self.path("cert.pem"), f"{_TLS}{role}__KEY": self.path("key.pem")}
        return named

    @property
    def settings(self) -> dict[str, str | None]:
        """The same of a client, as Dask's configuration has it."""
        return {_CA: self.path("ca.pem"), _CERT: self.path("cert.pem"), _KEY: self.path("key.pem")}


_NEW = ("-newkey", "rsa:2048", "-nodes", "-keyout")
_TLS = "DASK_DISTRIBUTED__COMM__TLS__"
_CA, _CERT, _KEY = (f"distributed.comm.tls.{name}" for name in ("ca-file", "client.cert", "client.key"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    return Authority(tmp_path_factory.mktemp("tls") / "good")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "other")


@pytest.fixture(scope="module")
def secured(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """A real scheduler with TLS."""
    with running(tmp_path_factory.mktemp("secured"), variables=authority.variables("SCHEDULER", "WORKER")) as cluster:
        yield cluster


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
    attacks = ("code", "code with own keys", "worker with own keys", "no certificate", "foreign certificate")
    assert intrude(attacks, [_port(secured)]) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("no keys", "needs `distributed.comm.tls.ca-file`, which is not set. Set DASK_"),
        ("no certificate", "needs `distributed.comm.tls.client.cert`, which is not set. Set DASK_"),
        ("missing key", "`distributed.comm.tls.client.key`, cannot be read: No such file or directory. Set DASK_"),
        ("another key", "cannot be used: key values mismatch. Set DASK_"),
        ("no PEM", "cannot be used: no certificate or crl found. Set DASK_"),
        ("locked key", "cannot be used: "),
        ("another CA", "its certificate is refused, "),
        ("another certificate", "it refuses our certificate, "),
        ("expired", "it refuses our certificate, certificate expired. `distributed.comm.tls.client.cert` of"),
        ("tcp", "it has TLS. Write tls://"),
    ],
)
def test_what_is_wrong_with_tls_is_said_in_a_sentence(
    change: str,
    said: str,
    authority: Authority,
    stranger: Authority,
    secured: DaskCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import dask
    import distributed  # noqa: F401  # or its defaults would go with what is set below

    monkeypatch.setattr("torchtailor.building.farm.address._SPEAK", 3.0)
    settings, address = authority.settings, secured.address
    match change:
        case "no keys":
            settings = dict.fromkeys(settings)
        case "no certificate":
            settings |= {_CERT: None, _KEY: None}
        case "missing key":
            settings[_KEY] = str(tmp_path / "nothing.pem")
        case "another key":
            settings[_KEY] = stranger.path("key.pem")
        case "no PEM":
            settings[_CA] = __file__
        case "locked key":
            settings[_KEY] = str(tmp_path / "locked.pem")
            words = ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", authority.path("key.pem"), "-out"]
            subprocess.run([*words, str(settings[_KEY])], check=True, capture_output=True)
        case "another CA":
            settings[_CA] = stranger.path("ca.pem")
        case "another certificate":
            settings = stranger.settings | {_CA: authority.path("ca.pem")}
        case "expired":
            settings[_CERT] = authority.sign("expired.pem", days=0)
        case "tcp":
            address = address.replace("tls://", "tcp://")
    with dask.config.set(settings), pytest.raises(TorchtailorError) as caught:
        check_answers(parse_where(address, load_pinned(tmp_path)))
    assert said in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.code in (ExitCode.ENVIRONMENT, ExitCode.NETWORK)


def test_a_cluster_without_tls_is_warned_of(shell: Shell, authority: Authority, tmp_path: Path) -> None:
    import dask
    import distributed  # noqa: F401  # or its defaults would go with what is set below

    with running(tmp_path, "one") as cluster:
        if ip_address(cluster.address.rpartition(":")[0].removeprefix("tcp://")).is_loopback:
            pytest.skip("this machine has no address but the loopback")
        build = Watched(start(shell, cluster.address))
        checked = shell.torchtailor("farm", "check", cluster.address, "--store", "store", "--json")
        assert f"{cluster.address} has no TLS: whoever reaches it can run code" in " ".join(checked.stderr.split())
        assert json.loads(checked.stdout)["warning"].endswith("Use tls:// (`torchtailor help farm`).")
        # it listens for others too, whichever of its addresses is used
        near = shell.torchtailor("farm", "check", f"tcp://127.0.0.1:{_port(cluster)}", "--store", "store", "--json")
        assert json.loads(near.stdout)["warning"] == json.loads(checked.stdout)["warning"]
        for settings, address, said in (
            (authority.settings, f"tls://127.0.0.1:{_port(cluster)}", "it has no TLS (wrong version number)"),
            ({"distributed.comm.require-encryption": True}, cluster.address, "encryption required"),
        ):
            with dask.config.set(settings):
                wrong = shell.torchtailor("farm", "check", address, "--store", "store", code=ExitCode.NETWORK)
            assert said in " ".join(wrong.stderr.split()) and "Traceback" not in wrong.stderr
        build.end()
        assert build.events[0]["kind"] == "unprotected" and "has no TLS" in str(build.events[0]["text"])


def test_a_cluster_of_the_loopback_is_not_warned_of(shell: Shell, tmp_path: Path) -> None:
    with running(tmp_path, "one", host="127.0.0.1") as cluster:
        near = shell.torchtailor("farm", "check", cluster.address, "--store", "store", "--json")
    assert json.loads(near.stdout)["warning"] == "" and "TLS" not in near.stderr


def _port(cluster: DaskCluster) -> int:
    return int(cluster.address.rpartition(":")[2])
