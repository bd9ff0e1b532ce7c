from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpcbench.config.axes import DTYPE_BYTES, FLOATING_DTYPES, SPLITS
from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.primitive.plan.dispatch import EP_DISPATCH_COMBINE
from hpcbench.kinds.primitive.plan.implementations import load_registry, tokens_of_experts
from hpcbench.kinds.primitive.plan.planner import make_workload
from hpcbench.kinds.primitive.plan.spec import LAYERS, Problem, Work, share_on, undivided
from hpcbench.kinds.primitive.plan.workload import Primitive, primitive_of
from hpcbench.operations.collectives import weights
from hpcbench.operations.loads import Load, route
from hpcbench.operations.models import MODELS, layer_of
from hpcbench.operations.token_copies import ExpertTables, copies_to
from hpcbench.plan.case import Plan, plan_from_json, plan_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.report.plan_lines import plan_document, plan_header

REGISTRY = load_registry()
BLOCK: dict[str, Any] = {"kind": "primitive", "primitive": "tp_columnwise",
                         "implementations": "torch"}
GIVEN: dict[str, Any] = {"m": 64, "n": 32, "k": 16}


def plan_of(*blocks: dict[str, Any], ranks: int = 4, **top: Any) -> Plan:
    whole = [BLOCK | block for block in blocks]
    return make_plan(check_config({"benchmarks": whole} | top, "c.json"), ranks)


def works(*blocks: dict[str, Any], ranks: int = 4) -> list[Primitive]:
    return [primitive_of(case) for case in plan_of(*blocks, ranks=ranks).cases]


