"""NVML by older releases of pynvml, which lack calls or have other structs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from install.test_base_install import pip_install
from launcher import ROOT
from nvml_standins import Standins

ASK = """
import json
from hpcbench.backends.gpus import nvml_refusals
from hpcbench.backends.gpus import gpu_topology
from hpcbench.backends.gpus import gpu_details, opened_nvml
with opened_nvml() as nvml:
    matrix = gpu_topology(nvml)
    print(json.dumps([nvml.__file__, matrix, gpu_details(nvml, matrix["uuids"][:1]),
                      nvml_refusals(nvml, matrix["uuids"][0])]))
"""


@pytest.mark.parametrize(("version", "fabric", "refused"), [
    ("12.535.133", None, {"pcie_sent_bytes", "pcie_received_bytes"}),
    ("12.560.30", "ab" * 16 + "/7", {"pcie_received_bytes"})])
def test_what_an_older_one_has_is_reported(
    tmp_path: Path, standins: Standins, version: str, fabric: str | None, refused: set[str],
) -> None:
    pip_install(Path(sys.prefix), "--no-deps", "--target", str(tmp_path / "older"),
                f"nvidia-ml-py=={version}")
    done = subprocess.run([sys.executable, "-c", ASK], text=True, capture_output=True, timeout=60,
                          check=False, env={
        **os.environ, "LD_LIBRARY_PATH": str(standins.folder("gb200")),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "older"), str(ROOT)])})
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    file, matrix, (details,), refusals = found
    assert file.startswith(str(tmp_path))
    assert matrix["links"][0][1] == "NV18" and matrix["fabrics"][0] == fabric
    assert details["nvlinks"] == 18 and details["now"]["celsius"] == 35
    assert {*refusals} == refused
