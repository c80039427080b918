"""Limits that control groups (containers, batch systems) put on this process: CPU time and memory."""

from __future__ import annotations

from collections.abc import Iterator

from torchtailor.host.probe import Probe

_MOUNT = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # version 1 writes "no limit" as a number near 2^63


def cpu_limit(probe: Probe) -> float | None:
    """CPUs that the tightest quota allows; None without one."""
    quotas = [_quota(*(probe.read(f"{folder}/cpu.max") or "max").split()[:2]) for folder in _folders(probe, "")]
    for folder in _folders(probe, "cpu"):
        quota = (probe.read(f"{folder}/cpu.cfs_quota_us") or "").strip()
        period = (probe.read(f"{folder}/cpu.cfs_period_us") or "").strip()
        quotas.append(_quota(quota, period))
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(probe: Probe) -> int | None:
    """Bytes that the tightest limit allows; None without one."""
    texts = [probe.read(f"{folder}/memory.max") for folder in _folders(probe, "")]
    texts += [probe.read(f"{folder}/memory.limit_in_bytes") for folder in _folders(probe, "memory")]
    limits = [int(text) for text in (text.strip() for text in texts if text) if text.isdigit()]
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)


def _quota(quota: str = "", period: str = "") -> float | None:
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _folders(probe: Probe, controller: str) -> Iterator[str]:
    """The folder of this process's group and those above it; an empty controller means version 2."""
    for line in (probe.read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller not in controllers.split(","):
            continue
        mount = f"{_MOUNT}/{controllers}" if controllers else _MOUNT
        path = path.rstrip("/")
        while path:
            yield mount + path
            path = path.rpartition("/")[0]
        yield mount
