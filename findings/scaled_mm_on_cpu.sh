#!/usr/bin/env bash
# torch 2.13.0 on the CPU: a product of float8_e4m3fn matrices (torch._scaled_mm) takes hundreds of
# times as long with one scale for each matrix as with a scale for each row, though the arithmetic is
# the same: one scale, repeated for each row, gives the same numbers at the speed of rows. A sweep of
# FP8 recipes on CPUs that calls both as on GPUs would find tensor-wise scaling useless.
#
# Seen, one thread, 512 x 512 x 512, bf16 out: one scale at least 20 times the time of one for each
# row (on the machine where it was found several hundred times); results equal but for rounding.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy
cat > "$folder/scales.py" <<'PYTHON'
import sys
import time

import torch

EXTENT, ROUNDS, LEAST = 512, 5, 20
torch.set_num_threads(1)
torch.manual_seed(0)
left, right = (torch.randn(EXTENT, EXTENT).to(torch.float8_e4m3fn) for _ in range(2))
one, rows = torch.ones(1, 1), torch.ones(EXTENT, 1)


def product(scale_a, scale_b):
    return torch._scaled_mm(left, right.t(), scale_a=scale_a, scale_b=scale_b,
                            out_dtype=torch.bfloat16)


def best_s(scale_a, scale_b):
    product(scale_a, scale_b)
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        product(scale_a, scale_b)
        times.append(time.perf_counter() - began)
    return min(times)


tensorwise, rowwise = best_s(one, one), best_s(rows, rows.t())
same = torch.allclose(product(one, one).float(), product(rows, rows.t()).float(), rtol=0.02)
print(f"torch {torch.__version__}: one scale {1e3 * tensorwise:.2f} ms, a scale for each row "
      f"{1e3 * rowwise:.2f} ms, {tensorwise / rowwise:.0f} times; results equal: {same}")
sys.exit(not (same and tensorwise > LEAST * rowwise))
PYTHON
"$folder/venv/bin/python" "$folder/scales.py"
