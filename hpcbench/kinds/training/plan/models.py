"""The transformers of trainings: extents, parameters one by one, adapters, and FLOPs of a step.

Low-rank adapters: Hu et al., LoRA, arXiv:2106.09685 (2021), section 4.1: a product x W^T becomes
x W^T + (alpha / rank) (x A^T) B^T. Only A (rank x inputs) and B (outputs x rank) are
trained. Dettmers et al., QLoRA, arXiv:2305.14314 (2023), section 3: W is held in 4 bits (NF4), with
a scale for each block of weights, and the scales are quantised in turn.

FLOPs are work, not time: one multiplication and one addition are 2. Every definition counts 6 for
each token and weight: 2 for forward, 2 for the gradient of weights, 2 for that of activations. It
adds none, half or all of the attention: the products of queries with keys, and of probabilities
with values. An MFU means nothing without the name of its definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import pairwise
from random import Random
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from hpcbench.config.axes import unknown_name
from hpcbench.kinds.training.plan.model_file import EXTENTS, with_architecture
from hpcbench.kinds.training.plan.workload import OFFLOAD, Training
from hpcbench.operations.models import (
    MODELS,
    OWN_LIBRARY,
    Experts,
    ModelShape,
)
from hpcbench.records import dataclass

_UNNAMED = ModelShape("", 0, 0, 0, 0, 0, 0, 0)
"""In place of a shipped model, for one of a file: a training has what it is."""


def shape_of(training: Training) -> ModelShape:
    whole = MODELS.get(training.model, _UNNAMED)
    own = replace(whole, documents=training.documents)
    return replace(with_architecture(own, training.architecture), family=training.family,
                   library=training.library, **{name: getattr(training, name) for name in EXTENTS})


@lru_cache(maxsize=256)
def document_lengths(tokens: int, documents: int) -> tuple[int, ...]:
    """Return the tokens of each document of a sample: cut at places that follow from the two.

    More documents than tokens, which is a skip, are as many as these."""
    cuts = Random(0).sample(range(1, tokens), min(documents, tokens) - 1)
    places = [0, *sorted(cuts), tokens]
    return tuple(end - begin for begin, end in pairwise(places))


@lru_cache(maxsize=256)
def parameters(shape: ModelShape) -> int:
    """Return how many parameters a model has: those of the released weights.

    ``bert-large`` is BERT with the head for masked tokens alone; the release has 1,051,650 more.
    The bias by which DeepSeek-V3 balances its experts is no parameter: no gradient trains it."""
    ends = [*embedding_tensors(shape), *head_tensors(shape)]
    return (sum(item.elements for item in ends)
            + sum(count * sum(item.elements for item in block_tensors(shape, number))
                  for number, count in _kinds(shape)))


def active_parameters(shape: ModelShape) -> int:
    """Return how many of the parameters a token meets: all but those of other tokens' experts."""
    if shape.experts is None:
        return parameters(shape)
    idle = (shape.experts.number - shape.experts.per_token) * expert_weights(shape)
    return parameters(shape) - _kinds(shape)[-1][1] * idle


def _kinds(shape: ModelShape) -> list[tuple[int, int]]:
    """Return one block's number and how many there are, of each kind; those with experts last."""
    dense = min(shape.experts.dense_layers, shape.layers) if shape.experts else 0
    return [(0, dense), (dense, shape.layers - dense)]


def has_experts(shape: ModelShape, block: int) -> bool:
    return shape.experts is not None and block >= shape.experts.dense_layers


def expert_weights(shape: ModelShape) -> int:
    """Return the weights of one routed expert."""
    return 3 * shape.hidden * shape.experts.inner if shape.experts else 0


def mlp_weights(shape: ModelShape) -> int:
    """Return the weights of the MLP of a block without experts."""
    return (3 if shape.gated else 2) * shape.hidden * shape.inner


