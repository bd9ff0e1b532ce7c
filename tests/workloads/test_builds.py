"""What torch's CPU build, which runs here, has in common with its CUDA build, by stored facts.

Where both start alike and take the same arguments, tests of one speak for the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cuda_wheel import OVERRIDE, STORED, described
from launcher import ROOT

FACTS = json.loads(STORED.read_text(encoding="utf-8"))


def test_both_builds_take_the_same_arguments() -> None:
    here = {name: described(name) for name in FACTS["names"]}
    only_in_the_other = {name for name in here if here[name] != FACTS["names"][name]}
    assert only_in_the_other == {"torch._C._distributed_c10d._dump_nccl_trace_json",
                                 "torch.distributed.ProcessGroupNCCL.Options"}


@pytest.mark.parametrize("override", ["0", "1"])
def test_both_builds_round_alike_by_default(override: str) -> None:
    code = "import json, cuda_wheel; print(json.dumps(cuda_wheel.defaults()))"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "tests", text=True, check=True,
                          stdout=subprocess.PIPE, env={**os.environ, OVERRIDE: override}).stdout
    with_override = FACTS["defaults_with_override"] if override == "1" else {}
    assert json.loads(told) == FACTS["defaults"] | with_override
