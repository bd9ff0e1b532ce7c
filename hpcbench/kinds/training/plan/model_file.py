"""A model's file ``config.json``, as Hugging Face's transformers writes it, read as a shape.

The file is somebody else's: whatever is in it, a shape is returned or one line tells what is wrong.
A field that our blocks have no form of, and that changes neither parameters nor products, is kept
in words (`ModelShape.unlike`): such a model is counted, not trained. What would change them is
refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from hpcbench.config.axes import quote, unknown_name
from hpcbench.errors import ConfigError, FileError
from hpcbench.operations.loads import MOST_EXPERTS
from hpcbench.operations.models import (
    FAMILIES,
    MODELS,
    Experts,
    LatentAttention,
    ModelShape,
    Yarn,
)

SUFFIX = ".json"
"""What the name of a file of a model ends with; names of shipped models do not."""
MOST_LAYERS = 10_000  # a plan counts each block by itself
_MOST_EXTENT = 2**31
_MOST_BYTES = 2**20
_HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM")
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu",
                "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"}


EXTENTS = ("layers", "hidden", "heads", "kv_heads", "inner", "vocab", "seq_length")
"""The keys of a sweep that give a transformer other extents: fields of a training, too."""
_KEPT_APART = {"family", *EXTENTS, "library"}
_PARTS = {"experts": Experts, "latent": LatentAttention, "yarn": Yarn}


def architecture_of(shape: ModelShape) -> tuple[tuple[str, Any], ...]:
    """Return what a shape of no shipped model has beside its extents, as plain values.

    The base of its angles is always there, so that it is never empty."""
    return tuple((item.name, astuple(value) if item.name in _PARTS else value)
                 for item in fields(shape) if item.name not in _KEPT_APART
                 if (value := getattr(shape, item.name)) not in (item.default, None)
                 or item.name == "rotary_base")


def with_architecture(
    shape: ModelShape, architecture: Iterable[tuple[str, Any]],
) -> ModelShape:
    return replace(shape, **{name: _PARTS[name](*value) if name in _PARTS else value
                             for name, value in architecture})


def untrained(shape: ModelShape) -> str | None:
    """Return why no strategy trains a model of this shape, of which the counts are known."""
    built = {"neox": "attention and MLP that add to the same input",
             "phi": "attention and MLP that add to the same input",
             "mpt": "attention with biases by distance (ALiBi)"}.get(shape.family)
    if shape.window and shape.seq_length > shape.window:
        return (f"seq_length={shape.seq_length} is longer than a window of {shape.window} tokens, "
                f"which no attention here has: take seq_length={shape.window} or less")
    parts = [part for part in (built, shape.unlike) if part]
    return (f"no block here has {' and '.join(parts)}: the model is counted (hpcbench model), not "
            "trained") if parts else None


def whole_shape(name: str) -> ModelShape:
    """Return the shape of a shipped model or of a file. Raises KeyError, ConfigError, FileError."""
    return shape_in(Path(name)) if name.endswith(SUFFIX) else MODELS[name]


def label_of(name: str) -> str:
    """Return a model's name in tables: of a file its own, of ``config.json`` with its folder's."""
    if not name.endswith(SUFFIX):
        return name
    path = Path(name).absolute()
    return f"{path.parent.name}/{path.name}" if path.name == "config.json" else path.name


def shape_in(path: Path) -> ModelShape:
    """Return the shape in a file. Raises FileError and ConfigError of one line."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"{path}: cannot be read: {reason}; give a model's "
                        "config.json") from None
    try:
        return _shape(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


@lru_cache(maxsize=64)  # a sweep asks for it at each point
def _shape(content: bytes) -> ModelShape:
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"has more than the {_MOST_BYTES:,} bytes that a model's config has")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError("is not a mapping of keys, as a model's config.json is")
    fields = _Fields(data)
    kind = fields.text("model_type")
    if kind not in _READERS:
        raise ConfigError(f"model_type: {unknown_name(kind, _READERS)}")
    fields.heads("architectures")
    shape = _READERS[kind](fields)
    _check(shape)
    return replace(shape, unlike=", ".join(fields.unlike))


