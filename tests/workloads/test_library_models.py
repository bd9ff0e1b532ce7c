"""The models of library transformers: our shapes, and what ours compute with the same weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from hpcbench.kinds.training.plan.experts import Spread
from hpcbench.kinds.training.plan.extents import with_extents
from hpcbench.kinds.training.plan.model_file import shape_in, untrained
from hpcbench.kinds.training.plan.models import (
    flops,
    forward_again,
    parameters,
    recomputed,
    shape_of,
)
from hpcbench.kinds.training.run.data import SEED, Loader
from hpcbench.kinds.training.run.models.build import alter, make_model
from hpcbench.kinds.training.run.models.experts import Exchange, RouterRoutes
from hpcbench.kinds.training.run.models.library import LibraryModel
from hpcbench.kinds.training.run.models.model import Model, init_weights, mean_loss
from hpcbench.kinds.training.run.models.transformer import Transformer
from hpcbench.kinds.training.run.parity import parity
from hpcbench.kinds.training.run.strategies.base import Strategy
from hpcbench.kinds.training.run.strategies.data import Data
from hpcbench.kinds.training.run.strategies.moe import mixtures
from hpcbench.kinds.training.run.strategies.replica import Fsdp
from hpcbench.kinds.training.run.strategies.replica import Replica as Single
from hpcbench.operations.loads import Load
from hpcbench.operations.models import MODELS, ModelShape
from hpcbench.operations.place import Place
from launcher import ROOT
from workloads.training_cases import alone, training

BUILT = ["gpt2", "bert-large", "mistral-7b", "llama3-8b", "qwen3-0.6b"]
SIZES = {"layers": 2, "hidden": 192, "seq_length": 16, "vocab": 96}
OURS_OF_LIBRARYS = {
    "gpt": {
        "transformer.wte": "embedding.tokens", "transformer.wpe": "embedding.positions",
        "transformer.ln_f": "head.norm", "transformer.h": "blocks", "ln_1": "attention_norm",
        "ln_2": "mlp_norm", "attn.c_proj": "attention.o", "mlp.c_fc": "mlp.up",
        "mlp.c_proj": "mlp.down"},
    "llama": {
        "model.embed_tokens": "embedding.tokens", "model.norm": "head.norm",
        "lm_head": "head.logits", "model.layers": "blocks", "self_attn.": "attention.",
        "a_proj_with_mqa": "down", "_a_proj": "_down", "_b_proj": "_up", "_a_layernorm": "_norm",
        "mlp.gate.weight": "mlp.router.weight", "shared_experts": "shared",
        "_proj": "", "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm"},
    "bert": {
        "bert.embeddings.word_embeddings": "embedding.tokens",
        "bert.embeddings.position_embeddings": "embedding.positions",
        "bert.embeddings.token_type_embeddings": "embedding.types",
        "bert.embeddings.LayerNorm": "embedding.norm", "bert.encoder.layer": "blocks",
        "attention.self.query": "attention.q", "attention.self.key": "attention.k",
        "attention.self.value": "attention.v", "attention.output.dense": "attention.o",
        "attention.output.LayerNorm": "attention_norm", "intermediate.dense": "mlp.up",
        "output.dense": "mlp.down", "output.LayerNorm": "mlp_norm",
        "cls.predictions.transform.dense": "head.transform",
        "cls.predictions.transform.LayerNorm": "head.norm",
        "cls.predictions.bias": "head.logits.bias"},
}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with alone() as found:
        yield found


def ours(shape: ModelShape, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the library's weights or gradients under our names, in our layout.

    The library's GPT-2 has weights as (inputs, outputs), and one for queries, keys and values.
    """
    found = {}
    for full, tensor in tensors.items():
        name = full.removeprefix("library.")
        for theirs, own in OURS_OF_LIBRARYS[shape.family].items():
            name = name.replace(theirs, own)
        if shape.family == "gpt" and re.search(r"attn\.|attention\.o|mlp\.(up|down)", name):
            tensor = tensor.t() if tensor.dim() == 2 else tensor
        if ".attn.c_attn" in name:
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                found[name.replace("attn.c_attn", f"attention.{part}")] = rows
        else:
            found[name] = tensor
    return found


