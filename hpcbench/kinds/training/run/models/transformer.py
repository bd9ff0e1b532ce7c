"""The transformer that is trained: whole, or the part of it that one pipeline stage has.

Parameters have the same names in every layout, and no dropout makes a step random. Each product
with a weight is a layer of its own, so tensor parallelism can divide it by name; the number of
heads is read off the activation, which may be of some of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hpcbench.kinds.training.plan.models import (
    attention_products,
    document_lengths,
    has_experts,
)
from hpcbench.kinds.training.plan.step import LOSS_CHUNKS
from hpcbench.kinds.training.run.models.experts import MixtureOfExperts
from hpcbench.kinds.training.run.models.model import Model, of_transformer
from hpcbench.operations.models import LatentAttention, ModelShape


class RotaryEmbedding:
    """Cosines and sines of rotary positions, (positions, turned extent / 2) fp32 (Su et al.,
    arXiv:2104.09864).

    Computed in each forward pass; no tuple, since FSDP casts tensors in a block's arguments."""

    def __init__(self, shape: ModelShape, places: torch.Tensor) -> None:
        """``places`` (positions,) are those of the tokens."""
        pairs = torch.arange(0, shape.turned, 2, dtype=torch.float32, device=places.device)
        position = places.to(torch.float32)
        turns = torch.pow(shape.rotary_base, -pairs / shape.turned)
        angles = position[:, None] * _scaled(turns, shape)
        factor = shape.yarn.attention_factor if shape.yarn else 1.0
        self.cos = angles.cos() * factor
        self.sin = angles.sin() * factor
        self._neighbours = shape.latent is not None

    def turn(self, heads: torch.Tensor) -> torch.Tensor:
        """Return queries or keys (..., positions, extent) turned, in at least fp32.

        Element i pairs with element i + extent / 2, as in Hugging Face's weights of Mistral and
        Llama; in those of DeepSeek with its neighbour, and comes out in the order of the others.
        """
        length = heads.shape[-2]
        cos, sin = self.cos[:length], self.sin[:length]
        wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
        left, right = wide.unflatten(-1, (-1, 2)).unbind(-1) if self._neighbours else wide.chunk(
            2, dim=-1)
        turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
        return turned.to(heads.dtype)


