"""Limits that control groups (containers, batch systems) put on this process: CPU time and memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

Read = Callable[[str], str | None]  # a file's text; None where it is missing or may not be read

_MOUNT = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # version 1 writes "no limit" as a number near 2^63


def available_cores() -> int:
    """The cores that this process may use: those of its affinity, within the quota of its control group."""
    return cores_within(len(os.sched_getaffinity(0)), _read)


def cores_within(affinity: int, read: Read) -> int:
    """How many of these cores the tightest quota leaves; at least one."""
    quota = cpu_limit(read)
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def cpu_limit(read: Read) -> float | None:
    """CPUs that the tightest quota allows; None without one."""
    quotas = [_quota(*(read(f"{folder}/cpu.max") or "max").split()[:2]) for folder in _folders(read, "")]
    for folder in _folders(read, "cpu"):
        quota = (read(f"{folder}/cpu.cfs_quota_us") or "").strip()
        period = (read(f"{folder}/cpu.cfs_period_us") or "").strip()
        quotas.append(_quota(quota, period))
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(read: Read) -> int | None:
    """Bytes that the tightest limit allows; None without one."""
    texts = [read(f"{folder}/memory.max") for folder in _folders(read, "")]
    texts += [read(f"{folder}/memory.limit_in_bytes") for folder in _folders(read, "memory")]
    limits = [int(text) for text in (text.strip() for text in texts if text) if text.isdigit()]
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)


def _quota(quota: str = "", period: str = "") -> float | None:
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _folders(read: Read, controller: str) -> Iterator[str]:
    """The folder of this process's group and those above it; an empty controller means version 2."""
    for line in (read("/proc/self/cgroup") or "").splitlines():
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


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return None
