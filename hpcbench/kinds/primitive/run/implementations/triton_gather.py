"""Implementation ``triton``: one kernel multiplies chunks of the all-gather as they arrive.

All collectives are given to a stream of their own before the kernel is started. So a waiting kernel
never stands in front of what it waits for, whatever queues the GPU has. The kernel also leaves
them room: it takes all but `RESERVED` multiprocessors. It has never run on a GPU so far.
"""

from __future__ import annotations

import torch

from hpcbench.errors import CaseError
from hpcbench.kinds.primitive.run import inputs as given
from hpcbench.kinds.primitive.run.implementations.base import Implementation
from hpcbench.kinds.primitive.run.implementations.triton_kernel import (
    Layout,
    multiply,
    raise_flag,
)
from hpcbench.operations.torch_calls import all_gather_tensor

RESERVED = 32
"""Multiprocessors left to communication: NCCL's largest number of blocks (NCCL_MAX_CTAS)."""


class Columnwise(Implementation[given.Columnwise]):
    """All-gather in chunks, under the product of those that are there."""

    def __init__(self, inputs: given.Columnwise) -> None:
        """Compile both kernels, by one untimed call. Raises CaseError if the GPU is too small."""
        super().__init__(inputs)
        chunks, device = int(inputs.spec.option("chunks")), inputs.place.device
        count = torch.cuda.get_device_properties(device).multi_processor_count
        if count <= RESERVED:
            raise CaseError(f"the GPU has {count} multiprocessors; {RESERVED} are left to the "
                            "communication, so more are needed")
        self._programs = count - RESERVED
        self._layout = Layout(chunks, self.ranks, inputs.spec.m // self.ranks // chunks)
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