def _scaled(turns: torch.Tensor, shape: ModelShape) -> torch.Tensor:
    """Return angles of one position, (extent / 2), slower where a turn is longer than the
    positions that a model was first trained with: as Llama 3.1's published code or YaRN's has
    them."""
    if shape.yarn:
        low, high = (shape.turned / 2 * math.log(
            shape.yarn.original_max_position_embeddings / (2 * math.pi * times)) / math.log(
                shape.rotary_base) for times in (shape.yarn.beta_fast, shape.yarn.beta_slow))
        first, last = max(math.floor(low), 0), min(math.ceil(high), shape.turned - 1)
        share = (torch.arange(len(turns), device=turns.device) - first) / (last - first or 1)
        return torch.lerp(turns, turns / shape.yarn.factor, share.clamp(0, 1))
    if shape.rotary_scaling is None:
        return turns
    factor, low, high, original = shape.rotary_scaling
    share = (original * turns / (2 * math.pi) - low) / (high - low)
    return torch.lerp(turns / factor, turns, share.clamp(0, 1))


ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType({
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh")})


class HeadNorm(nn.RMSNorm):  # type: ignore[misc]
    """The norm of each head's queries or keys, in the dtype of its weight, as torch wants it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float | None = None,
) -> torch.Tensor:
    """Return what heads (samples, heads, tokens, head_dim) mix; keys and values may have fewer.

    ``scale`` of scores; None: 1 / sqrt(head_dim)."""
    # The option is absent from torch 2.4, which can still run models with one key per query.
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, **grouped)


def within_documents(
    lengths: tuple[int, ...], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: Any,
) -> torch.Tensor:
    """Return the same of documents of these lengths, one after another: no mask of all pairs."""
    parts = zip(*(heads.split(lengths, dim=2) for heads in (q, k, v)), strict=True)
    return torch.cat([attention(*part, **how) for part in parts], dim=2)


def _attend(shape: ModelShape) -> Callable[..., torch.Tensor]:
    return attention if shape.documents == 1 else partial(
        within_documents, document_lengths(shape.seq_length, shape.documents))


class Attention(nn.Module):  # type: ignore[misc]
    """Attention of queries over groups of keys and values, causal in decoders."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.causal = shape.causal
        self.attend = _attend(shape)  # another one where ranks share the tokens of a sample
        biased = shape.biased or shape.qkv_biased
        self.q = nn.Linear(shape.hidden, shape.q_hidden, bias=biased)
        self.k = nn.Linear(shape.hidden, shape.kv_hidden, bias=biased)
        self.v = nn.Linear(shape.hidden, shape.kv_hidden, bias=biased)
        self.o = nn.Linear(shape.q_hidden, shape.hidden, bias=shape.biased)
        self.q_norm, self.k_norm = (
            HeadNorm(shape.head_dim, eps=norm_eps(shape)) if shape.qk_norm else None
            for _ in range(2))

    def forward(self, x: torch.Tensor, rotation: RotaryEmbedding | None) -> torch.Tensor:
        q, k, v = self._heads(self.q(x)), self._heads(self.k(x)), self._heads(self.v(x))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            q, k = rotation.turn(q), rotation.turn(k)
        mixed = self.attend(q, k, v, causal=self.causal)
        return self.o(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


_LATENT_EPS = 1e-6  # of norms of latents, whatever that of the others is


class AttentionOfLatents(nn.Module):  # type: ignore[misc]
    """Causal attention of `LatentAttention`; training computes keys and values in full."""

    def __init__(self, shape: ModelShape, latent: LatentAttention) -> None:
        super().__init__()
        self.latent = latent
        self.attend = _attend(shape)
        for name, outputs, inputs in attention_products(shape):
            setattr(self, name.removeprefix("attention."), nn.Linear(inputs, outputs, bias=False))
        self.q_norm = HeadNorm(latent.query_rank, eps=_LATENT_EPS) if latent.query_rank else None
        self.kv_norm = HeadNorm(latent.rank, eps=_LATENT_EPS)
        self.scale = shape.yarn and (
            shape.yarn.mscale(shape.yarn.mscale_all_dim) ** 2 / math.sqrt(latent.keyed))

    def forward(self, x: torch.Tensor, rotation: RotaryEmbedding) -> torch.Tensor:
        plain, rotary, value = self.latent.plain, self.latent.rotary, self.latent.value
        q = self.q(x) if self.q_norm is None else self.q_up(self.q_norm(self.q_down(x)))
        latent, of_all = self.kv_down(x).split([self.latent.rank, rotary], -1)
        q_plain, turned = self._heads(q, plain, rotary)
        k_plain, v = self._heads(self.kv_up(self.kv_norm(latent)), plain, value)
        of_each = rotation.turn(of_all[:, None]).expand(-1, k_plain.shape[1], -1, -1)
        mixed = self.attend(torch.cat((q_plain, rotation.turn(turned)), -1),
                            torch.cat((k_plain, of_each), -1), v, causal=True, scale=self.scale)
        return self.o(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: torch.Tensor, *parts: int) -> Any:
        return x.unflatten(-1, (-1, sum(parts))).transpose(1, 2).split(parts, -1)


class FeedForward(nn.Module):  # type: ignore[misc]
    """Up, GELU, down. GPT-2 has the approximation by tanh, BERT the function itself.

    With a ``gate``, SwiGLU, or GELU in its place: Shazeer, GLU Variants Improve Transformer,
    arXiv:2002.05202 (2020)."""

    def __init__(self, shape: ModelShape, inner: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[shape.activation or shape.built.activation]
        self.gate = nn.Linear(shape.hidden, inner, bias=shape.biased) if shape.gated else None
        self.up = nn.Linear(shape.hidden, inner, bias=shape.biased)
        self.down = nn.Linear(inner, shape.hidden, bias=shape.biased)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is not None:
            return self.down(self.activation(self.gate(x)) * self.up(x))
        return self.down(self.activation(self.up(x)))


def make_mlp(shape: ModelShape, block: int) -> nn.Module:
    if not (shape.experts and has_experts(shape, block)):
        return FeedForward(shape, shape.inner)
    shared = shape.experts.shared_inner
    return MixtureOfExperts(shape, shape.experts, FeedForward(shape, shared) if shared else None)


def norm_eps(shape: ModelShape) -> float:
    return shape.norm_eps or shape.built.eps


def make_norm(shape: ModelShape) -> nn.Module:
    kind = nn.RMSNorm if shape.family == "llama" else nn.LayerNorm
    return kind(shape.hidden, eps=norm_eps(shape))


class TransformerBlock(nn.Module):  # type: ignore[misc]
    """Attention and MLP, each added to its input. Norms stand before each, or in BERT after each
    sum."""

    def __init__(self, shape: ModelShape, number: int) -> None:
        super().__init__()
        self.norms_first = shape.family != "bert"
        self.attention_norm = make_norm(shape)
        self.attention = (AttentionOfLatents(shape, shape.latent) if shape.latent else
                          Attention(shape))
        self.mlp_norm = make_norm(shape)
        self.mlp = make_mlp(shape, number)

    def forward(self, x: torch.Tensor, rotation: RotaryEmbedding | None) -> torch.Tensor:
        if self.norms_first:
            x = x + self.attention(self.attention_norm(x), rotation)
            return x + self.mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self.attention(x, rotation))
        return self.mlp_norm(x + self.mlp(x))


TIED = ("head.logits.weight", "embedding.tokens.weight")
"""The weight of the logits, and the one that it is where they are tied."""
_INTO_RESIDUAL = re.compile(
    r"blocks\.\d+\.((attention\.o|mlp\.(shared\.)?down)\.weight|mlp\.experts\.down)")


def plain_name(shape: ModelShape, name: str) -> str:
    """Return the name of a stage's parameter in the whole model: tied ones have one name."""
    return TIED[1] if shape.tied and name == TIED[0] else name


class Embedding(nn.Module):  # type: ignore[misc]
    """Tokens, learned positions (not in llama), and in BERT the kind of sentence and a norm."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        learned, bert = shape.built.positions == "learned", shape.family == "bert"
        self.scale = math.sqrt(shape.hidden) if shape.embedding_scaled else None
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.seq_length, shape.hidden) if learned else None
        self.types = nn.Embedding(2, shape.hidden) if bert else None
        self.norm = make_norm(shape) if bert else None

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        if self.scale is not None:
            x = x * self.scale
        if self.positions is not None:
            x = x + self.positions(places[:tokens.shape[-1]])
        if self.types is not None:  # All are of the first kind: samples are one sentence.
            x = x + self.types(torch.zeros_like(tokens[0]))
        return x if self.norm is None else self.norm(x)


class TokenHead(nn.Module):  # type: ignore[misc]
    """The last norm and the logits; in BERT a product and GELU before, and a bias of the logits."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        bert = shape.family == "bert"
        self.transform = nn.Linear(shape.hidden, shape.hidden) if bert else None
        self.norm = make_norm(shape)
        self.logits = nn.Linear(shape.hidden, shape.vocab, bias=bert)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self._normed(x))

    def chunked_loss(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy, fp32, of targets, of logits of one part of the tokens at a
        time."""
        rows, wanted = self._normed(x).flatten(0, -2), targets.flatten()
        parts = min(LOSS_CHUNKS, len(wanted))
        sums = [checkpoint(self._loss_sum, *part, use_reentrant=False, preserve_rng_state=False)
                for part in zip(rows.tensor_split(parts), wanted.tensor_split(parts), strict=True)]
        return torch.stack(sums).sum() / len(wanted)

    def fused_loss(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the same by torch's operator, which keeps gradients in place of logits.

        Autocast does not know it. A sum's gradients, unlike a mean's, are not too small for fp16.
        """
        rows, wanted = self._normed(x).flatten(0, -2), targets.flatten()
        device, weight, bias = rows.device.type, self.logits.weight, self.logits.bias
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            rows, weight = rows.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        total = F.linear_cross_entropy(rows, weight, wanted, linear_bias=bias, reduction="sum",
                                       options=nn.LinearCrossEntropyOptions())
        return total.float() / len(wanted)

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        if self.transform is not None:
            x = F.gelu(self.transform(x))
        return self.norm(x)

    def _loss_sum(self, rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        logits = self.logits(rows)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(wide, wanted, reduction="sum")


class Transformer(Model):
    """A model, or the stage of it that has ``blocks``, numbered as in the whole model.

    Takes tokens (samples, tokens) int64 or hidden states (samples, tokens, hidden), returns logits
    (samples, tokens, vocab) or hidden states. Children: ``embedding``, ``blocks`` by number,
    ``head``; parts that a stage lacks are None. A tied weight is ``embedding.tokens.weight`` where
    a stage has both ends; a last stage alone has ``head.logits.weight``, whose gradient is added to
    the first stage's.

    ``places``: positions (tokens,) int64 of the tokens that it gets; None: from 0 on, in each
    document anew."""

    def __init__(
        self, shape: ModelShape, blocks: range | None = None, *, fused: bool = False,
    ) -> None:
        """``fused``: the loss is that of one operator with the product before it."""
        super().__init__()
        self._fused = fused
        blocks = range(shape.layers) if blocks is None else blocks
        self.shape = shape
        self.places: torch.Tensor | None = None
        self.embedding = Embedding(shape) if blocks.start == 0 else None
        self.blocks = nn.ModuleDict({
            str(number): TransformerBlock(shape, number) for number in blocks})
        self.head = TokenHead(shape) if blocks.stop == shape.layers else None
        self.complete()

    def complete(self, device: torch.device | None = None) -> None:
        if self.shape.tied and self.embedding is not None and self.head is not None:
            self.head.logits.weight = self.embedding.tokens.weight

    def initial(
        self, name: str, extents: tuple[int, ...], seed: int, device: torch.device,
    ) -> torch.Tensor:
        name = plain_name(self.shape, name)
        return of_transformer(name, extents, seed, device, self.shape.layers, _INTO_RESIDUAL)

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Return logits or hidden states; with ``targets`` (samples, tokens) their mean loss, in
        parts."""
        places = torch.cat([torch.arange(length, device=x.device) for length in document_lengths(
            self.shape.seq_length, self.shape.documents)]) if self.places is None else self.places
        rotation = (RotaryEmbedding(self.shape, places)
                    if self.shape.built.positions == "rotary" else None)
        if self.embedding is not None:
            x = self.embedding(x, places)
        for block in self.blocks.values():
            x = block(x, rotation)
        if self.head is None:
            return x
        if targets is None:
            return self.head(x)
        loss = self.head.fused_loss if self._fused else self.head.chunked_loss
        return loss(x, targets)
