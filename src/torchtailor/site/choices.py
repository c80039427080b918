"""What the selector's lists offer: every product's name, CPUs, drivers, Pythons, releases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchtailor.advise.host.tegra import tegra_table
from torchtailor.advise.recommendation.request import Workload
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.products import product_names
from torchtailor.catalog.releases import DEFAULT_PYTHON
from torchtailor.catalog.schema import python_key
from torchtailor.core.errors import TorchtailorError
from torchtailor.site.hosts import SYSTEMS

EXAMPLE = "RTX 4090"
_MANAGERS = {
    "torchtailor": "torchtailor",
    "pip": "pip",
    "uv": "uv",
    "pyproject": "uv (pyproject.toml)",
    "docker": "Docker",
    "source": "source",
    "nix": "Nix flake",
    "flox": "Flox",
}
_WORKLOADS = {
    Workload.GENERAL: "general",
    Workload.BF16_TRAINING: "training in BF16 on the CPU",
    Workload.INT8_INFERENCE: "inference in INT8 on the CPU",
}

SELECTS = ("python", "release", "method", "workload", "manager", "system", "jetpack")  # fields with a fixed list

SUGGESTED = ("products", "cpus", "drivers")  # lists of fields that take any text

Option = Mapping[str, str]


def form_choices(catalog: Catalog) -> dict[str, Any]:
    """The lists of the form, as the page's script takes them."""
    pythons = {python for release in catalog.releases.values() for python in release.pythons}
    ordered = sorted(pythons, key=python_key, reverse=True)
    releases = sorted(catalog.releases.values(), key=lambda release: release.version, reverse=True)
    return {
        "products": products(catalog),
        "cpus": cpus(catalog),
        "drivers": [
            _option(str(driver.newest), f"R{driver.branch}" + (f", CUDA {driver.cuda}" if driver.cuda else ""))
            for driver in sorted(catalog.drivers.values(), key=lambda one: one.branch, reverse=True)
        ],
        "pythons": [_option("", f"any ({DEFAULT_PYTHON})"), *(_option(one, one) for one in ordered)],
        "releases": [_option("", "newest"), *(_option(release.name, str(release.version)) for release in releases)],
        "methods": [_option("", "any"), *(_option(method.name, method.phrase) for method in catalog.methods.values())],
        "workloads": [_option(one.value, label) for one, label in _WORKLOADS.items()],
        "managers": [_option(key, label) for key, label in _MANAGERS.items()],
        "systems": [_option(one.key, one.label) for one in SYSTEMS],
        "jetpacks": [
            _option("", "unknown"),
            *(_option(row.jetpack, f"{row.jetpack} (CUDA {row.cuda})") for row in reversed(tegra_table().jetpack)),
        ],
    }


def _option(key: str, label: str) -> Option:
    return {"key": key, "label": label}


def products(catalog: Catalog) -> list[tuple[str, str]]:
    """Every product that has one meaning or an assumed one, newest first, with its capability."""
    found: dict[str, str] = {}
    for name in product_names(catalog.gpus):
        if name.removeprefix("GeForce ") in found:
            continue  # pci.ids' name of one that is there
        try:
            found.setdefault(name, str(catalog.find_gpu(name).gpu.capability))
        except TorchtailorError:
            continue  # a chip that is not in the catalog
    newest = sorted(found.items(), key=lambda row: catalog.gpu(row[1]).capability, reverse=True)
    return [(name, capability) for name, capability in newest]


def cpus(catalog: Catalog) -> list[tuple[str, str]]:
    """The labels of CPU lines and the names of cores that `--cpu` takes, with the core each means."""
    found: dict[str, str] = {}
    for name in (*(known.label for known in catalog.cpu_names), *catalog.microarchitectures):
        try:
            core, _ = catalog.microarchitecture(name)
        except TorchtailorError:
            continue  # a label that says more than a name: "Xeon E3-1200 v1 to v6 (as Sandy Bridge)"
        found.setdefault(name, core.name)
    return list(found.items())
