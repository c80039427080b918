"""Asks NVML what GPUs there are, in a process of its own: `python -m torchtailor.advise.host.nvml` prints JSON.

NVML is a library of the driver: with a broken driver it can hang or crash, and then only this process is lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def report() -> dict[str, Any]:
    """What NVML reports; a question that a GPU does not answer is None."""
    import pynvml

    pynvml.nvmlInit()
    try:
        cuda = _ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return {
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
            "gpus": [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())],
        }
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml: Any, index: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    capability = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return {
        "index": index,
        "name": _text(pynvml.nvmlDeviceGetName(handle)),
        "uuid": _text(_ask(pynvml.nvmlDeviceGetUUID, handle)),
        "capability": f"{capability[0]}.{capability[1]}" if capability else None,
        "memory": memory.total if memory else None,
        "mig": _mig(pynvml, handle),
    }


def _mig(pynvml: Any, handle: Any) -> list[dict[str, str]]:
    mode = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    if not mode or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return []
    instances = []
    for slot in range(_ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = _ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        if instance is not None:
            instances.append(
                {
                    "uuid": _text(_ask(pynvml.nvmlDeviceGetUUID, instance)) or "",
                    "name": _text(_ask(pynvml.nvmlDeviceGetName, instance)) or "MIG",
                }
            )
    return instances


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    import pynvml

    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def _text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def main() -> int:
    try:
        answer = report()
    except Exception as error:  # whatever it is, the parent needs one sentence, not a traceback
        sys.stdout.write(json.dumps({"problem": str(error) or type(error).__name__}) + "\n")
        return 1
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
