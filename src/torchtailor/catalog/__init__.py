"""What is known about GPUs, CPUs, CUDA toolkits and PyTorch releases."""

from torchtailor.catalog.gpus import Capability, CodeKind, CodeTarget, Fit, Gpu, GpuRules, Suffix, TorchArch
from torchtailor.catalog.load import Catalog, load_catalog
from torchtailor.catalog.methods import NIX, SOURCE, WHEEL, Basis, Method
from torchtailor.catalog.releases import DEFAULT_PYTHON, Build, Release
from torchtailor.catalog.schema import Dotted
from torchtailor.catalog.toolkits import CudaToolkit, DriverFit

__all__ = [
    "DEFAULT_PYTHON",
    "NIX",
    "SOURCE",
    "WHEEL",
    "Basis",
    "Build",
    "Capability",
    "Catalog",
    "CodeKind",
    "CodeTarget",
    "CudaToolkit",
    "Dotted",
    "DriverFit",
    "Fit",
    "Gpu",
    "GpuRules",
    "Method",
    "Release",
    "Suffix",
    "TorchArch",
    "load_catalog",
]
