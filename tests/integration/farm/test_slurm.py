"""A farm on a real Slurm of one machine, with two nodes by name; a job that Slurm cancels runs again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.building.conftest import Shell
from tests.integration.farm.test_cluster import BUILD, Watched, plain, site, start, wanted
from tests.skips import needs_module
from tests.unit.building.test_build import tree
from tests.waiting import wait_until

__all__ = ["plain", "site", "wanted"]

pytestmark = [needs_module("dask_jobqueue"), pytest.mark.slow, pytest.mark.xdist_group("farm")]

CONFIGURATION = """
ClusterName=farm
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
SlurmctldPidFile={root}/ctld.pid
SlurmdPidFile={root}/%n.pid
SlurmctldLogFile={root}/ctld.log
SlurmdLogFile={root}/%n.log
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=4000 State=UNKNOWN
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=4000 State=UNKNOWN
PartitionName=farm Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
"""
SECTION = """
[farm.slurm]
cluster = "slurm"
workers = 2
[farm.slurm.options]
cores = 1
processes = 1
memory = "3GB"
queue = "farm"
interface = "lo"
python = "{python}"
local_directory = "{root}/dask"
log_directory = "{root}/logs"
"""


@pytest.fixture
def slurm(tmp_path: Path, shell: Shell) -> Iterator[Path]:
    if os.geteuid() or not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch"))):
        pytest.skip("Slurm and root are needed: apt-get install slurm-wlm munge")
    root = tmp_path / "slurm"
    root.mkdir(mode=0o755)
    for path in root.parents:  # munged wants a socket that everybody reaches
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(0o755)
    for name in ("state", "spool.node1", "spool.node2"):
        (root / name).mkdir()
    sockets = [socket.socket() for _ in range(3)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    text = CONFIGURATION.format(host=socket.gethostname(), root=root, ports=ports)
    (root / "slurm.conf").write_text(text)
    (root / "key").write_bytes(os.urandom(64))
    (root / "key").chmod(0o400)
    shell.environment["SLURM_CONF"] = str(root / "slurm.conf")
    files = [f"--{name}-file={root}/munge.{name}" for name in ("pid", "log", "seed")]
    subprocess.run(
        ["munged", "--force", f"--socket={root}/munge.sock", f"--key-file={root}/key", *files],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        for line in (["slurmctld", "-i"], ["slurmd", "-N", "node1"], ["slurmd", "-N", "node2"]):
            subprocess.run(line, env=shell.environment, check=True)
        wait_until(lambda: "2" in _slurm(shell, "sinfo", "-h", "-t", "idle", "-o", "%D"), "two idle nodes")
        yield root
    finally:
        _slurm(shell, "scancel", "--user", "root")
        for name in ("node1", "node2", "ctld", "munge"):
            pid = root / f"{name}.pid"
            if pid.exists():
                os.kill(int(pid.read_text()), signal.SIGTERM)


def _slurm(shell: Shell, *line: str) -> str:
    return subprocess.run(line, env=shell.environment, capture_output=True, text=True, check=False).stdout


def test_a_build_on_slurm(shell: Shell, wanted: dict[str, str], slurm: Path) -> None:
    section = SECTION.format(python=sys.executable, root=slurm)
    (shell.root / "torchtailor.toml").write_text(section)
    shell.site.gate.clear()
    build = Watched(start(shell, "slurm"))
    wait_until(lambda: shell.site.waiting >= 2, "both nodes download")
    jobs = _slurm(shell, "squeue", "-h", "-t", "running", "-o", "%i %N").split("\n")
    assert {line.split()[1] for line in jobs if line} == {"node1", "node2"}
    _slurm(shell, "scancel", "--signal=KILL", jobs[0].split()[0])
    wait_until(lambda: build.seen("worker-lost"), "the loss is noticed")
    shell.site.gate.set()
    result = build.end()
    assert tree(shell.root / "dist") == wanted
    assert result["failed"] == [] and result["workers_lost"]
    checked = json.loads(shell.torchtailor("farm", "check", "slurm", "--store", "store", "--json").stdout)
    assert checked["workers"][0]["usable"]
    wait_until(lambda: not _slurm(shell, "squeue", "-h"), "the jobs end with the farm")
    assert BUILD
