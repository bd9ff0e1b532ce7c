"""fp32 is fp32, whatever variables, plug-ins or the image of a container have set before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NEW_API = "torch.backends.cuda.matmul.fp32_precision = 'tf32'"
OLD_API = "torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True"
OF_ALL = "torch.backends.fp32_precision = 'tf32'"
ASKED = """
import torch
from hpcbench.backends.devices import open_device
{before}
open_device("cpu", None)
from hpcbench.kinds.hardware.run.gemm import _tf32
def tells():
    print(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32,
          torch.get_float32_matmul_precision())
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        assert torch.backends.cudnn.conv.fp32_precision == "ieee"
        assert torch.backends.cudnn.rnn.fp32_precision == "ieee"
tells()
with _tf32():
    assert torch.backends.cuda.matmul.allow_tf32
    tells()
tells()
"""


@pytest.mark.parametrize(("before", "override"), [
    ("", "1"), (OF_ALL, None), (f"{OLD_API}; {NEW_API}", "1")])
def test_every_device_is_opened_with_fp32_in_fp32(before: str, override: str | None) -> None:
    variables = {} if override is None else {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": override}  # NGC
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", ASKED.format(before=before)], text=True,
        capture_output=True, env={**os.environ, **variables}, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "False False highest", "True False high", "False False highest"]
