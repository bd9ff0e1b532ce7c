"""Run the Triton kernel in Triton's interpreter on the CPU; started by test_triton_kernel.py.

TRITON_INTERPRET must be set before triton is imported, so this is a process of its own. Prints a
JSON list: of each problem whether the product is what torch says. No bf16: the interpreter keeps it
as uint16, and its dot multiplies those.
"""

from __future__ import annotations

import json

import torch

from hpcbench.kinds.primitive.run.implementations.triton_kernel import (
    KernelLayout,
    multiply,
    raise_flag,
)

PROBLEMS = [
    # chunks, ranks, part, k, n, dtype, programs
    (1, 1, 128, 32, 128, torch.float32, 1),  # exactly one tile
    (2, 2, 5, 7, 3, torch.float32, 3),  # smaller than a tile, more programs than one tile needs
    (3, 2, 70, 40, 130, torch.float32, 2),  # several tiles, none of them full
    (2, 4, 33, 65, 20, torch.float16, 64),  # more programs than tiles
    (2, 2, 16, 70, 140, torch.float16, 1),
]


def integers(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Return -1, 0 and 1: their products have few bits, exact in fp16, too."""
    return torch.randint(-1, 2, shape, generator=generator).float()


def main() -> None:
    generator = torch.Generator().manual_seed(1)
    right = []
    for chunks, ranks, part, k, n, dtype, programs in PROBLEMS:
        a = integers(generator, ranks * chunks * part, k).to(dtype)
        weight = integers(generator, k, n).to(dtype)
        gathered = a.view(ranks, chunks, part, k).transpose(0, 1).reshape(-1, k)
        output = torch.full((len(a), n), float("nan"), dtype=dtype)
        flags = torch.zeros(chunks, dtype=torch.int32)
        for flag in flags.split(1):
            raise_flag(flag)
        multiply(gathered, weight, output, flags, KernelLayout(chunks, ranks, part), programs)
        expected = (a.double() @ weight.double()).to(dtype)
        right.append(bool(flags.all()) and torch.equal(output, expected))
    print(json.dumps(right))


if __name__ == "__main__":
    main()
