"""The same models as library ``transformers`` has them, with random weights: nothing is loaded.

Only configurations are made here, with the published extents or others. The blocks' dropout is 0
and attention is torch's ``scaled_dot_product_attention``. Mistral's window of 4096 tokens is left
out: up to that length it is the causal attention, for which torch needs no mask."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

from hpcbench.kinds.training.run.models.model import Model, Part, of_transformer
from hpcbench.operations.models import ModelShape


class _Recipe(NamedTuple):
    """A class, what makes its configuration, and where its blocks and other parts are."""

    kind: type[nn.Module]
    configuration: Callable[[ModelShape], Any]
    before: tuple[str, ...]
    blocks: str
    behind: tuple[str, ...]


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


_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _scaling(shape: ModelShape) -> dict[str, Any]:
    if shape.yarn:
        return {"rope_type": "yarn", **asdict(shape.yarn)}
    if shape.rotary_scaling:
        return {"rope_type": "llama3", **dict(zip(_SCALING, shape.rotary_scaling, strict=True))}
    return {"rope_type": "default"}


def _rotary(shape: ModelShape, kind: type[Any], **more: Any) -> Any:
    return kind(
        vocab_size=shape.vocab, max_position_embeddings=shape.seq_length,
        hidden_size=shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.inner, rms_norm_eps=shape.norm_eps or shape.built.eps,
        tie_word_embeddings=shape.tied, head_dim=shape.head_dim,
        hidden_act=_ACTIVATIONS[shape.activation or shape.built.activation],
        rope_parameters={**_scaling(shape), "rope_theta": shape.rotary_base},
        bos_token_id=None, eos_token_id=None, attn_implementation="sdpa", **more)


def _of_rotary(kind: type[nn.Module], configuration: type[Any], **more: Any) -> _Recipe:
    return _Recipe(kind, partial(_rotary, kind=configuration, **more), ("model.embed_tokens",),
                   "model.layers", ("model.norm", "model.rotary_emb", "lm_head"))


_RECIPES: Mapping[str, _Recipe] = MappingProxyType({
    "gpt": _Recipe(transformers.GPT2LMHeadModel, _gpt, ("transformer.wte", "transformer.wpe"),
                   "transformer.h", ("transformer.ln_f", "lm_head")),
    "bert": _Recipe(transformers.BertForMaskedLM, _bert, ("bert.embeddings",),
                    "bert.encoder.layer", ("cls",)),
    "mistral": _of_rotary(
        transformers.MistralForCausalLM, transformers.MistralConfig, sliding_window=None),
    "qwen2": _of_rotary(transformers.Qwen2ForCausalLM, transformers.Qwen2Config),
    "qwen3": _of_rotary(transformers.Qwen3ForCausalLM, transformers.Qwen3Config),
    "llama": _of_rotary(transformers.LlamaForCausalLM, transformers.LlamaConfig),
})


def _recipe_name(shape: ModelShape, name: str) -> str:
    """Return whose class a model is of: Mistral's, Qwen2's and Qwen3's are others than Llama's."""
    of_its_own = {"mistral": name.startswith("mistral"), "qwen2": shape.qkv_biased,
                  "qwen3": shape.qk_norm}
    return next((kind for kind, is_it in of_its_own.items() if is_it), shape.family)


_NAME = "library"  # what the names of all parameters begin with: that of the attribute below
_INTO_RESIDUAL = re.compile(r"library\..*\.(c_proj|o_proj|down_proj|output\.dense)\.weight")


class LibraryModel(Model):
    """A model of the library; its names are the library's, behind ``library.``."""

    def __init__(self, shape: ModelShape, name: str) -> None:
        super().__init__()
        self._recipe = _RECIPES[_recipe_name(shape, name)]
        self.shape = shape
        self.library = self._recipe.kind(self._recipe.configuration(shape)).train()

    def parts(self) -> Iterator[Part]:
        recipe = self._recipe
        yield from map(self._end, recipe.before)
        for number, block in enumerate(self.library.get_submodule(recipe.blocks)):
            yield Part(f"{_NAME}.{recipe.blocks}.{number}.", block, number)
        yield from map(self._end, recipe.behind)

    def _end(self, name: str) -> Part:
        return Part(f"{_NAME}.{name}.", self.library.get_submodule(name), None)

    def initial(
        self, name: str, extents: tuple[int, ...], seed: int, device: torch.device,
    ) -> torch.Tensor:
        return of_transformer(name, extents, seed, device, self.shape.layers, _INTO_RESIDUAL)

    def complete(self, device: torch.device) -> None:
        if self.shape.tied:
            head = self.library.get_output_embeddings()
            head.weight = self.library.get_input_embeddings().weight
        if self.shape.family == "bert":
            predictions, embeddings = self.library.cls.predictions, self.library.bert.embeddings
            predictions.decoder.bias = predictions.bias
            positions = torch.arange(self.shape.seq_length, device=device)[None]
            embeddings.position_ids = positions
            embeddings.token_type_ids = torch.zeros_like(positions)
        elif self.shape.family == "llama":
            rotary = type(self.library.model.rotary_emb)
            self.library.model.rotary_emb = rotary(self.library.config).to(device)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.library(input_ids=tokens, use_cache=False).logits