class _Fields:
    """The fields of a file; ``unlike``: those that our blocks have no form of."""

    def __init__(self, data: Mapping[str, Any], prefix: str = "") -> None:
        self._data, self._prefix = data, prefix
        self.unlike: list[str] = []

    def whole(self, name: str, usual: int | None = None, least: int = 1,
              most: int = _MOST_EXTENT) -> int:
        value = self._value(name, usual)
        if type(value) is not int or not least <= value <= most:
            raise self._bad(name, value, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, usual: float | None = None) -> float:
        value = self._value(name, usual)
        if type(value) not in (int, float) or not (0 < value <= 1e12 or value == usual):
            raise self._bad(name, value, "a number above 0")
        return float(value)

    def flag(self, name: str, usual: bool) -> bool:
        value = self._value(name, usual)
        if type(value) is not bool:
            raise self._bad(name, value, "true or false")
        return value

    def text(self, name: str, usual: str | None = None) -> str:
        value = self._value(name, usual)
        if not isinstance(value, str):
            raise self._bad(name, value, "text")
        return value

    def part(self, *names: str) -> _Fields:
        """Return the mapping under the first of these names that has one; an empty one if none."""
        for name in names:
            value = self._data.get(name)
            if isinstance(value, dict):
                return _Fields(value, f"{name}.")
            if value is not None:
                raise self._bad(name, value, "a mapping")
        return _Fields({})

    def has(self, name: str) -> bool:
        return self._data.get(name) is not None

    def lacks(self, name: str) -> bool:
        """Return whether the field is not there at all, which may mean something else than null."""
        return name not in self._data

    def only(self, name: str, *values: object) -> None:
        """Refuse other values than these; the first is that of a file without the field."""
        value = self._value(name, values[0])
        if not any(type(value) is type(one) and value == one for one in values):
            raise self._bad(name, value, " or ".join(map(quote, values)) + ", as blocks here have")

    def heads(self, name: str) -> None:
        """Refuse classes without logits of each token: others have other parameters."""
        value = self._value(name, [])
        classes = value if isinstance(value, list) else [value]
        for one in classes:
            if not isinstance(one, str) or not one.endswith(_HEADS):
                raise self._bad(name, one, "a class of which logits of each token are counted "
                                f"({', '.join(_HEADS)}); remove the field for those")

    def note(self, name: str, *values: object) -> None:
        """Note other values than these, the first of which is that of a file without the field;
        null is another."""
        value = self._data.get(name, values[0])
        if value not in values:
            self.unlike.append(f"{self._prefix}{name} {quote(value)}")

    def _value(self, name: str, usual: object) -> Any:
        value = self._data.get(name)
        if value is None and usual is None:
            raise ConfigError(f"has no {self._prefix}{name}")
        return usual if value is None else value

    def _bad(self, name: str, value: object, wanted: str) -> ConfigError:
        return ConfigError(f"{self._prefix}{name}: {quote(value)} is not {wanted}")


def _activation(fields: _Fields, name: str, family: str, usual: str) -> str:
    """Return an activation that is not the family's, or nothing."""
    given = fields.text(name, usual)
    if given not in _ACTIVATIONS:
        fields.note(name, *_ACTIVATIONS)
        return ""
    found = _ACTIVATIONS[given]
    return "" if found == FAMILIES[family].activation else found


class _Names(NamedTuple):
    """The names of the fields of extents, which older types have by other names."""

    layers: str = "num_hidden_layers"
    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    inner: str = "intermediate_size"
    positions: str = "max_position_embeddings"
    eps: str = "layer_norm_eps"


_NAMES = _Names()
_OLD = _Names("n_layer", "n_embd", "n_head", "n_inner", "n_positions", "layer_norm_epsilon")
_MPT = _Names("n_layers", "d_model", "n_heads", "", "max_seq_len", "layer_norm_epsilon")


def _plain(
    fields: _Fields, family: str, names: _Names = _NAMES, *, eps: float, tied: bool,
    inner: int | None = None,
) -> ModelShape:
    """Return a shape with the extents that every type has; keys and values of all heads."""
    hidden, heads, built = fields.whole(names.hidden), fields.whole(names.heads), FAMILIES[family]
    tied, eps = fields.flag("tie_word_embeddings", tied), fields.number(names.eps, eps)
    return ModelShape(
        family, fields.whole(names.layers, most=MOST_LAYERS), hidden, heads, heads,
        inner or fields.whole(names.inner, 4 * hidden if names is _OLD else None),
        fields.whole("vocab_size"), fields.whole(names.positions),
        tied_logits=None if tied == built.tied else tied,
        norm_eps=0.0 if eps == built.eps else eps)


class _Usual(NamedTuple):
    """What transformers takes where a file lacks a field; ``kv_heads`` 0: all heads.

    ``window`` of a file without ``sliding_window``, None: none. ``windowed``: of one without
    ``use_sliding_window``."""

    eps: float = 1e-6
    base: float = 10000.0
    kv_heads: int = 0
    window: int | None = 4096
    windowed: bool = False


def _yarn(rope: _Fields, original: int, positions: int) -> Yarn:
    rope.note("truncate", True)
    # null, not a file without it, is the ratio
    ratio = None if rope.lacks("factor") else positions / original
    weights = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    yarn = Yarn(rope.number("factor", ratio), rope.number("beta_fast", 32.0),
                rope.number("beta_slow", 1.0), original, weights[1])
    above, below = map(yarn.mscale, weights if all(weights) else (1.0, 0.0))
    return replace(yarn, attention_factor=rope.number("attention_factor", above / below))


