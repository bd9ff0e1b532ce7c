from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from hpcbench.kinds.training.block import CHECKPOINTINGS
from hpcbench.kinds.training.plan.experts import Spread
from hpcbench.kinds.training.plan.model_file import untrained
from hpcbench.kinds.training.plan.models import (
    Tensor,
    block_tensors,
    block_weights,
    embedding_tensors,
    flops,
    forward_again,
    parameters,
    recomputed,
)
from hpcbench.kinds.training.plan.step import Stage
from hpcbench.kinds.training.run.models.build import alter
from hpcbench.kinds.training.run.models.experts import Exchange, MixtureOfExperts, RouterRoutes
from hpcbench.kinds.training.run.models.model import init_weights, mean_loss
from hpcbench.kinds.training.run.models.transformer import (
    TIED,
    RotaryEmbedding,
    Transformer,
    plain_name,
)
from hpcbench.operations.loads import Load
from hpcbench.operations.models import MODELS, Experts, LatentAttention, ModelShape

SMALL = {
    "gpt": ModelShape("gpt", 3, 32, 4, 4, 128, 50, 16),
    "llama": ModelShape("llama", 3, 32, 4, 2, 112, 50, 16),
    "bert": ModelShape("bert", 3, 32, 4, 4, 128, 50, 16),
    "qwen3": ModelShape("llama", 3, 32, 4, 2, 112, 50, 16, head_extent=16, qk_norm=True,
                        qkv_biased=True, tied_logits=True, norm_eps=1e-6),
    "gemma": ModelShape("llama", 3, 32, 4, 1, 112, 50, 16, head_extent=16, tied_logits=True,
                        activation="gelu_tanh", embedding_scaled=True),
    "latents": ModelShape("llama", 3, 32, 4, 4, 112, 50, 16,
                          latent=LatentAttention(24, 8, 4, 10, query_rank=20)),
}
families = pytest.mark.parametrize("shape", SMALL.values(), ids=SMALL)


def drafted(shape: ModelShape, blocks: range | None, checkpointing: str) -> Transformer:
    model = Transformer(shape, blocks)
    alter({int(number): block for number, block in model.blocks.items()}, checkpointing,
          compiles=False)
    return model


def made(shape: ModelShape, blocks: range | None = None, checkpointing: str = "none",
         seed: int = 7) -> Transformer:
    model = drafted(shape, blocks, checkpointing)
    init_weights(model, seed)
    return model.double()


