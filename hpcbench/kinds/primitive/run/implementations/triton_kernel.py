"""Implementation ``triton``: a product that starts before all of its left operand is there.

Chunks of the operand's rows are gathered one after the other; behind each the same stream raises a
flag. The product is one kernel on another stream: a tile waits for the flag of its chunk.

- Programs take tiles in the order of the chunks. As many run as fit beside the communication
  (``programs``), so none waits for a tile that none computes.
- The flag is raised by an atomic with release, behind the chunk on its stream, and read by an
  atomic with acquire (PTX memory model; triton.language.atomic_xchg, atomic_cas): data read after
  it are the chunk's, not earlier ones in a cache. The barrier spreads that over the program.
- Products are IEEE fp32 or of the dtype (never TF32), accumulated in fp32.

Block sizes are usual ones, not tuned. Its arithmetic is tested in Triton's interpreter, with the
flags raised, and the code that Triton compiles is inspected; it has never run on a GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hpcbench.errors import CaseError
from hpcbench.kinds.primitive.plan.implementations import reserved
from hpcbench.kinds.primitive.run import inputs as rank_inputs
from hpcbench.kinds.primitive.run.implementations.base import Implementation
from hpcbench.operations.data import all_gather_tensor

_BLOCK = 128


@dataclass(frozen=True, slots=True)
class KernelLayout:
    """How gathered rows lie: (chunks, ranks, part) rows of chunks, to (ranks, chunks, part) of A.

    ``part`` is the number of rows that each rank has in one chunk."""

    chunks: int
    ranks: int
    part: int


# Triton reads annotations of kernels, too, and takes no other names than its own in them.
@triton.jit
def _raise_flag(flag):  # type: ignore[no-untyped-def]
    tl.atomic_xchg(flag, 1, sem="release", scope="gpu")


@triton.jit  # type: ignore[untyped-decorator]
def multiply_tiles(  # type: ignore[no-untyped-def]
    gathered, weight, output, flags, chunks, ranks, part, columns, inner,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Compute output[row of A, columns] = gathered @ weight, a tile at a time."""
    chunk_rows = ranks * part
    column_tiles = tl.cdiv(columns, BLOCK_N)
    chunk_tiles = tl.cdiv(chunk_rows, BLOCK_M) * column_tiles
    for tile in range(tl.program_id(0), chunks * chunk_tiles, tl.num_programs(0)):
        chunk = tile // chunk_tiles
        while tl.atomic_cas(flags + chunk, 1, 1, sem="acquire", scope="gpu") == 0:
            pass
        tl.debug_barrier()
        own = tile % chunk_tiles
        row = (own // column_tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
        column = (own % column_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
        rows = (chunk * chunk_rows + row).to(tl.int64)[:, None]
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start in range(0, inner, BLOCK_K):
            depth = start + tl.arange(0, BLOCK_K)
            left = tl.load(gathered + rows * inner + depth[None, :],
                           mask=(row[:, None] < chunk_rows) & (depth[None, :] < inner), other=0.0)
            right = tl.load(weight + depth.to(tl.int64)[:, None] * columns + column[None, :],
                            mask=(depth[:, None] < inner) & (column[None, :] < columns), other=0.0)
            total = tl.dot(left, right, total, input_precision="ieee")
        target = ((row // part) * chunks + chunk) * part + row % part
        tl.store(output + target.to(tl.int64)[:, None] * columns + column[None, :],
                 total.to(output.dtype.element_ty),
                 mask=(row[:, None] < chunk_rows) & (column[None, :] < columns))


def raise_flag(flag: torch.Tensor) -> None:
    """Set an int32 flag on the current stream, behind all that it has been given."""
    _raise_flag[(1,)](flag)


def multiply(
    gathered: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, flags: torch.Tensor,
    layout: KernelLayout, programs: int,
) -> None:
    """Multiply gathered rows (m, k) by ``weight`` (k, n) into ``output`` (m, n), as they arrive.

    All are contiguous and of one dtype: fp32, fp16 or bf16. ``gathered`` and ``output`` are in the
    order of ``layout``; ``flags`` are int32, one a chunk, 1 where the chunk is there. ``programs``
    is the most that may run concurrently."""
    inner, columns = weight.shape
    depth = 32 if weight.element_size() == 4 else 64
    rows = layout.ranks * layout.part
    tiles = layout.chunks * triton.cdiv(rows, _BLOCK) * triton.cdiv(columns, _BLOCK)
    multiply_tiles[(min(programs, tiles),)](
        gathered, weight, output, flags, layout.chunks, layout.ranks, layout.part, columns, inner,
        BLOCK_M=_BLOCK, BLOCK_N=_BLOCK, BLOCK_K=depth, num_warps=8, num_stages=3)


class Columnwise(Implementation[rank_inputs.ColumnwiseInputs]):
    """All-gather in chunks, under the product of those that are there.

    All collectives are given to a stream of their own before the kernel is started. So a waiting
    kernel never stands in front of what it waits for, whatever queues the GPU has. The kernel also
    leaves them room: it takes all multiprocessors but those `reserved`."""

    def __init__(self, inputs: rank_inputs.ColumnwiseInputs) -> None:
        """Compile both kernels, by one untimed call. Raises CaseError if the GPU is too small.

        The plan's variables make that a skip; this process may have others."""
        super().__init__(inputs)
        chunks, device = int(inputs.spec.option("chunks")), inputs.place.device
        count = torch.cuda.get_device_properties(device).multi_processor_count
        left = reserved(os.environ)
        if count <= left:
            raise CaseError(f"the GPU has {count} multiprocessors; {left} are left to the "
                            "communication, so more are needed")
        self._programs = count - left
        self._layout = KernelLayout(chunks, self.ranks, inputs.spec.m // self.ranks // chunks)
        self._gathered = self.empty(inputs.spec.m, inputs.spec.k)
        self.output = self.empty(inputs.spec.m, inputs.weight.shape[1])
        flags = torch.zeros(chunks, dtype=torch.int32, device=device)
        self._flags = flags
        self._steps = list(zip(self._gathered.chunk(chunks), inputs.rows.chunk(chunks),
                               flags.split(1), strict=True))
        self._stream = torch.cuda.Stream(device)
        self.run()

    def run(self) -> None:
        """Give out all chunks' gathering, then the product that waits for them."""
        current = torch.cuda.current_stream(self.inputs.place.device)
        self._flags.zero_()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for gathered, own, flag in self._steps:
                all_gather_tensor(gathered, own, group=self.group)
                raise_flag(flag)
        multiply(self._gathered, self.inputs.weight, self.output, self._flags, self._layout,
                 self._programs)
        current.wait_stream(self._stream)
