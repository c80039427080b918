from __future__ import annotations

import os

import pytest

from tests.integration.surgery.builds import toolchain
from tests.integration.workload.rig import Rig


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """For this machine."""
    return Rig(toolchain(os.uname().machine), tmp_path_factory.mktemp("rig")).build()
