"""The blocks of a transformer: attention, the MLP, and where the norms stand.

Each product with a weight is a layer of its own (q, k, v, o, gate, up, down). So tensor
parallelism can divide it by name. Parts read their number of heads from the activation: on a rank
that has some of the heads nothing else changes.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hpcbench.operations.models import ModelShape


class Rotation:
    """Rotary positions: cosines and sines of their angles, (positions, head_dim / 2) fp32.

    Su et al., RoFormer, arXiv:2104.09864 (2021).

    They are computed in each forward pass of a model and handed to its blocks: next to nothing
    beside one block, and no buffer to be moved, cast or restored. It is no tuple, since FSDP casts
    the tensors that it finds in the arguments of a block to the dtype of its weights.
    """

    def __init__(self, positions: int, head_dim: int, base: float, device: torch.device) -> None:
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


class Attention(nn.Module):  # type: ignore[misc]
    """Attention of queries over groups of keys and values, causal in decoders."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.causal = shape.causal
        self.grouped = shape.kv_heads != shape.heads
        self.q = nn.Linear(shape.hidden, shape.hidden, bias=shape.biased)
        self.k = nn.Linear(shape.hidden, shape.kv_hidden, bias=shape.biased)
        self.v = nn.Linear(shape.hidden, shape.kv_hidden, bias=shape.biased)
        self.o = nn.Linear(shape.hidden, shape.hidden, bias=shape.biased)

    def forward(self, x: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        """Return (samples, tokens, hidden) of the same."""
        q, k, v = self._heads(self.q(x)), self._heads(self.k(x)), self._heads(self.v(x))
        if rotation is not None:
            q, k = rotation.turn(q), rotation.turn(k)
        # The option is absent from torch 2.4, which can still run models with one key per query.
        grouped = {"enable_gqa": True} if self.grouped else {}
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, **grouped)
        return self.o(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """Return (samples, heads, tokens, head_dim)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class Mlp(nn.Module):  # type: ignore[misc]
    """Up, GELU, down. GPT-2 has the approximation by tanh, BERT the function itself.

    With a ``gate``, SwiGLU: Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202 (2020).
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.approximate = "tanh" if shape.family == "gpt" else "none"
        self.gate = (nn.Linear(shape.hidden, shape.inner, bias=shape.biased) if shape.gated else
                     None)
        self.up = nn.Linear(shape.hidden, shape.inner, bias=shape.biased)
        self.down = nn.Linear(shape.inner, shape.hidden, bias=shape.biased)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (samples, tokens, hidden) of the same."""
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


def make_norm(shape: ModelShape) -> nn.Module:
    """Return the family's norm over hidden states; BERT's epsilon is 1e-12, the others' 1e-5."""
    if shape.family == "llama":
        return nn.RMSNorm(shape.hidden, eps=1e-5)
    return nn.LayerNorm(shape.hidden, eps=1e-12 if shape.family == "bert" else 1e-5)


class Block(nn.Module):  # type: ignore[misc]
    """Attention and MLP, each added to what it was given. Norms stand before each, or in BERT
    after each sum.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.norms_first = shape.family != "bert"
        self.attention_norm = make_norm(shape)
        self.attention = Attention(shape)
        self.mlp_norm = make_norm(shape)
        self.mlp = Mlp(shape)

    def forward(self, x: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        """Return (samples, tokens, hidden) of the same."""
        if self.norms_first:
            x = x + self.attention(self.attention_norm(x), rotation)
            return x + self.mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self.attention(x, rotation))
        return self.mlp_norm(x + self.mlp(x))