def block_weights(shape: ModelShape, number: int = 0) -> int:
    """Return the weights of a block's products that a token is multiplied with."""
    attention = sum(outputs * inputs for _, outputs, inputs in attention_products(shape))
    if shape.experts and has_experts(shape, number):
        experts = shape.experts
        return (attention + experts.number * shape.hidden
                + experts.per_token * expert_weights(shape)
                + 3 * shape.hidden * experts.shared_inner)
    return attention + mlp_weights(shape)


CHECKPOINTINGS = ("none", "attention", "operators", "selective", "full", "offload")
"""The parts that backward recomputes: none, attention of all blocks, all but products of all
blocks, every second block (``selective:N``: every N-th), all blocks. ``offload``: none, but what
blocks keep is in the host's memory meanwhile."""
ATTENTION = "attention"
_EVERY = "selective:"


def checkpointing_of(value: object) -> str:
    """Return the name of a way of checkpointing. Raises ValueError."""
    every = value.removeprefix(_EVERY) if isinstance(value, str) else ""
    if every != value and every.isascii() and every.isdigit() and int(every):
        return {1: "full", 2: "selective"}.get(int(every), f"{_EVERY}{int(every)}")
    if value not in CHECKPOINTINGS:
        raise ValueError(unknown_name(value, (*CHECKPOINTINGS, f"{_EVERY}3")))
    return str(value)


def is_recomputed(checkpointing: str, block: int) -> bool:
    """Return whether a part of a block is computed again. Raises KeyError of unknown names."""
    if checkpointing.startswith(_EVERY):
        return block % int(checkpointing.removeprefix(_EVERY)) == 0
    return {"none": False, ATTENTION: True, "selective": block % 2 == 0, "operators": True,
            "full": True, OFFLOAD: False}[checkpointing]


def keeps_products(checkpointing: str) -> bool:
    return checkpointing == "operators"


Counted = TypeVar("Counted")
COLUMNWISE = ("attention.q", "attention.k", "attention.v", "mlp.up", "mlp.gate", "mlp.shared.up",
              "mlp.shared.gate")
"""Products that tensor parallelism divides by their outputs, weight and bias."""
ROWWISE = ("attention.o", "mlp.down", "mlp.shared.down")
"""Products that it divides by their inputs: the weight, not the bias."""
TRANSPOSED = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
"""Products whose weights are (inputs, outputs): those of GPT-2 in library transformers."""


class Tensor(NamedTuple):
    """One parameter: its name in the plain model, its extents, and how it is held."""

    name: str
    extents: tuple[int, ...]
    element_bytes: int = 4
    trained: bool = True

    @property
    def elements(self) -> int:
        return math.prod(self.extents)

    @property
    def held_bytes(self) -> int:
        return self.elements * self.element_bytes


@dataclass(frozen=True, eq=False)
class Parameters:
    """Parameters that are held together; two are the same only if they are one object.

    So counts of them can be cached without a comparison of each tensor."""

    tensors: tuple[Tensor, ...]

    @cached_property
    def trained(self) -> Parameters:
        kept = tuple(item for item in self.tensors if item.trained)
        return self if len(kept) == len(self.tensors) else Parameters(kept)

    @cached_property
    def elements(self) -> int:
        return sum(item.elements for item in self.tensors)

    @cached_property
    def held_bytes(self) -> int:
        return sum(item.held_bytes for item in self.tensors)


def of_each(count: Callable[[Parameters], Counted], groups: Sequence[Parameters]) -> list[Counted]:
    counted = {group: count(group) for group in dict.fromkeys(groups)}
    return [counted[group] for group in groups]


def embedding_tensors(shape: ModelShape) -> list[Tensor]:
    tensors = [Tensor("embedding.tokens.weight", (shape.vocab, shape.hidden))]
    if shape.built.positions == "learned":
        tensors.append(Tensor("embedding.positions.weight", (shape.seq_length, shape.hidden)))
    if shape.family == "bert":
        tensors.append(Tensor("embedding.types.weight", (2, shape.hidden)))
        tensors += _norm(shape, "embedding.norm")
    return tensors