def counted(model: Model, samples: int = 2) -> int:
    batch = torch.zeros((samples, model.shape.seq_length), dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        mean_loss(model(batch), batch).backward()
    return counter.get_total_flops()


@pytest.mark.usefixtures("_unpacked")
@pytest.mark.parametrize("checkpointing", ["selective", "operators", "full"])
@pytest.mark.parametrize("name", ["gpt2", "bert-large", "mistral-7b"])
def test_the_librarys_blocks_are_run_again_as_ours(name: str, checkpointing: str) -> None:
    shape = with_extents(name, layers=3)
    assert isinstance(shape, ModelShape)
    for early, again in ((True, recomputed), (False, forward_again)):
        with torch.device("meta"):
            model = LibraryModel(shape, name)
        alter(dict(enumerate(part.module for part in model.parts() if part.number is not None)),
              checkpointing, compiles=False)
        with set_checkpoint_early_stop(early):
            assert counted(model) == dict(flops(shape, 2))["counted"] + again(
                shape, 2, checkpointing, "counted")


@pytest.fixture
def _unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer what the library asks of positions: nothing is known of them on the meta device."""
    monkeypatch.setattr(transformers.masking_utils, "find_packed_sequence_indices",
                        lambda positions: None)


@pytest.mark.usefixtures("_unpacked")
@pytest.mark.parametrize("name", BUILT)
def test_the_librarys_model_has_our_parameters_and_flops(name: str) -> None:
    shape = MODELS[name]
    with torch.device("meta"):
        model = LibraryModel(shape, name)
    assert sum(item.numel() for item in model.parameters()) == parameters(shape)
    few = replace(shape, layers=2)  # each block more is another of the same
    with torch.device("meta"):
        short = LibraryModel(few, name)
    assert counted(short, 2) == dict(flops(few, 2))["counted"]
    for attention in model.modules():
        assert "Dropout" not in type(attention).__name__ or attention.p == 0


@pytest.mark.usefixtures("_unpacked")
@pytest.mark.parametrize(("name", "extents"), [
    ("gpt2", {"layers": 3, "hidden": 96, "heads": 6, "inner": 100, "seq_length": 2048}),
    ("bert-large", {"layers": 2, "hidden": 96, "heads": 2, "inner": 33, "vocab": 40000}),
    ("mistral-7b", {"layers": 2, "hidden": 96, "heads": 6, "kv_heads": 3, "inner": 50}),
    ("llama3-8b", {"layers": 3, "hidden": 192, "heads": 8, "kv_heads": 1, "seq_length": 9000}),
    ("llama3-8b", {"layers": 2, "hidden": 192, "heads": 48, "kv_heads": 48})])
def test_the_librarys_model_has_other_extents_as_ours_has(
    name: str, extents: dict[str, int],
) -> None:
    shape = with_extents(name, **extents)
    assert isinstance(shape, ModelShape)
    with torch.device("meta"):
        model = LibraryModel(shape, name)
    assert sum(item.numel() for item in model.parameters()) == parameters(shape)
    assert counted(model, 2) == dict(flops(shape, 2))["counted"]


TINY = {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 80, "vocab_size": 96,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 500.0}
LATENTS = {"num_key_value_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 12,
           "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "n_group": 4,
           "topk_group": 2, "num_experts_per_tok": 3, "n_shared_experts": 2,
           "moe_intermediate_size": 40, "first_k_dense_replace": 1}
FILES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}},
    "mistral": {"sliding_window": 16, "head_dim": 32}, "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32}, "phi3": {"sliding_window": 40, "pad_token_id": None},
    "gemma": {"head_dim": 32, "hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu"},
    "deepseek_v2": LATENTS | {"q_lora_rank": None, "topk_method": "group_limited_greedy"},
    "deepseek_v3": LATENTS | {"q_lora_rank": 20, "routed_scaling_factor": 2.5}}
YARN = {"type": "yarn", "factor": 40, "beta_fast": 2, "beta_slow": 0.1, "mscale": 0.707,
        "mscale_all_dim": 0.707, "original_max_position_embeddings": 16}
SCALINGS: tuple[tuple[str, dict[str, Any] | None], ...] = (
    ("llama", YARN), ("llama", YARN | {"mscale": 2.0}), ("llama", {
        "rope_type": "yarn", "factor": 4.0, "attention_factor": 0.5, "mscale_all_dim": 0}),
    ("llama", {"type": "yarn", "factor": 0.5, "beta_fast": None, "mscale": 2}),
    ("qwen2", {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}),
    ("deepseek_v2", YARN), ("deepseek_v3", YARN | {"mscale": 1.0}),
    ("deepseek_v3", {"type": "yarn", "factor": 4.0, "beta_fast": 1}))


@pytest.mark.parametrize(("kind", "scaling"), [*((kind, None) for kind in FILES), *SCALINGS])
def test_a_model_of_a_file_computes_what_the_librarys_does(
    kind: str, scaling: dict[str, Any] | None, tmp_path: Path,
) -> None:
    file = {"model_type": kind, **TINY, **FILES[kind]} | (
        {"rope_scaling": scaling} if scaling else {})
    (tmp_path / "config.json").write_text(json.dumps(file))
    shape = shape_in(tmp_path / "config.json")
    assert untrained(shape) is None
    assert shape.seq_length == {"mistral": 16, "phi3": 40}.get(kind, 64)
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**file), experts_implementation="eager").double()
    with torch.no_grad():
        for parameter in theirs.parameters():  # norms and biases, too
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    weights = ours(shape, {"library." + name: each for name, each in theirs.named_parameters()})
    for name in [*weights]:  # the library's Phi-3 has products together, its Gemma norms less 1
        width = [shape.q_hidden, shape.kv_hidden, shape.kv_hidden]
        for whole, parts, rows in (("attention.qkv", "qkv", width),
                                   ("mlp.gate_up", ("gate", "up"), [shape.inner] * 2),
                                   ("mlp.experts.gate_up", ("gate", "up"), 40)):
            if whole in name:
                before, _, kind_of = name.partition(whole)
                stem = before + whole.rpartition(".")[0]
                weights |= dict(zip((f"{stem}.{part}{kind_of}" for part in parts),
                                    weights.pop(name).split(rows, -2), strict=True))
    own = Transformer(shape).double()
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            parameter.copy_(weights.pop(name) + (kind == "gemma" and "norm" in name))
    assert not weights
    for mixture in mixtures(own):
        mixture.routes = RouterRoutes(mixture.of, Spread(
            1, Load("balanced"), "rank", Fraction(0), router=True), 64, 0, Exchange(None))
    tokens = torch.arange(2 * shape.seq_length).view(2, -1) % shape.vocab
    torch.testing.assert_close(own(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)
    if kind in ("llama", "qwen2"):  # as ``library: transformers`` builds them of the file's shape
        built = LibraryModel(shape, kind).double()
        built.library.load_state_dict(theirs.state_dict())
        torch.testing.assert_close(built(tokens), theirs(tokens).logits, rtol=0, atol=0)


def test_what_bert_is_released_with_beside_that() -> None:
    """docs: the pooler, and the head that tells whether sentences follow each other."""
    with torch.device("meta"):
        config = LibraryModel(MODELS["bert-large"], "bert-large").library.config
        released = transformers.BertForPreTraining(config)
    assert sum(item.numel() for item in released.parameters()) == 335_174_458 + 1_051_650


@pytest.mark.parametrize("name", BUILT)
def test_our_model_with_the_librarys_weights_computes_the_same(name: str) -> None:
    theirs = training("single", model=name, sizes=SIZES, library="transformers")
    own = training("single", model=name, sizes=SIZES)
    models = [make_model(spec).double() for spec in (theirs, own)]
    init_weights(models[0], SEED)
    shape = shape_of(theirs)
    weights = ours(shape, dict(models[0].named_parameters()))
    with torch.no_grad():
        for key, parameter in models[1].named_parameters():
            parameter.copy_(weights.pop(key))
    assert not weights
    tokens, targets = Loader(own, torch.device("cpu")).batch(0, 0, own.batch_size)
    losses = [mean_loss(model(tokens), targets) for model in models]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=0)  # some of it is in fp32
    gradients = ours(shape, {key: item.grad for key, item in models[0].named_parameters()})
    for key, parameter in models[1].named_parameters():
        error = (parameter.grad - gradients[key]).norm()
        # what is 0 but for rounding: gradients of keys' biases
        assert float(error) <= 1e-5 * float(gradients[key].norm()) + 1e-8, key
    # the library's own loss: decoders predict the next of the tokens, an encoder the same ones
    labelled = models[0].library(input_ids=tokens, labels=tokens.contiguous()).loss
    logits = models[1](tokens)
    expected = (mean_loss(logits, tokens) if name == "bert-large" else
                mean_loss(logits[:, :-1], tokens[:, 1:]))
    torch.testing.assert_close(expected.float(), labelled.float(), rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(("strategy", "kind", "changes"), [
    ("single", Single, {"dtype": "fp32"}),
    ("data", Data, {"dtype": "fp16", "checkpointing": "selective", "accumulation": 2}),
    ("fsdp", Fsdp, {"dtype": "bf16", "checkpointing": "full"})])
@pytest.mark.parametrize("name", ["gpt2", "bert-large", "mistral-7b"])  # one of each family
def test_the_librarys_model_is_trained_right(
    place: Place, name: str, strategy: str, kind: type[Strategy], changes: dict[str, Any],
) -> None:
    found = parity(training(strategy, model=name, sizes=SIZES, library="transformers",
                            **changes), place, kind)
    assert found.wrong is None
    assert 0 < found.share < 0.5


def test_the_library_is_imported_only_where_it_is_asked_for() -> None:
    folder = ROOT / "hpcbench"
    found = [(path.name, line.strip()) for path in folder.rglob("*.py") for line in (
        path.read_text().splitlines()) if re.search(
            r"import transformers|from transformers|models\.library import", line)]
    assert sorted(found) == [
        ("build.py", "from hpcbench.kinds.training.run.models.library import LibraryModel"),
        ("library.py", "import transformers")]