def refusal(block: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(block)
    return str(caught.value)


def test_lists_are_axes_and_each_set_of_options_is_multiplied_out() -> None:
    sets = [{"chunks": [2, 4]}, {"chunks": 8, "order": ["AG_before", "AG_after"]}]
    found = works(GIVEN | {"m": [64, 128], "implementations": {"chunked_pipeline": sets}})
    assert [(w.m, w.order, w.option("chunks")) for w in found] == [
        (m, *rest) for m in (64, 128)
        for rest in (("AG_before", 2), ("AG_before", 4), ("AG_before", 8), ("AG_after", 8))]


def test_options_of_a_set_win_over_those_of_the_block_and_those_over_defaults() -> None:
    block = GIVEN | {"options": {"chunks": 8, "weight": ["sharded", "replicated"]},
                     "implementations": {"torch": {}, "chunked_pipeline": [{"chunks": 2}, {}]}}
    assert [(w.implementation, w.options) for w in works(block)] == [
        ("torch", (("weight", "sharded"),)), ("torch", (("weight", "replicated"),)),
        *(("chunked_pipeline", (("chunks", chunks), ("weight", weight)))
          for chunks in (2, 8) for weight in ("sharded", "replicated"))]


def test_an_option_that_the_order_decides_is_no_axis() -> None:
    plan = plan_of(GIVEN | {"order": ["AG_before", "AG_after"],
                            "options": {"weight": ["sharded", "replicated"]}})
    assert [(primitive_of(c).order, primitive_of(c).option("weight")) for c in plan.cases] == [
        ("AG_before", "sharded"), ("AG_before", "replicated"), ("AG_after", "replicated")]
    assert plan.duplicates == 1
    (work,) = works(GIVEN | {"order": "AG_after", "options": {"weight": ["sharded", "replicated"]}})
    assert work.option("weight") == "replicated"


def test_a_declared_network_is_that_of_the_estimate() -> None:
    block = GIVEN | {"implementations": "comm_only", "m": 2**16, "k": 1024, "iterations": 9,
                     "validate": False}
    (slow,), (fast,) = (plan_of(block, hardware={"network_bandwidth_gbps": gbps}).cases
                        for gbps in (8, 800))
    assert slow.estimate_s > 2 * fast.estimate_s > 0


def test_another_tools_name_is_the_same_implementation() -> None:
    plan = plan_of(GIVEN | {"implementations": ["torch", "pytorch"]})
    assert [primitive_of(case).implementation for case in plan.cases] == ["torch"]
    assert plan.duplicates == 1


def test_a_backend_of_a_set_replaces_those_of_the_block() -> None:
    plan = plan_of(GIVEN | {"backend": ["gloo", "mpi"], "implementations": {
        "torch": {}, "functional": {"backend": "nccl"}}})
    assert {(primitive_of(c).implementation, c.backend) for c in plan.cases} == {
        ("torch", "gloo"), ("torch", "mpi"), ("functional", "nccl")}


def test_the_same_problem_given_and_derived_is_one_case() -> None:
    given = {"m": 64, "n": 2304, "k": 768}
    derived = {"model": "gpt2", "layer": "attention_qkv", "tokens": 64}
    plan = plan_of(given, derived)
    assert len(plan.cases) == 1 and plan.duplicates == 1
    for both in (plan, plan_of(derived, given)):
        assert [primitive_of(case).shape for case in both.cases] == ["gpt2 attention_qkv tp=4"]


def test_models_of_equal_extents_are_one_case_that_names_them_all() -> None:
    block = {"tokens": 64, "primitive": "tp_mlp",
             "model": ["gpt2-medium", "bert-large", "transformer-medium"]}
    plan = plan_of(block, block)
    assert [primitive_of(case).shape for case in plan.cases] == [
        "gpt2-medium, bert-large, transformer-medium mlp tp=4"] and plan.duplicates == 5
    whole = {"model": "gpt2", "tokens": 64, "primitive": "dp_allreduce"}
    plan = plan_of(whole | {"layer": "mlp_up"},
                   whole | {"layer": "mlp_up", "degree": 1, "model": "transformer-small"},
                   GIVEN | {"primitive": "dp_allreduce", "n": 3072, "k": 768})
    assert [primitive_of(case).shape for case in plan.cases] == [
        "gpt2, transformer-small mlp_up tp=1"]


@pytest.mark.parametrize(("block", "reason"), [
    (GIVEN | {"m": 66}, "m=66 cannot be divided evenly among 4 ranks"),
    (GIVEN | {"m": 66, "n": 3}, "m=66, n=3 cannot be divided evenly among 4 ranks"),
    (GIVEN | {"n": 63, "implementations": {"compute_only": {"size": "unsharded"}}},
     "n=63 cannot be divided evenly among 4 ranks"),
    (GIVEN | {"dtype": "int32"}, "matrix products are of floating dtypes, not of int32"),
    (GIVEN | {"world_size": 8}, "world_size 8 is more than the job's 4 ranks"),
    (GIVEN | {"backend": "nccl", "device": "cpu"}, "nccl does not run on cpu, only on cuda"),
    (GIVEN | {"implementations": {"chunked_pipeline": {"chunks": 3}}},
     "16 rows of a rank cannot be cut into 3 equal chunks"),
    (GIVEN | {"primitive": "tp_rowwise", "order": "AR_after", "implementations": "p2p_ring"},
     "p2p_ring has no order AR_after of tp_rowwise"),
    (GIVEN | {"primitive": "ep_all_to_all", "implementations": "dtensor"},
     "no dtensor of ep_all_to_all: DTensor has no placement"),
    (GIVEN | {"implementations": {"fuser": {"algorithm": "p2p_pipeline", "s": 2}}},
     "no fuser of tp_columnwise: the plug-in hpcbench-nvfuser gives it: "
     "pip install ./plugins/hpcbench-nvfuser"),
    (GIVEN | {"primitive": "tp_mlp", "implementations": "jax"},
     "no jax of tp_mlp: nobody has written it"),
    ({"model": "gpt2-xl", "layer": "attention_qkv", "tokens": 64},
     "25 heads and 25 key-value heads of gpt2-xl cannot be divided evenly among 4 ranks"),
    ({"model": "gpt2", "layer": "mlp_down", "tokens": 64},
     "tp_columnwise takes its shape from attention_qkv or mlp_up, not from mlp_down"),
    ({"model": "llama3-8b", "layer": "attention_qkv", "tokens": 64, "degree": 16},
     "8 key-value heads of llama3-8b cannot be divided evenly among 16 ranks"),
])
def test_what_can_run_nowhere_is_a_skip_with_its_reason(block: dict[str, Any], reason: str) -> None:
    (case,) = plan_of(block).cases
    assert case.skip is not None and reason in case.skip
    assert case.estimate_s == 0 and not case.needs


def test_a_shape_that_does_not_fit_is_no_duplicate_of_one_that_does() -> None:
    plan = plan_of({"model": "gpt2", "layer": "attention_qkv", "tokens": 64, "degree": [4, 8]})
    assert [(primitive_of(case).shape, case.skip is None) for case in plan.cases] == [
        ("gpt2 attention_qkv tp=4", True), ("gpt2 attention_qkv tp=8", False)]


@pytest.mark.parametrize(("block", "message"), [
    ({}, "benchmarks[0]: no shape; give m, n and k, or model and tokens"),
    ({"m": 4}, "benchmarks[0]: n, k missing; give m, n and k"),
    (GIVEN | {"model": "gpt2"},
     "benchmarks[0]: model and m, n, k both give the shape; keep one of them"),
    ({"model": "gpt2"}, "benchmarks[0]: model needs tokens: the rows of all ranks"),
    (GIVEN | {"layer": "mlp"},
     "benchmarks[0]: layer without model; give model, or m, n and k alone"),
    ({"model": "gpt-2", "tokens": 4}, 'primitive-1: model: "gpt-2" is not known; did you mean "g'),
    ({"model": "gpt2", "tokens": 4, "layer": "mlpup"}, 'layer: "mlpup" is not known; did you m'),
    (GIVEN | {"m": 0}, "benchmarks[0].m: must be at least 1, not 0"),
    ({"model": "gpt2", "tokens": 4, "degree": 0}, "benchmarks[0].degree: 0 is not a world size"),
    (GIVEN | {"primitive": "tp_colwise"},
     'primitive-1: primitive: "tp_colwise" is not known; did you mean "tp_columnwise"?'),
    (GIVEN | {"implementations": "tourch"}, 'implementations.tourch: "tourch" is not known; did'),
    (GIVEN | {"implementations": {"torch": {"chunks": 2}}},
     'implementations.torch: "chunks" is not known; allowed: weight, backend, order'),
    (GIVEN | {"implementations": {"chunked_pipeline": {"chunks": [2, 0]}}},
     "implementations.chunked_pipeline.chunks: 0 must be a whole number from 1"),
    (GIVEN | {"implementations": {"torch": {"order": "RS_after"}}},
     'implementations.torch.order: "RS_after" is not known; did you mean "AG_after"? allowed:'),
    (GIVEN | {"options": {"weight": "split"}}, 'options.weight: "split" is not known; allowed: sh'),
    (GIVEN | {"order": "AG_after", "options": {"weight": "sharded"}},
     "torch: weight can only be replicated where the order is AG_after; leave it out, or give an"),
    (GIVEN | {"implementations": {"torch": {"order": "AG_after", "weight": "sharded"}}},
     "torch: weight can only be replicated where the order is AG_after; leave it out, or give an"),
    (GIVEN | {"implementations": {}}, "no implementation is named; give at least one"),
    (GIVEN | {"implementations": {"torch": False}}, "torch: false is not a mapping of options; w"),
    (GIVEN | {"implementations": {"torch": 0}}, "torch: 0 is not a mapping of options; write"),
    (GIVEN | {"implementations": {"torch": ""}}, 'torch: "" is not a mapping of options; write'),
    (GIVEN | {"implementations": {"torch": {"weight": []}}}, "torch.weight: the list is empty"),
    (GIVEN | {"implementations": {"torch": {"weight": 1.5}}}, 'torch.weight: "1.5" is not known'),
])
def test_one_error_states_where_what_and_how(block: dict[str, Any], message: str) -> None:
    assert message in refusal(block)


def test_an_implementation_without_options_may_stand_alone_in_yaml() -> None:
    assert len(works(GIVEN | {"implementations": {"torch": None, "functional": {}}})) == 2


def test_a_plan_of_primitives_survives_json() -> None:
    plan = plan_of(GIVEN | {"implementations": {"fuser": {}, "chunked_pipeline": {"chunks": 2}}},
                   {"model": "gpt2", "tokens": 64})
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


# -- shapes ----------------------------------------------------------------------------------


def test_a_model_without_layer_gives_every_layer_that_the_primitive_takes() -> None:
    for name, spec in REGISTRY.primitives.items():
        found = works({"primitive": name, "model": "llama3-8b", "tokens": 64})
        assert [w.shape.split()[1] for w in found] == list(spec.layers) != []
        assert set(spec.layers) <= set(LAYERS)


@pytest.mark.parametrize(("layer", "n", "k"), [
    ("attention_qkv", 6144, 4096), ("attention_out", 4096, 4096), ("mlp_up", 28672, 4096),
    ("mlp_down", 4096, 14336), ("mlp", 14336, 4096)])
def test_the_layers_of_llama3_8b(layer: str, n: int, k: int) -> None:
    assert layer_of("llama3-8b", layer)[:2] == (n, k)


@pytest.mark.parametrize(("model", "layers", "million"), [
    ("gpt2", 12, 85), ("gpt2-medium", 24, 302), ("gpt2-large", 36, 708), ("gpt2-xl", 48, 1475),
    ("bert-large", 24, 302), ("transformer-small", 12, 85), ("transformer-medium", 24, 302),
    ("transformer-large", 24, 1208), ("mistral-7b", 32, 6979), ("llama3-8b", 32, 6979),
    ("llama3-70b", 80, 68451)])
def test_the_layers_have_as_many_weights_as_the_model_without_embeddings(
    model: str, layers: int, million: int,
) -> None:
    """Published totals less the embedding tables: 8.03 B - 2 x 128256 x 4096 for llama3-8b."""
    block = [layer_of(model, layer) for layer in LAYERS if layer != "mlp"]
    assert round(layers * sum(weight.n * weight.k for weight in block) / 1e6) == million
    assert MODELS[model].hidden in (block[0].k, MODELS[model].heads * MODELS[model].head_dim)


@given(st.sampled_from(sorted(MODELS)), st.sampled_from(LAYERS), st.sampled_from([1, 2, 4, 8]),
       st.integers(1, 64))
def test_each_rank_has_the_share_of_the_named_degree(
    model: str, layer: str, degree: int, ranks: int,
) -> None:
    assume(undivided(model, layer, degree) is None)
    whole = layer_of(model, layer)
    n, k = share_on(model, layer, degree, ranks)
    assert n * k * degree == whole.n * whole.k * ranks
    assert (k == whole.k) if whole.divided == "n" else (n == whole.n)
    assert share_on(model, layer, degree, degree) == (whole.n, whole.k)


@pytest.mark.parametrize(("primitive", "degree", "n", "k"), [
    ("tp_columnwise", None, 3072, 768), ("tp_columnwise", "all", 3072, 768),
    ("tp_columnwise", 8, 1536, 768), ("tp_columnwise", 1, 12288, 768),
    ("dp_allreduce", None, 3072, 768), ("dp_allreduce", 8, 384, 768),
    ("dp_allreduce", "all", 768, 768), ("ep_all_to_all", 2, 1536, 768)])
def test_degree(primitive: str, degree: int | str | None, n: int, k: int) -> None:
    named = {} if degree is None else {"degree": degree}
    (work,) = works({"primitive": primitive, "model": "gpt2", "layer": "mlp_up", "tokens": 64}
                    | named)
    assert (work.m, work.n, work.k) == (64, n, k)


# -- what a call does, counted another way ------------------------------------------------------


def products(p: Problem, name: str, rank: int) -> Iterator[tuple[int, int, int]]:
    """Yield (rows, inner, columns) of the products that a rank forms."""
    d, o = p.ranks, p.options
    if name == "tp_columnwise":
        whole = o["weight"] == "replicated"
        yield (p.m // d, p.k, p.n) if p.order == "AG_after" else (p.m, p.k, p.n if whole else
                                                                   p.n // d)
    elif name == "tp_rowwise":
        yield p.m, p.k // d, p.n
    elif name == "tp_mlp":
        yield p.m, p.k, p.n // d
        yield p.m, p.n // d, p.k
    elif name == "dp_allreduce":
        yield from [(p.n, p.m // d, p.k)] * int(o["layers"])
    else:
        yield sum(tokens_to(rank, p) for _ in range(d)), p.k, p.n


def tokens_to(expert: int, p: Problem) -> int:
    """Return how many of one rank's tokens go to an expert."""
    d, tokens = p.ranks, p.m // p.ranks
    share = {"even": [1] * d, "linear": list(range(1, d + 1)), "one_heavy": [d] + [1] * (d - 1),
             "zero": [1] * (d - 1) + [0]}[str(p.options["split"])]
    exact = [Fraction(tokens * part, sum(share)) for part in share]
    over = tokens - sum(map(int, exact))
    first = sorted(range(d), key=lambda one: int(exact[one]) - exact[one])[:over]
    return int(exact[expert]) + (expert in first)


@pytest.mark.parametrize(("split", "ranks", "tokens", "counts"), [
    ("even", 4, 7, (2, 2, 2, 1)), ("even", 64, 127, (2,) * 63 + (1,)), ("even", 3, 0, (0, 0, 0)),
    ("linear", 8, 30, (1, 2, 2, 3, 4, 5, 6, 7)), ("one_heavy", 4, 9, (5, 2, 1, 1)),
    ("zero", 4, 8, (3, 3, 2, 0))])
def test_what_is_left_over_goes_to_those_who_lack_most(
    split: str, ranks: int, tokens: int, counts: tuple[int, ...],
) -> None:
    assert tokens_of_experts(split, ranks, tokens) == counts


@given(st.sampled_from(SPLITS), st.integers(1, 70), st.integers(0, 500))
def test_every_expert_gets_its_share_to_less_than_a_token(
    split: str, ranks: int, tokens: int,
) -> None:
    shares = weights(split, ranks)
    counts = tokens_of_experts(split, ranks, tokens)
    assert sum(counts) == tokens
    assert all(abs(count - Fraction(tokens * share, sum(shares))) < 1
               and (share or not count) for count, share in zip(counts, shares, strict=True))


def sent(p: Problem, name: str) -> Fraction:
    """Return the bytes that a rank puts on the wire in ring algorithms (nccl-tests' busbw).

    Of all_to_all: the most that any rank sends or receives from others.
    """
    d, size = p.ranks, p.element_bytes
    ring = Fraction(d - 1, d) * size
    if name == "tp_columnwise":
        return ring * p.m * (p.k if p.order == "AG_before" else p.n)
    if name == "tp_rowwise":
        return ring * p.m * p.n * (1 if p.order == "RS_after" else 2)
    if name == "tp_mlp":
        return ring * 2 * p.m * p.k
    if name == "dp_allreduce":
        return ring * 2 * p.n * p.k * int(p.options["layers"])
    moved = [max((d - 1) * tokens_to(rank, p), p.m // d - tokens_to(rank, p)) for rank in range(d)]
    return Fraction(max(moved) * (p.k + p.n) * size)


@st.composite
def problems(draw: st.DrawFn) -> tuple[str, Problem]:
    name = draw(st.sampled_from(sorted(REGISTRY.primitives.keys() - {EP_DISPATCH_COMBINE.name})))
    spec, ranks = REGISTRY.primitives[name], draw(st.integers(2, 9))
    order = draw(st.sampled_from(spec.orders))
    choices = {"weight": ["sharded", "replicated"], "activation": ["relu", "gelu"],
               "layers": [1, 3], "split": SPLITS}
    options = {option: draw(st.sampled_from(choices[option])) for option in spec.options}
    options |= spec.decided.get(order, {})
    m, n, k = (ranks * draw(st.integers(1, 40)) for _ in range(3))
    return name, Problem(m, n, k, draw(st.sampled_from(FLOATING_DTYPES)), ranks, order, options)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["balanced", "zipf:1", "max_over_mean:1.4,seed=2"]),
       st.sampled_from(["rank", "expert"]), st.sampled_from(["fp8", "bf16"]), st.integers(2, 6))
def test_dispatched_bytes_and_flops_are_those_of_the_routing(
    load: str, dedup: str, dispatch: str, ranks: int
) -> None:
    options = {"load": load, "dedup": dedup, "experts": 2 * ranks, "top_k": 2, "product": "mlp",
               "dispatch": dispatch, "combine": "dtype"}
    problem = Problem(24 * ranks, 10, 16, "fp32", ranks, "dispatch_combine", options)
    routing = route(Load.from_text(load), ranks, 24, 2 * ranks, 2)
    tables = ExpertTables(routing)
    rows = [[len(copies_to(tables.of(sender), receiver, 2, dedup).token)
             for receiver in range(ranks)] for sender in range(ranks)]
    ways = [max(sum(row[rank] for row in rows), sum(rows[rank])) for rank in range(ranks)]
    wires = [way - rows[rank][rank] for rank, way in enumerate(ways)]
    counts, row_bytes = routing.of_experts(), 16 * (4 + (1 if dispatch == "fp8" else 2))
    work = workload(EP_DISPATCH_COMBINE.name, "torch", problem)
    assert (work.size_bytes, work.wire_bytes) == (max(ways) * row_bytes, max(wires) * row_bytes)
    assert work.total_flops == 4 * 10 * 16 * sum(counts)
    assert work.flops == 4 * 10 * 16 * max(map(sum, zip(counts[::2], counts[1::2], strict=True)))
    assert dict(work.loads)["expert_tokens_max"] == max(counts)
    assert work.features.has_phases


@pytest.mark.parametrize(("options", "more"), [
    ({"experts": 9}, {}), ({"top_k": 9}, {}), ({"load": "max_over_mean:5"}, {}),
    ({"dispatch": "fp32"}, {"dtype": "bf16"}), ({"load": "matrix"}, {}),
    ({"dedup": "expert"}, {"implementations": "allgather"}),
    ({}, {"implementations": {"hierarchical": {"node_ranks": 3}}}),
    *(({}, {"implementations": name, "dtype": dtype}) for name in ("deep_ep", "nccl_ep")
      for dtype in ("bf16", "fp32")), ({}, {"mode": "pipelined"}),
    ({}, {"implementations": "comm_only"})])
def test_dispatches_that_cannot_be_are_skips(options: dict[str, Any], more: dict[str, Any]) -> None:
    plan = plan_of({**GIVEN, "primitive": EP_DISPATCH_COMBINE.name, "implementations": "torch",
                    "options": options, **more}, ranks=4)
    assert [bool(case.skip) for case in plan.cases] == [True]


@pytest.mark.parametrize("load", ["zipf", "max_over_mean:0.1", "even", 3, "lognormal:-1"])
def test_other_loads_are_errors(load: str | int) -> None:
    with pytest.raises(ConfigError):
        plan_of({**GIVEN, "primitive": EP_DISPATCH_COMBINE.name, "implementations": "torch",
                 "options": {"load": load}})


def workload(name: str, implementation: str, problem: Problem, **options: Any) -> Primitive:
    spec = REGISTRY.implementation(implementation, name)
    assert spec is not None
    whole = Problem(problem.m, problem.n, problem.k, problem.dtype, problem.ranks, problem.order,
                    {**problem.options, **options})
    work, skip = make_workload(REGISTRY.primitives[name], spec, whole)
    assert skip is None
    return work


@settings(max_examples=300)
@given(problems())
def test_flops_and_bytes_are_those_of_the_products_and_the_ring(case: tuple[str, Problem]) -> None:
    name, problem = case
    each = [sum(2 * rows * inner * columns for rows, inner, columns in
                products(problem, name, rank)) for rank in range(problem.ranks)]
    work = workload(name, "torch", problem)
    assert (work.flops, work.total_flops) == (max(each), sum(each))
    assert abs(work.wire_bytes - sent(problem, name)) < 2
    assert work.size_bytes % DTYPE_BYTES[problem.dtype] == 0


@settings(max_examples=100)
@given(problems())
def test_a_part_is_credited_with_what_it_does_only(case: tuple[str, Problem]) -> None:
    name, problem = case
    both = workload(name, "torch", problem)
    product = workload(name, "compute_only", problem, size="sharded")
    moved = workload(name, "comm_only", problem)
    assert (product.flops, product.total_flops) == (both.flops, both.total_flops)
    assert product.wire_bytes == product.size_bytes == 0 and product.calls == ()
    assert moved.flops == moved.total_flops == 0
    assert (moved.wire_bytes, moved.calls) == (both.wire_bytes, both.calls)
    whole = workload(name, "compute_only", problem, size="unsharded")
    assert whole.total_flops == problem.ranks * whole.flops
    assert whole.flops >= both.flops and whole.flops * problem.ranks >= both.total_flops


def test_one_rank_sends_nothing() -> None:
    for name, spec in REGISTRY.primitives.items():
        defaults = {option: values.default for option, values in spec.options.items()}
        for order in spec.orders:
            work: Work = spec.work(Problem(8, 6, 4, "fp32", 1, order, defaults))
            assert sum(traffic.wire_bytes for traffic in work.traffic) == 0, name


@pytest.mark.parametrize(("block", "peak_mb"), [
    ({"primitive": "tp_rowwise", "order": "AR_after", "m": 4096, "n": 4096, "k": 512}, 368),
    ({"primitive": "tp_mlp", "order": "AR_after", "m": 2048, "n": 2048, "k": 1024,
      "options": {"activation": "gelu"}}, 204),
    ({"primitive": "dp_allreduce", "m": 2048, "n": 1024, "k": 1024,
      "implementations": "functional"}, 187),
    ({"primitive": "ep_all_to_all", "m": 8192, "n": 512, "k": 512, "world_size": 64}, 93),
])
def test_no_case_takes_more_memory_than_planned(block: dict[str, Any], peak_mb: int) -> None:
    """The peaks were measured: how much one rank grew by set-up, two calls and their checks."""
    (case,) = plan_of({"dtype": "bf16", "world_size": 4} | block, ranks=64).cases
    assert peak_mb <= case.host_needs("cpu") / 1e6 < 2 * peak_mb


def test_a_reference_is_made_on_the_host_and_takes_no_memory_of_a_gpu() -> None:
    huge = {"m": 49152, "n": 49152, "k": 49152, "dtype": "bf16", "backend": "nccl"}
    small = {"hardware": {"device_type": "cuda", "memory_per_device_gb": 80}}
    (checked,) = plan_of(huge, ranks=8, **small).cases
    (unchecked,) = plan_of(huge | {"validate": False}, ranks=8, **small).cases
    assert checked.skip is None and unchecked.skip is None
    assert 6.6e9 < checked.memory_bytes == unchecked.memory_bytes < 8e9
    assert unchecked.host_needs("cuda") < checked.host_needs("cuda")
    assert checked.host_needs("cpu") == checked.memory_bytes + checked.host_bytes


def test_an_inexact_reference_and_that_of_communication_alone_take_time() -> None:
    """Integers are exact, gelu of fp32 has a bound: its reference takes twice the flops."""
    def seconds(**block: Any) -> float:
        large = {"m": 4096, "n": 4096, "k": 256, "dtype": "bf16", "primitive": "tp_rowwise",
                 "order": "AR_after", "iterations": 1}
        times = [plan_of(large | block | {"validate": validate}, ranks=2).cases[0].estimate_s
                 for validate in (True, False)]
        return times[0] - times[1]

    assert seconds() == pytest.approx(2 * seconds(k=128))
    assert seconds(implementations="comm_only") == pytest.approx(seconds())
    assert seconds(implementations="compute_only") == pytest.approx(seconds() / 2)
    mlp = {"primitive": "tp_mlp", "dtype": "fp32"}
    exact = seconds(**mlp, options={"activation": "relu"})
    assert seconds(**mlp, options={"activation": "gelu"}) == pytest.approx(2 * exact)


def test_the_plan_names_which_cases_do_not_fit_their_time_limit() -> None:
    """And the keys that give them time, of a block that has its own; also in the JSON."""
    large = {"m": 4096, "n": 4096, "k": 2048, "dtype": "bf16", "order": "AG_after",
             "iterations": 1, "warmup": 0}

    def given(*blocks: dict[str, Any], timeout_s: float = 600) -> dict[str, str]:
        plan = plan_of(*(large | block for block in blocks), ranks=2, launch={
            "timeout_s": timeout_s})
        told = [line.plain for line in plan_header(plan) if "may time out" in line.plain]
        document = plan_document(plan)
        assert [f"note: {note}" for note in document["notes"]] == told
        late = [case.estimate_s > case.timeout_s for case in plan.cases]
        assert [bool(case["note"]) for case in document["cases"]] == late
        words = "".join(told).split()
        return dict(word.split("=") for at, word in enumerate(words) if words[at - 1] == "--set")

    assert given({}, timeout_s=5) == {"launch.timeout_s": "11"}
    assert given({"timeout_s": 5}) == {"benchmarks.0.timeout_s": "11"}
    assert given({"validate": False}, {"timeout_s": 5, "name": "own"}) == {
        "benchmarks.1.timeout_s": "11"}
    assert given({}, {"timeout_s": 5, "k": 2049}, timeout_s=5) == {
        "launch.timeout_s": "11", "benchmarks.1.timeout_s": "11"}
    assert given({"timeout_s": 5, "validate": False}) == given({"timeout_s": 600}) == {}


@pytest.mark.parametrize(("env", "most"), [({}, "32"), ({"NCCL_MAX_CTAS": "16"}, "16")])
def test_the_kernel_that_waits_for_nccl_bounds_its_blocks(env: dict[str, str], most: str) -> None:
    block = {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64,
             "backend": "nccl", "implementations": ["torch", "triton"], "env": env}
    plain, kernel = make_plan(check_config({"benchmarks": [block]}, "test"), 2).cases
    assert dict(plain.env) == env and dict(kernel.env) == {"NCCL_MAX_CTAS": most}