def _rotary(fields: _Fields, shape: ModelShape, usual: _Usual) -> ModelShape:
    """Return a shape with its heads of keys, angles, and the window up to which it is causal."""
    rope = fields.part("rope_parameters", "rope_scaling")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "yarn" and fields.text("model_type") == "phi3":
        kind = "longrope"  # which the library reads it as
    base = rope.number("rope_theta", fields.number("rope_theta", usual.base))
    first = "original_max_position_embeddings"  # beside the angles, too, where it wins
    original = fields.whole(first, rope.whole(first, shape.seq_length))
    scaling = (rope.number("factor"), rope.number("low_freq_factor"),
               rope.number("high_freq_factor"), original) if kind == "llama3" else None
    yarn = _yarn(rope, original, shape.seq_length) if kind == "yarn" else None
    if kind not in ("default", "llama3", "yarn"):
        fields.unlike.append(f"rope_type {quote(kind)}")
    rope.note("partial_rotary_factor", 1.0, None)
    fields.unlike += rope.unlike
    window = None
    if fields.flag("use_sliding_window", usual.windowed):
        window = usual.window if fields.lacks("sliding_window") else (
            fields.whole("sliding_window", shape.seq_length))
    heads = usual.kv_heads if fields.lacks("num_key_value_heads") else 0
    return replace(
        shape, kv_heads=fields.whole("num_key_value_heads", heads or shape.heads),
        rotary_base=base, rotary_scaling=scaling, yarn=yarn,
        seq_length=min(shape.seq_length, window or shape.seq_length),
        window=window if window and window < shape.seq_length else 0)


_RMS = _Names(eps="rms_norm_eps")


