"""torch's dtype for each name of a dtype in sweep files."""

from __future__ import annotations

import torch

DTYPES = {
    "fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16,
    "int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8,
}
