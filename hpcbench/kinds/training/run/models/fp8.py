"""Products of blocks in 8 bits, forward and backward, by torch's scaled product of the device.

Each operand is divided by a scale, made of its own numbers at that moment, which takes its largest
magnitude to the format's largest number (Micikevicius et al., FP8 Formats for Deep Learning,
arXiv:2209.05433). As torchao's recipes ``tensorwise`` (gradients in e5m2, all else in e4m3) and
``rowwise`` (all in e4m3, a scale for each row of what is summed over); its rounding of scales to
powers of 2 is left out. What is kept for backward is not in 8 bits, but in the dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from hpcbench.kinds.training.plan.models import of_block_product
from hpcbench.kinds.training.plan.spec import SCALED_BLOCK
from hpcbench.kinds.training.plan.workload import Training


class Scaled(NamedTuple):
    """Values in 8 bits (rows, terms), and their scales, fp32 (rows, 1) or (1, 1): what they stand
    for is the product of both."""

    values: torch.Tensor
    scale: torch.Tensor


Product = Callable[[Scaled, Scaled, torch.dtype], torch.Tensor]
"""Returns (rows, columns) in a dtype of operands (rows, terms) and (columns, terms)."""


def scaled(operand: torch.Tensor, dtype: torch.dtype, *, by_row: bool, along: int = 1) -> Scaled:
    """Return a matrix whose terms of sums lie ``along`` a dimension, which becomes the last."""
    least, most = (operand.aminmax(dim=along, keepdim=True) if by_row else
                   (one.view(1, 1) for one in operand.aminmax()))
    largest = torch.maximum(most, -least).to(torch.float32)
    scale = (largest / torch.finfo(dtype).max).clamp_min(torch.finfo(torch.float32).tiny)
    values = (operand / scale).to(dtype)
    if along == 1:
        return Scaled(values.contiguous(), scale)
    return Scaled(values.t().contiguous(), scale.view(-1, 1))


def packed(rows: torch.Tensor) -> torch.Tensor:
    """Return rows (rows, values) in 8 bits as bytes (rows, blocks x 132), which any library sends:
    of each block of values these, then its scale."""
    whole = F.pad(rows, (0, -rows.shape[1] % SCALED_BLOCK))
    blocks = scaled(whole.view(-1, SCALED_BLOCK), torch.float8_e4m3fn, by_row=True)
    both = torch.cat([one.view(torch.uint8) for one in blocks], 1)
    return both.view(len(rows), whole.shape[1] // SCALED_BLOCK * both.shape[1])


def unpacked(sent: torch.Tensor, values: int, dtype: torch.dtype) -> torch.Tensor:
    """Return what rows of so many values stand for that were `packed`."""
    blocks = sent.view(-1, SCALED_BLOCK + torch.float32.itemsize)
    scale = blocks[:, SCALED_BLOCK:].contiguous().view(torch.float32)
    whole = blocks[:, :SCALED_BLOCK].view(torch.float8_e4m3fn).to(torch.float32) * scale
    return whole.to(dtype).view(len(sent), -(-values // SCALED_BLOCK) * SCALED_BLOCK)[:, :values]


def multiplied(left: Scaled, right: Scaled, dtype: torch.dtype) -> torch.Tensor:
    scales = [one.scale for one in (left, right)]
    if left.values.device.type == "cpu":  # where torch 2.13 takes 500 times as long for one scale
        scales = [one.scale.expand(len(one.values), 1).contiguous() for one in (left, right)]
    product: torch.Tensor = torch._scaled_mm(
        left.values, right.values.t(), scale_a=scales[0], scale_b=scales[1].t(), out_dtype=dtype)
    return product


def multiplied_in_fp64(left: Scaled, right: Scaled, dtype: torch.dtype) -> torch.Tensor:
    """Return the same by what the values stand for, rounded once."""
    whole, other = (one.values.double() * one.scale.double() for one in (left, right))
    return (whole @ other.t()).to(dtype)


class Multiply(torch.autograd.Function):  # type: ignore[misc]
    """x (rows, inputs) W^T, of W (outputs, inputs); both in the dtype of the result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, by_row: bool,
                product: Product) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.by_row, ctx.product = by_row, product
        left, right = (scaled(one, torch.float8_e4m3fn, by_row=by_row) for one in (x, weight))
        return product(left, right, x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, weight), by_row = ctx.saved_tensors, ctx.by_row
        of_gradients = torch.float8_e4m3fn if by_row else torch.float8_e5m2
        of_x = ctx.product(
            scaled(gradient, of_gradients, by_row=by_row),
            scaled(weight, torch.float8_e4m3fn, by_row=by_row, along=0), x.dtype)
        of_weight = ctx.product(
            scaled(gradient, of_gradients, by_row=by_row, along=0),
            scaled(x, torch.float8_e4m3fn, by_row=by_row, along=0), weight.dtype)
        return of_x, of_weight, None, None


class ScaledLinear(nn.Linear):  # type: ignore[misc]
    """A product in 8 bits, in the dtype of autocast or of its input."""

    by_row = False
    product: Product = staticmethod(multiplied)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        rows = x.flatten(0, -2).to(dtype)
        result = Multiply.apply(rows, self.weight.to(dtype), self.by_row, self.product)
        result = result if self.bias is None else result + self.bias.to(dtype)
        return result.unflatten(0, x.shape[:-1])


class ScaledByRow(ScaledLinear):
    """The same with a scale for each row."""

    by_row = True


def in_8_bits(work: Training, model: nn.Module, product: Product | None = None) -> None:
    """Have the products of a model's blocks be in 8 bits, where the training wants that."""
    kind = ScaledByRow if work.precision.endswith("rowwise") else ScaledLinear
    for name, module in model.named_modules():
        if work.in_8_bits and isinstance(module, nn.Linear) and of_block_product(f"{name}.weight"):
            module.__class__ = kind
            if product is not None:
                module.product = product