def block_tensors(shape: ModelShape, number: int = 0) -> list[Tensor]:
    parts = _own_block(shape, number) if shape.library == OWN_LIBRARY else _library_block(shape)
    return [part._replace(name=f"blocks.{number}.{part.name}") for part in parts]


def _own_block(shape: ModelShape, number: int = 0) -> list[Tensor]:
    mlp = [*_norm(shape, "mlp_norm")] if shape.built.norms > 1 else []
    if shape.experts and has_experts(shape, number):
        return [*_own_attention(shape), *mlp, *_own_experts(shape, shape.experts)]
    return [*_own_attention(shape), *mlp, *_products(shape, _mlp(shape, "mlp", shape.inner))]


def _own_attention(shape: ModelShape) -> list[Tensor]:
    extents = {"attention.q_norm": shape.head_dim, "attention.k_norm": shape.head_dim} if (
        shape.qk_norm) else {}
    if shape.latent:
        extents |= {"attention.q_norm": shape.latent.query_rank} if shape.latent.query_rank else {}
        extents["attention.kv_norm"] = shape.latent.rank
    return [*_norm(shape, "attention_norm"), *_products(shape, attention_products(shape)),
            *(Tensor(f"{name}.weight", (extent,)) for name, extent in extents.items())]


def attention_products(shape: ModelShape) -> list[tuple[str, int, int]]:
    """Return the products of attention: name, outputs, inputs."""
    if shape.latent is None:
        return [("attention.q", shape.q_hidden, shape.hidden),
                ("attention.k", shape.kv_hidden, shape.hidden),
                ("attention.v", shape.kv_hidden, shape.hidden),
                ("attention.o", shape.hidden, shape.q_hidden)]
    latent, heads = shape.latent, shape.heads
    queries = heads * latent.keyed
    of_queries = [("attention.q_down", latent.query_rank, shape.hidden),
                  ("attention.q_up", queries, latent.query_rank)] if latent.query_rank else [
                      ("attention.q", queries, shape.hidden)]
    return [*of_queries, ("attention.kv_down", latent.rank + latent.rotary, shape.hidden),
            ("attention.kv_up", heads * (latent.plain + latent.value), latent.rank),
            ("attention.o", shape.hidden, heads * latent.value)]


def _mlp(shape: ModelShape, name: str, inner: int) -> list[tuple[str, int, int]]:
    gate = [(f"{name}.gate", inner, shape.hidden)] if shape.gated else []
    return [*gate, (f"{name}.up", inner, shape.hidden), (f"{name}.down", shape.hidden, inner)]


def _own_experts(shape: ModelShape, experts: Experts) -> list[Tensor]:
    """Return the router, all experts' matrices of one kind together, and the shared MLP."""
    shared = _mlp(shape, "mlp.shared", experts.shared_inner) if experts.shared_inner else []
    return [Tensor("mlp.router.weight", (experts.number, shape.hidden)),
            *(Tensor(name, (experts.number, outputs, inputs))
              for name, outputs, inputs in _mlp(shape, "mlp.experts", experts.inner)),
            *_products(shape, shared)]


def _library_block(shape: ModelShape) -> list[Tensor]:
    own = {item.name: item for item in _own_block(shape)}
    if shape.family == "gpt":
        width, inner = shape.hidden, shape.inner
        qkv, o, up, down = TRANSPOSED
        return [*_norm(shape, "ln_1"), *_transposed(qkv, width, 3 * width),
                *_transposed(o, width, width), *_norm(shape, "ln_2"),
                *_transposed(up, width, inner), *_transposed(down, inner, width)]
    parts = {"llama": ("attention.", "mlp.", "attention_norm.", "mlp_norm."),
             "bert": ("attention.", "attention_norm.", "mlp.", "mlp_norm.")}[shape.family]
    return [item for part in parts for name, item in own.items() if name.startswith(part)]


