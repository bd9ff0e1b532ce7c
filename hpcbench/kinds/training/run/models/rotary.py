"""Rotary positions: Su et al., RoFormer, arXiv:2104.09864 (2021)."""

from __future__ import annotations

import torch


class Rotation:
    """Cosines and sines of the angles of every position, (positions, head_dim / 2) fp32.

    They are computed in each forward pass of a model and handed to its blocks: next to nothing
    beside one block, and no buffer to be moved, cast or restored. It is no tuple, since FSDP casts
    the tensors that it finds in the arguments of a block to the dtype of its weights.
    """

    def __init__(self, positions: int, head_dim: int, base: float,
                 device: torch.device) -> None:
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
        position = torch.arange(positions, dtype=torch.float32, device=device)
        angles = position[:, None] * torch.pow(base, -pairs / head_dim)
        self.cos = angles.cos()
        self.sin = angles.sin()

    def turn(self, heads: torch.Tensor) -> torch.Tensor:
        """Return queries or keys (..., positions, head_dim) turned by their positions' angles.

        Element i makes a pair with element i + head_dim / 2, as in the weights of Mistral and
        Llama on Hugging Face. The arithmetic is at least fp32.
        """
        length = heads.shape[-2]
        cos, sin = self.cos[:length], self.sin[:length]
        wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
        left, right = wide.chunk(2, dim=-1)
        turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
        return turned.to(heads.dtype)