def _llama(
    fields: _Fields, usual: _Usual, *, tied: bool = False, head_dim: int | None = None,
    activation: tuple[str, str] = ("hidden_act", "silu"), **more: Any,
) -> ModelShape:
    for name in ("attention_bias", "mlp_bias"):
        fields.only(name, False)
    fields.note("partial_rotary_factor", 1.0, None)
    shape = _rotary(fields, _plain(fields, "llama", _RMS, eps=usual.eps, tied=tied), usual)
    own = fields.whole("head_dim", head_dim or max(shape.hidden // shape.heads, 1))
    return replace(
        shape, head_extent=0 if own * shape.heads == shape.hidden else own,
        activation=_activation(fields, activation[0], "llama", activation[1]), **more)


def _mixtral(fields: _Fields) -> ModelShape:
    shape = _llama(fields, _Usual(1e-5, 1e6, kv_heads=8, window=None, windowed=True))
    return replace(shape, experts=Experts(
        fields.whole("num_local_experts", most=MOST_EXPERTS),
        fields.whole("num_experts_per_tok"), shape.inner))


def _qwen3_moe(fields: _Fields) -> ModelShape:
    fields.only("decoder_sparse_step", 1)
    fields.only("mlp_only_layers", [])
    # transformers 5 writes the second
    number = "num_experts" if fields.has("num_experts") else "num_local_experts"
    return _llama(fields, _Usual(kv_heads=4), qk_norm=True, experts=Experts(
        fields.whole(number, most=MOST_EXPERTS), fields.whole("num_experts_per_tok"),
        fields.whole("moe_intermediate_size"), normalised=fields.flag("norm_topk_prob", False)))


def _deepseek(fields: _Fields, *, scores: Literal["softmax", "sigmoid"]) -> ModelShape:
    fields.only("attention_bias", False)
    fields.only("moe_layer_freq", 1)
    fields.only("scoring_func", scores)
    fields.note("rope_interleave", True)
    inner, third = fields.whole("moe_intermediate_size"), scores == "sigmoid"
    grouped = third or fields.text("topk_method", "greedy") == "group_limited_greedy"
    groups = (fields.whole("n_group", 8 if third else 1),
              fields.whole("topk_group", 4 if third else 1)) if grouped else (1, 1)
    queries = 1536 if fields.lacks("q_lora_rank") else 0
    experts = Experts(
        fields.whole("n_routed_experts", most=MOST_EXPERTS),
        fields.whole("num_experts_per_tok"), inner,
        inner * fields.whole("n_shared_experts", 1 if third else 2, least=0),
        fields.whole("first_k_dense_replace", 3 if third else 0, least=0), scores, *groups,
        normalised=fields.flag("norm_topk_prob", third),
        scale=fields.number("routed_scaling_factor", 2.5 if third else 1.0))
    latent = LatentAttention(
        fields.whole("kv_lora_rank"), fields.whole("qk_nope_head_dim"),
        fields.whole("qk_rope_head_dim"), fields.whole("v_head_dim"),
        query_rank=fields.whole("q_lora_rank", queries, least=0))
    shape = _rotary(fields, _plain(fields, "llama", _RMS, eps=1e-6, tied=False), _Usual())
    return replace(shape, kv_heads=shape.heads, experts=experts, latent=latent,
                   activation=_activation(fields, "hidden_act", "llama", "silu"))


def _gpt2(fields: _Fields) -> ModelShape:
    fields.only("add_cross_attention", False)
    fields.note("scale_attn_weights", True)
    fields.note("scale_attn_by_inverse_layer_idx", False)
    return replace(_plain(fields, "gpt", _OLD, eps=1e-5, tied=True),
                   activation=_activation(fields, "activation_function", "gpt", "gelu_new"))


def _bert(fields: _Fields) -> ModelShape:
    fields.only("type_vocab_size", 2)
    fields.only("tie_word_embeddings", True)  # the logits have a bias
    fields.only("add_cross_attention", False)
    fields.note("position_embedding_type", "absolute", None)
    fields.note("hidden_act", "gelu", "gelu_python")  # which the head has, too
    fields.note("is_decoder", False, None)
    return _plain(fields, "bert", eps=1e-12, tied=True)


def _neox(fields: _Fields) -> ModelShape:
    fields.only("attention_bias", True)
    return _plain(fields, "neox", eps=1e-5, tied=False)


def _phi(fields: _Fields) -> ModelShape:
    fields.only("qk_layernorm", False)
    fields.only("tie_word_embeddings", False)  # the logits have a bias
    shape = _plain(fields, "phi", eps=1e-5, tied=False)
    return replace(shape, kv_heads=fields.whole("num_key_value_heads", shape.heads))


def _mpt(fields: _Fields) -> ModelShape:
    attention = fields.part("attn_config")
    attention.only("alibi", True)
    attention.only("attn_type", "multihead_attention")
    attention.only("qk_ln", False)
    fields.only("no_bias", True)
    inner = fields.whole("expansion_ratio", 4) * fields.whole(_MPT.hidden)
    return _plain(fields, "mpt", _MPT, eps=1e-5, tied=True, inner=inner)


_READERS: Mapping[str, Callable[[_Fields], ModelShape]] = MappingProxyType({
    "llama": partial(_llama, usual=_Usual()),
    "mistral": partial(_llama, usual=_Usual(kv_heads=8, windowed=True)),
    "phi3": partial(_llama, usual=_Usual(1e-5, window=None, windowed=True)),
    "qwen2": partial(_llama, usual=_Usual(kv_heads=32), qkv_biased=True),
    "qwen3": partial(_llama, usual=_Usual(kv_heads=32), qk_norm=True, head_dim=128),
    "gemma": partial(_llama, usual=_Usual(kv_heads=16), tied=True, head_dim=256,
                     embedding_scaled=True, activation=("hidden_activation", "gelu_pytorch_tanh")),
    "mixtral": _mixtral, "qwen3_moe": _qwen3_moe,
    "deepseek_v2": partial(_deepseek, scores="softmax"),
    "deepseek_v3": partial(_deepseek, scores="sigmoid"),
    "gpt2": _gpt2, "bert": _bert, "gpt_neox": _neox, "phi": _phi, "mpt": _mpt})
"""Value of ``model_type`` -> what reads such a file."""


def _check(shape: ModelShape) -> None:
    """Raise ConfigError of extents that do not go together."""
    experts = shape.experts
    wrong = (
        (not shape.head_extent and not shape.latent and shape.hidden % shape.heads,
         f"hidden size {shape.hidden} cannot be divided among {shape.heads} heads"),
        (shape.built.positions == "rotary" and shape.turned % 2,
         f"heads of {shape.turned} have no pairs of elements, which rotary positions turn"),
        (shape.yarn and shape.rotary_base <= 1,
         f"rope_theta {shape.rotary_base:g} is not above 1, as yarn needs it"),
        (shape.heads % shape.kv_heads,
         f"{shape.kv_heads} key-value heads do not divide {shape.heads} heads"),
        (experts and experts.per_token > experts.number,
         "a token goes to more experts than there are"),
        (experts and (experts.number % experts.groups
                      or experts.groups_per_token > experts.groups),
         "the groups of experts do not divide them, or a token goes to more than there are"),
        (experts and experts.per_token * experts.groups > experts.number * experts.groups_per_token,
         "a token goes to more experts than its groups have"),
        (experts and experts.dense_layers > shape.layers,
         "more blocks than there are have a dense MLP"))
    if problem := next((words for is_wrong, words in wrong if is_wrong), None):
        raise ConfigError(problem)