def _transposed(name: str, inputs: int, outputs: int) -> list[Tensor]:
    return [Tensor(f"{name}.weight", (inputs, outputs)), Tensor(f"{name}.bias", (outputs,))]


def head_tensors(shape: ModelShape, *, alone: bool = False) -> list[Tensor]:
    tensors = []
    if shape.family == "bert":
        tensors += [Tensor("head.transform.weight", (shape.hidden, shape.hidden)),
                    Tensor("head.transform.bias", (shape.hidden,))]
    tensors += _norm(shape, "head.norm")
    if alone or not shape.tied:
        tensors.append(Tensor("head.logits.weight", (shape.vocab, shape.hidden)))
    if shape.family == "phi":
        tensors.append(Tensor("head.logits.bias", (shape.vocab,)))
    if shape.family == "bert":
        bias = Tensor("head.logits.bias", (shape.vocab,))
        tensors.insert(len(tensors) if shape.library == OWN_LIBRARY else 0, bias)
    return tensors


def of_transposed(name: str) -> bool:
    return name.rpartition(".")[0].endswith(TRANSPOSED)


def _products(shape: ModelShape, products: list[tuple[str, int, int]]) -> Iterator[Tensor]:
    for name, outputs, inputs in products:
        yield Tensor(f"{name}.weight", (outputs, inputs))
        if shape.biased or (shape.qkv_biased and name in COLUMNWISE[:3]):
            yield Tensor(f"{name}.bias", (outputs,))


def _norm(shape: ModelShape, name: str) -> list[Tensor]:
    biases = [Tensor(f"{name}.bias", (shape.hidden,))] if shape.built.norm_biased else []
    return [Tensor(f"{name}.weight", (shape.hidden,)), *biases]


_ATTENTION = (
    "attention.q", "attention.k", "attention.v", "attention.o", "attn.c_attn", "attn.c_proj",
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "attention.self.query", "attention.self.key", "attention.self.value",
    "attention.output.dense")
"""Endings of the names of products of attention: ours, then those of library transformers."""
_MLP = ("mlp.gate", "mlp.up", "mlp.down", "mlp.c_fc", "mlp.c_proj", "mlp.gate_proj",
        "mlp.up_proj", "mlp.down_proj", "intermediate.dense", "output.dense")
_QV = ("attention.q", "attention.v", "attn.c_attn", "self_attn.q_proj", "self_attn.v_proj",
       "attention.self.query", "attention.self.value")
TARGETS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "all": (*_ATTENTION, *_MLP), "attention": _ATTENTION, "mlp": _MLP, "qv": _QV})
"""Value of the option ``targets`` -> endings of the names of products that have an adapter."""
_HEAD_PRODUCT = ("head.transform.", "library.cls.predictions.transform.dense.")
_LOGITS = ("head.logits.", "library.lm_head.")
_FIRST = ("attention.q", "attention.k", "attention.v", "attn.c_attn")
"""The products of a block's plan that take its normed input."""
_MLP_FIRST = ("mlp.gate", "mlp.up", "mlp.c_fc")
NF4_BLOCK = 64  # weights with one scale
NF4_SCALE_BLOCK = 256  # scales with one scale
_NF4_CONSTANTS = 4 + 4 * (16 + 256)
"""Bytes beside the scales of a matrix: the mean of the scales, and the tables of 4 and 8 bits,
which bitsandbytes copies for each."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters of a training; ``packed``: the weights of blocks are held in NF4; ``dora``: the
    norm of each row of a product with its adapter is trained, too (Liu et al., DoRA, arXiv
    2402.09353)."""

    rank: int
    targets: str
    packed: bool
    dora: bool = False

    def has(self, name: str) -> bool:
        product, _, kind = name.rpartition(".")
        found = kind == "weight" and product.endswith(TARGETS[self.targets])
        return found and not (self.targets == "mlp" and product.endswith(_ATTENTION))

    @property
    def begins_with_attention(self) -> bool:
        return self.targets != "mlp"

    def packs(self, name: str) -> bool:
        return self.packed and of_block_product(name) and name.endswith(".weight")


