"""The same models as library ``transformers`` has them, with random weights: nothing is loaded.

Only configurations are made here, with the published extents or smaller ones. The blocks' dropout
is 0 and attention is torch's ``scaled_dot_product_attention``. Mistral's window of 4096 tokens is
left out: up to that length it is the causal attention, for which torch needs no mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

from hpcbench.plan.training.models import ModelShape
from hpcbench.workloads.training.models.alteration import alter
from hpcbench.workloads.training.models.base import Model


class _Recipe(NamedTuple):
    """A class, what makes its configuration, and where its blocks and other parts are."""

    kind: type[nn.Module]
    configuration: Callable[[ModelShape], Any]
    blocks: str
    ends: tuple[str, ...]


def _gpt(shape: ModelShape) -> Any:
    return transformers.GPT2Config(
        vocab_size=shape.vocab, n_positions=shape.seq_length, n_embd=shape.hidden,
        n_layer=shape.layers, n_head=shape.heads, n_inner=shape.inner, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        attn_implementation="sdpa")


def _bert(shape: ModelShape) -> Any:
    return transformers.BertConfig(
        vocab_size=shape.vocab, max_position_embeddings=shape.seq_length,
        hidden_size=shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, intermediate_size=shape.inner, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, attn_implementation="sdpa")


def _llama(shape: ModelShape) -> Any:
    return transformers.LlamaConfig(**_rotary(shape))


def _mistral(shape: ModelShape) -> Any:
    return transformers.MistralConfig(sliding_window=None, **_rotary(shape))


def _rotary(shape: ModelShape) -> dict[str, Any]:
    return {
        "vocab_size": shape.vocab, "max_position_embeddings": shape.seq_length,
        "hidden_size": shape.hidden, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.inner, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rotary_base},
        "bos_token_id": None, "eos_token_id": None, "attn_implementation": "sdpa"}


_ROTARY_PARTS = "model.layers", ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
_RECIPES: Mapping[str, _Recipe] = MappingProxyType({
    "gpt": _Recipe(transformers.GPT2LMHeadModel, _gpt, "transformer.h",
                   ("transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head")),
    "bert": _Recipe(transformers.BertForMaskedLM, _bert, "bert.encoder.layer",
                    ("bert.embeddings", "cls")),
    "mistral": _Recipe(transformers.MistralForCausalLM, _mistral, *_ROTARY_PARTS),
    "llama": _Recipe(transformers.LlamaForCausalLM, _llama, *_ROTARY_PARTS),
})
_NAME = "library"
"""What the names of all parameters begin with: that of the attribute below."""



class LibraryModel(Model):
    """A model of the library; its names are the library's, behind ``library.``."""

    def __init__(self, shape: ModelShape, name: str, checkpointing: str = "none",
                 compiles: bool = False) -> None:
        """``name`` is the model's: Mistral's class is another than Llama's."""
        super().__init__()
        self._recipe = _RECIPES["mistral" if name.startswith("mistral") else shape.family]
        self.shape = shape
        self.library = self._recipe.kind(self._recipe.configuration(shape)).train()
        # What DDP reads: tables of positions are the same on all ranks, and not to be sent.
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]
        blocks = self.library.get_submodule(self._recipe.blocks)
        alter(dict(enumerate(blocks)), checkpointing, compiles)

    def blocks_by_name(self) -> dict[str, nn.Module]:
        """Return the library's layers."""
        return {f"{_NAME}.{self._recipe.blocks}.{number}.": block for number, block in enumerate(
            self.library.get_submodule(self._recipe.blocks))}

    def ends_by_name(self) -> dict[str, nn.Module]:
        """Return embeddings, norms, the head, and what turns queries and keys."""
        return {f"{_NAME}.{name}.": self.library.get_submodule(name)
                for name in self._recipe.ends}

    def complete(self) -> None:
        """See `Model`: positions and angles are no parameters."""
        if self.shape.tied:
            head = self.library.get_output_embeddings()
            head.weight = self.library.get_input_embeddings().weight
        if self.shape.family == "bert":
            predictions, embeddings = self.library.cls.predictions, self.library.bert.embeddings
            predictions.decoder.bias = predictions.bias
            embeddings.token_type_ids.zero_()
            embeddings.position_ids.copy_(torch.arange(self.shape.seq_length))
        elif self.shape.family == "llama":
            rotary = self.library.model.rotary_emb
            self.library.model.rotary_emb = type(rotary)(self.library.config).to(
                rotary.inv_freq.device)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (samples, tokens, vocab)."""
        return self.library(input_ids=tokens, use_cache=False).logits
