"""torchtitan's Llama 3 with the weights of hpcbench's, under torchtitan's FSDP.

Its Trainer needs a GPU, and its meshes the default group, so its model, ``apply_fsdp_to_decoder``
and loss are called as its ``train_step`` does."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
from torchtitan.distributed.utils import set_spmd_backend
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock

from hpcbench.plugins import DTYPES, Batch, Grid, Model, PhaseClock, Replica

_NAMES = (
    (r"layers\.(\d+)\.", r"blocks.\1."), (r"attention\.qkv_linear\.w([qkv])\.", r"attention.\1."),
    (r"attention\.wo\.", "attention.o."), (r"ffn_norm", "mlp_norm"),
    (r"feed_forward\.w1\.", "mlp.gate."), (r"feed_forward\.w3\.", "mlp.up."),
    (r"feed_forward\.w2\.", "mlp.down."), (r"^tok_embeddings\.", "embedding.tokens."),
    (r"^norm\.", "head.norm."), (r"^lm_head\.", "head.logits."))
"""What torchtitan calls parts of a model, and what hpcbench does."""
_FUSED = "attention.qkv_linear.wqkv.weight"


class Titan(Replica):
    """The step of torchtitan's trainer without clipping, which hpcbench's has not either."""

    uncounted = "torchtitan has groups of their own for embedding and logits"

    def build(self) -> nn.Module:
        """Return torchtitan's model with the weights of the seed."""
        own = super().build()
        set_spmd_backend("partial_dtensor")  # no annotations of tensors
        model = Llama3Model(configuration(own.shape))
        model.load_state_dict(_renamed(own, model))
        return model.to(self.place.device)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Shard it; copies are shards of one rank, as torchtitan makes them."""
        ranks, copies = self.place.world_size, str(self.spec.option("over")) == "data"
        self.grid = Grid(self.place, {"dp_replicate": ranks, "fsdp": 1} if copies else
                         {"fsdp": ranks})
        apply_fsdp_to_decoder(model, self.grid.mesh, param_dtype=DTYPES[self.spec.dtype],
                              reduce_dtype=torch.float32, pp_enabled=False)
        if self.place.device.type == "cpu":  # gloo has no sums of multiples, not even by 1
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)
        return model

    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        """Return the mean loss of this rank, and leave gradients of the mean of all."""
        tokens, targets = batch
        loss = cross_entropy_loss(self.model(tokens), targets) / (
            targets.numel() * self.place.world_size)
        phases.end("forward")
        loss.backward()
        phases.end("backward")
        return loss.detach() * self.place.world_size

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Return them as hpcbench has them."""
        return self._as_ours(super().full_gradients())

    def full_weights(self) -> dict[str, torch.Tensor]:
        """Return them as hpcbench has them."""
        return self._as_ours(super().full_weights())

    def _as_ours(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        work, named = self.spec, {}
        for name, value in found.items():
            if not name.endswith(_FUSED):
                named[_our_name(name)] = value
                continue
            block = _our_name(name.removesuffix(_FUSED))
            grouped = value.view(work.kv_heads, -1, work.hidden // work.heads, work.hidden)
            for part, kind in zip((grouped[:, :-2], grouped[:, -2], grouped[:, -1]), "qkv",
                                  strict=True):
                whole = part.reshape(-1, work.hidden)
                named[f"{block}attention.{kind}.weight"] = whole if kind == "v" else _in_halves(
                    whole, work.hidden // work.heads)
        return named


def configuration(shape: Any) -> Llama3Model.Config:
    """Return torchtitan's configuration of these extents, with its fused queries, keys, values.

    Its published models have FlexAttention, which has no backward pass on CPUs."""
    rope = ComplexRoPE.Config(dim=shape.head_dim, max_seq_len=shape.seq_length,
                              theta=shape.rotary_base)
    if shape.rotary_scaling:
        rope.scaling = "llama"
        (rope.scaling_factor, rope.low_freq_factor, rope.high_freq_factor,
         rope.original_max_position_embeddings) = shape.rotary_scaling
    norm = RMSNorm.Config(normalized_shape=shape.hidden, eps=shape.norm_eps or shape.built.eps)
    none: dict[str, Any] = {}  # weights are loaded
    block = Llama3TransformerBlock.Config(
        attention_norm=norm, ffn_norm=norm, attention=make_gqa_config(
            dim=shape.hidden, n_heads=shape.heads, n_kv_heads=shape.kv_heads, wqkv_param_init=none,
            wo_param_init=none, inner_attention=ScaledDotProductAttention.Config(), fuse_qkv=True,
            rope=rope),
        feed_forward=make_ffn_config(dim=shape.hidden, hidden_dim=shape.inner, w1_param_init=none,
                                     w2w3_param_init=none))
    return Llama3Model.Config(
        dim=shape.hidden, vocab_size=shape.vocab, enable_weight_tying=shape.tied, norm=norm,
        tok_embeddings=Embedding.Config(num_embeddings=shape.vocab, embedding_dim=shape.hidden),
        lm_head=Linear.Config(in_features=shape.hidden, out_features=shape.vocab),
        layers=[block] * shape.layers)


def _our_name(name: str) -> str:
    for theirs, ours in _NAMES:
        name = re.sub(theirs, ours, name)
    return name


def _renamed(own: Model, model: nn.Module) -> dict[str, torch.Tensor]:
    """Return our weights by torchtitan's names, which loading fuses."""
    ours, head_dim = own.state_dict(), own.shape.head_dim
    renamed = {name: ours[_our_name(name)] for name in model.state_dict()}
    return {name: _in_pairs(value, head_dim) if re.search(r"\.w[qk]\.", name) else value
            for name, value in renamed.items()}


def _in_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Return rows of queries or keys so that elements that turn together are neighbours."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def _in_halves(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Return the rows as hpcbench has them: an element turns with that half a head away."""
    return weight.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)