def tokens(shape: ModelShape, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(shape.vocab, (2, shape.seq_length), generator=generator)


def gradients(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: item.grad for name, item in model.named_parameters()}


def counted(shape: ModelShape, samples: int, checkpointing: str = "none") -> int:
    """Return what torch counts of a step on the meta device, where nothing is computed."""
    with torch.device("meta"):
        model = drafted(shape, None, checkpointing)
        batch = torch.zeros((samples, shape.seq_length), dtype=torch.long)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        mean_loss(model(batch), batch).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", [name for name, shape in MODELS.items() if not untrained(shape)])
def test_a_model_has_the_parameters_and_flops_that_the_plan_states(name: str) -> None:
    shape = MODELS[name]
    with torch.device("meta"):
        model = Transformer(shape)
    assert sum(item.numel() for item in model.parameters()) == parameters(shape)
    if shape.experts:  # whose tokens need a load: test_training_predictions.py
        return
    few = replace(shape, layers=2)  # one block more adds as much as the second one
    assert counted(few, 2) == dict(flops(few, 2))["counted"]
    assert flops_of_a_block(shape) == flops_of_a_block(few)


def flops_of_a_block(shape: ModelShape) -> int:
    """Return what the plan adds for the last block."""
    whole, rest = (dict(flops(one, 2))["counted"]
                   for one in (shape, replace(shape, layers=shape.layers - 1)))
    return whole - rest


@families
@pytest.mark.parametrize("checkpointing", CHECKPOINTINGS)
def test_papers_count_what_torch_runs_if_it_does_not_stop_early(
    shape: ModelShape, checkpointing: str,
) -> None:
    with set_checkpoint_early_stop(False):
        whole = counted(shape, 2, checkpointing)
    nominal = forward_again(shape, 2, checkpointing, "counted")
    assert whole == dict(flops(shape, 2))["counted"] + nominal
    of_weights = 6 * 2 * shape.seq_length * shape.layers * block_weights(shape)
    if checkpointing == "full":  # without attention
        assert forward_again(shape, 2, "full", "6n") / of_weights == pytest.approx(4 / 3 - 1)


def test_a_block_of_gpt_that_is_run_again_executes_11_parts_of_9() -> None:
    """8 of its 12 hidden x hidden: torch leaves out the last product."""
    shape = SMALL["gpt"]
    whole = 6 * 2 * shape.seq_length * shape.layers * block_weights(shape)
    executed = recomputed(shape, 2, "full", "6n")
    assert 1 + executed / whole == pytest.approx((6 + 2 * 8 / 12) / 6)


@families
def test_parts_have_the_parameters_that_the_plan_states(shape: ModelShape) -> None:
    whole = Transformer(shape)
    assert numel(whole.embedding) == elements(embedding_tensors(shape))
    assert numel(whole.blocks["1"]) == elements(block_tensors(shape))
    for blocks in (range(0, 1), range(1, 2), range(1, 3), range(0, 3)):
        first, last = blocks.start == 0, blocks.stop == shape.layers
        stage = Stage(blocks=tuple(blocks), first=first, last=last, alone=not first)
        assert numel(Transformer(shape, blocks)) == elements(stage.tensors(shape))


def numel(module: torch.nn.Module) -> int:
    return sum(item.numel() for item in module.parameters())


def elements(tensors: list[Tensor]) -> int:
    return sum(item.elements for item in tensors)


@families
@pytest.mark.parametrize("checkpointing", CHECKPOINTINGS)
def test_recomputation_is_counted_and_changes_nothing(
    shape: ModelShape, checkpointing: str,
) -> None:
    expected = (dict(flops(shape, 2))["counted"]
                + recomputed(shape, 2, checkpointing, "counted"))
    assert counted(shape, 2, checkpointing) == expected
    plain, again = made(shape), made(shape, checkpointing=checkpointing)
    batch = tokens(shape)
    for model in (plain, again):
        mean_loss(model(batch), batch).backward()
    assert all(torch.equal(gradient, gradients(plain)[name])
               for name, gradient in gradients(again).items())


@families
def test_stages_one_after_the_other_are_the_whole_model(shape: ModelShape) -> None:
    whole = made(shape)
    stages = [made(shape, blocks) for blocks in (range(0, 1), range(1, 2), range(2, 3))]
    x = batch = tokens(shape)
    for stage in stages:
        x = stage(x)
    assert torch.equal(x, whole(batch))
    mean_loss(x, batch).backward()
    mean_loss(whole(batch), batch).backward()
    summed: dict[str, torch.Tensor] = {}
    for stage in stages:
        for name, gradient in gradients(stage).items():
            plain = plain_name(shape, name)
            summed[plain] = summed.get(plain, 0) + gradient
    expected = gradients(whole)
    assert summed.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(summed[name], gradient, rtol=1e-12, atol=1e-15)


@families
def test_weights_depend_on_seed_and_name_only(shape: ModelShape) -> None:
    whole, stage = made(shape), made(shape, range(2, 3))
    same = dict(whole.named_parameters())
    assert all(torch.equal(item, same[plain_name(shape, name)])
               for name, item in stage.named_parameters())
    other = made(shape, seed=8)
    assert all(not torch.equal(item, same[name]) for name, item in other.named_parameters())
    assert (TIED[0] in dict(stage.named_parameters())) and (TIED[0] in same) != shape.tied


@families
def test_every_parameter_takes_part_in_the_loss(shape: ModelShape) -> None:
    model = made(shape)
    batch = tokens(shape)
    loss = mean_loss(model(batch), batch)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(torch.tensor(shape.vocab).log().item(), rel=0.2)
    for name, gradient in gradients(model).items():
        # A constant added to all keys of a query changes no weight that softmax gives them.
        assert name.endswith("attention.k.bias") or float(gradient.abs().max()) > 1e-9, name


@families
def test_a_decoder_sees_no_later_token_and_an_encoder_does(shape: ModelShape) -> None:
    model = made(shape)
    batch, changed = tokens(shape), tokens(shape)
    changed[:, -1] = (changed[:, -1] + 1) % shape.vocab
    with torch.no_grad():
        before, after = model(batch)[:, :-1], model(changed)[:, :-1]
    assert torch.equal(before, after) == shape.causal


def test_grouped_heads_are_as_if_each_query_had_its_own_copy() -> None:
    shape = SMALL["llama"]
    grouped = made(shape)
    full = made(replace(shape, kv_heads=shape.heads))
    state = grouped.state_dict()
    for name in [key for key in state if key.endswith(("attention.k.weight",
                                                       "attention.v.weight"))]:
        heads = state[name].unflatten(0, (shape.kv_heads, shape.head_dim))
        state[name] = heads.repeat_interleave(shape.heads // shape.kv_heads, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    batch = tokens(shape)
    torch.testing.assert_close(grouped(batch), full(batch), rtol=1e-12, atol=1e-14)


def test_turned_heads_compare_by_their_distance() -> None:
    rotation = RotaryEmbedding(replace(SMALL["llama"], head_extent=8), torch.arange(16))
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 1, 8, dtype=torch.float64, generator=generator)
    scores = rotation.turn(query.expand(16, 8)) @ rotation.turn(key.expand(16, 8)).T
    assert float(scores[0, 0]) == pytest.approx(float(query @ key.T))
    for distance in range(-8, 9):
        line = scores.diagonal(distance)
        torch.testing.assert_close(line, line[:1].expand_as(line), rtol=0, atol=1e-5)
    assert float((scores[0] - scores[0, 0]).abs().max()) > 0.1


@families
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_come_near(shape: ModelShape, dtype: torch.dtype) -> None:
    batch = tokens(shape)
    exact = made(shape)(batch)
    narrow = made(shape).to(dtype)(batch)
    assert narrow.dtype == dtype
    error = (narrow.double() - exact).abs().max() / exact.abs().max()
    assert float(error.detach()) < 16 * torch.finfo(dtype).eps
    assert mean_loss(narrow, batch).dtype == torch.float32


def mixed_by_hand(mixture: MixtureOfExperts, tokens: torch.Tensor, capacity: int) -> torch.Tensor:
    stack, taken, rows = mixture.experts, [0] * 4, []
    for token in tokens:
        best = mixture.router(token).softmax(-1).topk(2)
        row = torch.zeros_like(token)
        for weight, expert in zip(best.values / best.values.sum(), best.indices, strict=True):
            gate, up, down = (one[expert] for one in (stack.gate, stack.up, stack.down))
            if not capacity or taken[expert] < capacity:
                row += weight * (down @ (F.silu(gate @ token) * (up @ token)))
            taken[expert] += 1
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("dedup", ["rank", "expert"])
@pytest.mark.parametrize("capacity", [0, 3])
@torch.no_grad()
def test_a_router_sends_tokens_to_its_highest_scores(dedup: str, capacity: int) -> None:
    experts = Experts(4, 2, 16)
    mixture = MixtureOfExperts(SMALL["llama"], experts, None).double()
    for seed, weight in enumerate(mixture.parameters()):
        weight.normal_(generator=torch.Generator().manual_seed(seed))
    x = torch.randn(2, 8, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    spread = Spread(1, Load("balanced"), dedup, Fraction(0), router=True)

    def routes() -> RouterRoutes:
        return RouterRoutes(experts, spread, 8, capacity, Exchange(None))

    mixture.routes = free = routes()
    free.scores = []
    expected = torch.stack([mixed_by_hand(mixture, one, capacity) for one in x])
    assert torch.allclose(mixture(x), expected, rtol=1e-12)
    assert free.seen and int(free.seen[0].sum()) <= 16 and free.seen[0].max() <= (capacity or 8)
    mixture.routes = led = routes()
    led.expected = free.scores
    assert torch.equal(mixture(x), mixture(x)) and led.stray == 0
    mixture.router.weight.neg_()  # the worst experts instead: told, and those of `expected` taken
    mixture(x)
    assert led.stray > 0.5
    assert [table.shape for table in free.scores] == [(8, 4)] * 2