def of_block_product(name: str) -> bool:
    return name.rpartition(".")[0].endswith(TARGETS["all"])


def is_narrow(shape: ModelShape, name: str) -> bool:
    """Return whether a frozen parameter is held in the dtype of the arithmetic: products, but
    logits that share the embedding's weight. Tables and norms stay fp32, as the residual."""
    head = _HEAD_PRODUCT if shape.tied else (*_HEAD_PRODUCT, *_LOGITS)
    return of_block_product(name) or name.startswith(head)


def low_rank_tensors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    product, (outputs, inputs) = weight.name.removesuffix(".weight"), weight.extents
    if of_transposed(weight.name):
        outputs, inputs = inputs, outputs
    return (Tensor(f"{product}.lora_A.weight", (rank, inputs)),
            Tensor(f"{product}.lora_B.weight", (outputs, rank)))


def divided_adapters(weight: Tensor, rank: int, tp: int) -> tuple[Tensor, Tensor]:
    """Return a rank's A and B of its part of a weight; what the weight's has whole is divided, too.
    """
    a, b = low_rank_tensors(weight, rank)
    if weight.name.removesuffix(".weight").endswith(ROWWISE):
        return a, b._replace(extents=(b.extents[0], rank // tp))
    return a._replace(extents=(rank // tp, a.extents[1])), b


def magnitudes(weight: Tensor, adapters: Adapters) -> tuple[Tensor, ...]:
    """Return what is trained of a product beside A and B: with DoRA one number for each output."""
    if not adapters.dora:
        return ()
    _, of_outputs = low_rank_tensors(weight, adapters.rank)
    name = f"{weight.name.removesuffix('.weight')}.lora_magnitude_vector.weight"
    return (Tensor(name, of_outputs.extents[:1]),)


def magnitude_flops(shape: ModelShape, checkpointing: str, adapters: Adapters | None) -> int:
    """Return the FLOPs of B A in the norms of DoRA, of each part of a batch on each rank: peft
    passes an identity matrix through A and B."""
    if adapters is None or not adapters.dora:
        return 0

    def of(items: Sequence[Tensor]) -> int:
        return sum(2 * a.extents[1] * (a.elements + b.elements)
                   for a, b in zip(items[::2], items[1::2], strict=True))

    again = sum(blocks for _, blocks in _blocks_again(shape, checkpointing, adapters))
    return (shape.layers * of(block_adapters(shape, adapters))
            + again * of(adapters_again(shape, checkpointing, adapters)))


def block_adapters(shape: ModelShape, adapters: Adapters) -> list[Tensor]:
    return [part for item in block_tensors(shape) if adapters.has(item.name)
            for part in low_rank_tensors(item, adapters.rank)]


def count(shape: ModelShape, adapters: Adapters) -> int:
    of_dora = [part for item in block_tensors(shape) if adapters.has(item.name)
               for part in magnitudes(item, adapters)]
    return shape.layers * sum(item.elements for item in [
        *block_adapters(shape, adapters), *of_dora])


def scale_bytes(adapters: Adapters | None, parameters: Sequence[Tensor]) -> int:
    if adapters is None:
        return 0
    packed = [item.elements for item in parameters if adapters.packs(item.name)]
    # a byte for each 64 weights, and 4 for each 256 of these: all ranks hold all
    scales = [-(-elements // NF4_BLOCK) for elements in packed]
    return sum(each + 4 * -(-each // NF4_SCALE_BLOCK) + _NF4_CONSTANTS for each in scales)


EXECUTED = "counted"  # the definition of FLOPs that counts what is executed


class Definition(NamedTuple):
    """A definition of the model's FLOPs.

    ``weights`` returns the elements that each token is counted to be multiplied with,
    ``halves`` how many halves of the attention count."""

    meaning: str
    source: str
    weights: Callable[[ModelShape], int]
    halves: Callable[[ModelShape], int]


def multiplied(shape: ModelShape) -> int:
    """Return the weights that tokens are multiplied with: blocks and head, no lookups."""
    transform = shape.hidden * shape.hidden if shape.family == "bert" else 0
    of_blocks = sum(count * block_weights(shape, number) for number, count in _kinds(shape))
    return of_blocks + shape.vocab * shape.hidden + transform


def _without_lookups(shape: ModelShape) -> int:
    tables = 0 if shape.tied else shape.vocab * shape.hidden
    positions = shape.seq_length * shape.hidden if shape.built.positions == "learned" else 0
    kinds = 2 * shape.hidden if shape.family == "bert" else 0
    return active_parameters(shape) - tables - positions - kinds


DEFINITIONS: Mapping[str, Definition] = MappingProxyType({
    "6n": Definition(
        "6 x parameters that a token meets x tokens, no attention",
        "Kaplan et al., arXiv:2001.08361 (2020), section 2.1; here N has the embedding, too",
        active_parameters, lambda shape: 0),
    "palm": Definition(
        "6 x parameters that a token meets x tokens, and attention over all pairs of tokens",
        "Chowdhery et al., PaLM, arXiv:2204.02311 (2022), appendix B; llm-foundry, picotron",
        active_parameters, lambda shape: 2),
    "torchtitan": Definition(
        "as palm, without embedding tables unless the head shares them",
        "torchtitan 01c01c8 (2026), torchtitan/models/utils.py",
        _without_lookups, lambda shape: 2),
    "megatron": Definition(
        "products with weights only, and attention over the pairs that a causal mask leaves",
        "Megatron-LM d98e8a6 (2026), num_floating_point_operations; vocabularies unpadded",
        multiplied, lambda shape: 1 if shape.causal else 2),
    "counted": Definition(
        "what torch counts when it runs the model: products with weights, attention over all pairs",
        "torch.utils.flop_counter.FlopCounterMode with SDPBackend.MATH",
        multiplied, lambda shape: 2),
})


EXACT = ("megatron", "counted")
"""Definitions that count products one by one, and so can leave out what frozen weights save."""


def flops(
    shape: ModelShape, samples: int, adapters: Adapters | None = None,
) -> tuple[tuple[str, int], ...]:
    """Return the FLOPs of a training step by definition; with adapters by the `EXACT`."""
    if adapters:
        return tuple((name, samples * _with_adapters(DEFINITIONS[name], shape, adapters))
                     for name in EXACT)
    return tuple((name, samples * flops_by(name, shape)) for name in DEFINITIONS)


def flops_by(name: str, shape: ModelShape, halves: int | None = None) -> int:
    """Return the FLOPs of a step of one sample; a definition that has attention counts ``halves``
    of it instead of its own. Raises KeyError."""
    definition = DEFINITIONS[name]
    if halves is not None and definition.halves(shape):
        definition = definition._replace(halves=lambda _shape: halves)
    return (6 * shape.seq_length * definition.weights(shape)
            + 3 * shape.layers * attention_flops(definition, shape))


def recomputed(
    shape: ModelShape, samples: int, checkpointing: str, definition: str,
    adapters: Adapters | None = None,
) -> int:
    """Return the FLOPs that activation checkpointing adds to a step as torch runs it.

    A block is run again, but for a last product that nothing keeps (torch's
    ``set_checkpoint_early_stop``). Attention counts as in ``definition``. Raises KeyError."""
    of_attention = checkpointing == ATTENTION
    low_rank = adapters_again(shape, checkpointing, adapters)
    # BERT's last norm keeps what the last product returns, so there all of the block is run again.
    last = 0 if shape.family == "bert" else shape.hidden * shape.inner
    if of_attention:
        last = math.prod(attention_products(shape)[-1][1:])
    if last and low_rank and (".attention.o." if of_attention else ".mlp.") in low_rank[-1].name:
        last = 0 if adapters and adapters.dora else low_rank[-1].elements
    mixed = last if of_attention or not shape.experts else (
        shape.hidden * shape.experts.shared_inner)
    left_out = sum(blocks * (mixed if has_experts(shape, number) else last) for number, blocks in
                   _blocks_again(shape, checkpointing, adapters))
    return (forward_again(shape, samples, checkpointing, definition, adapters)
            - samples * 2 * shape.seq_length * left_out)


def forward_again(
    shape: ModelShape, samples: int, checkpointing: str, definition: str,
    adapters: Adapters | None = None,
) -> int:
    """Return the FLOPs of a whole forward pass of each block, or attention, that is run again.

    So papers count: 4/3 of a step (Narayanan et al., arXiv:2104.04473, appendix)."""
    own = sum(outputs * inputs for _, outputs, inputs in attention_products(shape))
    low_rank = sum(item.elements for item in adapters_again(shape, checkpointing, adapters))
    scores = attention_flops(DEFINITIONS[definition], shape)
    return samples * sum(
        blocks * (2 * shape.seq_length * (low_rank + (
            own if checkpointing == ATTENTION else block_weights(shape, number))) + scores)
        for number, blocks in _blocks_again(shape, checkpointing, adapters))


def adapters_again(
    shape: ModelShape, checkpointing: str, adapters: Adapters | None,
) -> list[Tensor]:
    """Return a block's adapters that are run again with it, if it is."""
    return [item for item in (block_adapters(shape, adapters) if adapters else [])
            if checkpointing != ATTENTION or ".attention." in item.name]


def _blocks_again(
    shape: ModelShape, checkpointing: str, adapters: Adapters | None,
) -> list[tuple[int, int]]:
    """Return one block's number and how many are run again, of each kind."""
    if keeps_products(checkpointing):
        return []
    # no gradient passes the first attention if its block's first adapter is behind it
    first = int(checkpointing == ATTENTION and adapters is not None
                and not adapters.begins_with_attention)
    return [(begin, sum(is_recomputed(checkpointing, block) for block in range(
        max(first, begin), begin + count))) for begin, count in _kinds(shape)]


def _with_adapters(definition: Definition, shape: ModelShape, adapters: Adapters) -> int:
    """Return the FLOPs on one sample where adapters alone are trained.

    A frozen weight has no gradient: 4 instead of 6. Before the first adapter nothing is trained, so
    the products of the first block up to there, and their A, have no gradient of their input; and
    its attention has none if it has no adapters."""
    first = _FIRST if adapters.begins_with_attention else (*_ATTENTION, *_MLP_FIRST)
    idle = sum(item.elements + adapters.has(item.name) * low_rank_tensors(
        item, adapters.rank)[0].elements for item in block_tensors(shape)
        if item.name.endswith(tuple(f"{name}.weight" for name in first)))
    low_rank = shape.layers * sum(item.elements for item in block_adapters(shape, adapters))
    weights = 4 * multiplied(shape) + 6 * low_rank - 2 * idle
    passes = 3 * shape.layers - 2 * (first is not _FIRST)
    return shape.seq_length * weights + passes * attention_flops(definition, shape)


def attention_flops(definition: Definition, shape: ModelShape) -> int:
    """Return the FLOPs of a block's attention of one sample in forward: queries by keys, then by
    values."""
    latent = shape.latent
    of_head = latent.keyed + latent.value if latent else 2 * shape.head_dim
    pairs = sum(length**2 for length in document_lengths(shape.seq_length, shape.documents))
    return pairs * shape.heads * of_head * definition.halves(shape)
