"""Weights in 4 bits: bitsandbytes' NF4 with quantised scales, as in QLoRA.

Dettmers et al., QLoRA, arXiv:2305.14314 (2023), section 3: 64 weights share a scale of 8 bits, and
256 scales an fp32 scale, after their mean was taken off."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from bitsandbytes.functional import QuantState, quantize_4bit
from bitsandbytes.nn import Linear4bit, Params4bit
from torch import nn

from hpcbench.kinds.training.plan.models import NF4_BLOCK, NF4_SCALE_BLOCK, of_block_product


class ShapedLinear(Linear4bit):  # type: ignore[misc]
    """A product of a dry run: its weight is a plain parameter, since none in 4 bits can be fake."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.quant_state = self.quant_state  # which bitsandbytes reads
        return super().forward(x)


def make_packed(model: nn.Module, dtype: torch.dtype) -> None:
    products = [name for name, module in model.named_modules()
                if isinstance(module, nn.Linear) and of_block_product(f"{name}.weight")]
    for name in products:
        old = model.get_submodule(name)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, Linear4bit(
            old.in_features, old.out_features, bias=old.bias is not None, compute_dtype=dtype,
            quant_type="nf4", quant_storage=torch.uint8, device="meta"))
    model.is_loaded_in_4bit = True  # by this peft knows that products may be such ones


def quantised(value: torch.Tensor) -> tuple[torch.Tensor, QuantState]:
    """Return a weight in 4 bits, uint8 (elements / 2, 1), and its scales."""
    if hasattr(value, "fake_mode"):
        return _shaped(value)
    packed, state = quantize_4bit(value, blocksize=NF4_BLOCK, compress_statistics=True,
                                  quant_type="nf4", quant_storage=torch.uint8)
    return packed, state


def _shaped(value: torch.Tensor) -> tuple[torch.Tensor, QuantState]:
    count = value.numel()
    blocks = -(-count // NF4_BLOCK)

    def made(*extents: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(extents, dtype=dtype, device=value.device)

    nested = QuantState(absmax=made(-(-blocks // NF4_SCALE_BLOCK)), code=made(256),
                        blocksize=NF4_SCALE_BLOCK, dtype=torch.float32)
    return made(-(-count // 2), 1, dtype=torch.uint8), QuantState(
        absmax=made(blocks, dtype=torch.uint8), shape=value.shape, code=made(16),
        blocksize=NF4_BLOCK, quant_type="nf4", dtype=value.dtype, offset=made(), state2=nested)


def pack(module: nn.Module, value: torch.Tensor) -> None:
    packed, state = quantised(value)
    module.quant_state = state
    if hasattr(packed, "fake_mode"):
        module.__class__ = ShapedLinear
        module.weight = nn.Parameter(packed, requires_grad=False)
        return
    module.weight = Params4bit(
        packed, requires_grad=False, quant_state=state, blocksize=NF4_BLOCK, quant_type="nf4",
        quant_storage=torch.uint8, module=module, bnb_quantized=True)


def scales(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield all tensors of the scales: they are no parameters, and on every rank whole."""
    for module in model.modules():
        state = getattr(module, "quant_state", None)
        if isinstance(module, Linear4bit) and state is not None:
            yield from (state.absmax, state.code, state.offset, state.state2.absmax,
                        state.state2.code)


def unpacked(packed: torch.Tensor, state: QuantState) -> torch.Tensor:
    """Return the weight (outputs, inputs), fp64, by the definition; bitsandbytes gives the tables
    only.

    The first of two weights in a byte is the high half."""
    pairs = packed.flatten().to(torch.int64)
    levels = torch.stack((pairs >> 4, pairs & 15), dim=1).flatten()
    nested = state.state2.absmax.double().repeat_interleave(NF4_SCALE_BLOCK)
    scale = (state.state2.code.double()[state.absmax.to(torch.int64)]
             * nested[:state.absmax.numel()] + state.offset.double())
    whole = scale.repeat_interleave(NF4_BLOCK)
    count = state.shape.numel()
    return (state.code.double()[levels[:count]] * whole[:count]).view(state.shape)
