"""A right result of a primitive passes its check, and a wrong one does not, at any size."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbench.backends.devices import add_in_fp32
from hpcbench.kinds.primitive.plan.demands import GELU_INPUT, SIGNIFICAND_BITS, is_exact
from hpcbench.kinds.primitive.run.dispatch_inputs import DispatchInputs
from hpcbench.kinds.primitive.run.implementations.base import PrimitiveOperation
from hpcbench.kinds.primitive.run.implementations.dispatch import NcclEp
from hpcbench.kinds.primitive.run.operands import Expected, compare
from hpcbench.operations.data import DTYPES
from workloads.primitive_ranks import (
    ORDERS,
    REGISTRY,
    Shape,
    place_of,
    ranks_of,
    result,
    swap_shards,
    workload_of,
)

ALL = pytest.mark.parametrize(("primitive", "order"), ORDERS)
DTYPE = pytest.mark.parametrize("dtype", SIGNIFICAND_BITS)
LARGE = Shape(32, 24, 1024, 4)
TALL = Shape(1024, 24, 16, 4)
SHAPES = [Shape(2, 4, 2, 2), Shape(4, 8, 4, 4), Shape(8, 16, 8, 4), Shape(4, 12, 8, 4),
          Shape(33, 9, 3, 3), Shape(16, 24, 32, 8), Shape(70, 35, 63, 7), Shape(20, 320, 45, 5),
          LARGE, TALL]


@cache
def made(primitive: str, order: str, dtype: str, shape: Shape) -> tuple[Any, ...]:
    """Return the inputs of every rank, drawn once for all tests: that takes most of their time."""
    return tuple(ranks_of(primitive, order, dtype, shape))


def next_number(result: torch.Tensor, index: int) -> torch.Tensor:
    """Return a copy in which one element is the dtype's next number above what it was."""
    changed = result.clone()
    flat = changed.reshape(-1)
    flat[index] = torch.nextafter(flat[index], torch.tensor(torch.inf, dtype=flat.dtype))
    return changed


@ALL
@DTYPE
def test_the_plan_knows_which_results_are_exact(primitive: str, order: str, dtype: str) -> None:
    for shape in SHAPES:
        own = made(primitive, order, dtype, shape)[0]
        assert is_exact(own.spec, shape.ranks) == (own.expected("both").bound is None), shape


@pytest.mark.parametrize(("ranks", "terms"), [(16, 3), (24, 3), (64, 3), (160, 1)])
@pytest.mark.parametrize(("primitive", "options"), [
    ("tp_rowwise", {}), ("dp_allreduce", {"layers": 1}), ("tp_mlp", {"activation": "relu"}),
    ("tp_mlp", {"activation": "gelu"})])
def test_no_partial_sum_of_many_ranks_can_be_lost_in_bf16(
    ranks: int, terms: int, primitive: str, options: dict[str, Any],
) -> None:
    """Whose ever it is; bounds of so many roundings would be as large as a partial sum."""
    extent = ranks * terms
    shape = Shape(extent if primitive == "dp_allreduce" else 8, extent, extent, ranks)
    every = ranks_of(primitive, "AR_after", "bf16", shape, **options)
    expected = every[0].expected("both")
    right = result(every, 0, torch.bfloat16)
    assert expected.bound is None and compare(right, expected) is None
    scaled = compare(right * 1.01, expected)
    assert scaled and scaled.n_wrong == right.numel()
    for lost in (0, ranks // 2, ranks - 1):
        kept = [every[0], *every[1:]]
        kept[lost], kept[-1] = kept[-1], kept[lost]
        assert compare(result(kept, 0, torch.bfloat16, dropped=True), expected), lost


SUMMED = ("tp_rowwise", "tp_mlp", "dp_allreduce")
"""Primitives whose ranks' partial sums are added."""


def faults_are_found(ranks: Sequence[Any], me: int, dtype: str, index: int) -> None:
    """A right result passes; a factor, a changed element and a lost part of a sum are seen."""
    expected, right = ranks[me].expected("both"), result(ranks, me, DTYPES[dtype])
    assert expected.bound is None and compare(right, expected) is None
    assert torch.equal(expected.value.long(), result(ranks, me, torch.int64))
    assert torch.equal(expected.value.long().double(), expected.value)
    for factor in (1.01, 0.99, 1 + 2 * torch.finfo(DTYPES[dtype]).eps, -1):
        scaled = compare(right * factor, expected)
        assert scaled and scaled.n_wrong == right.numel(), factor
    found = compare(next_number(right, index), expected)
    assert found and (found.n_wrong, found.first_index) == (1, index)
    if len(ranks) > 1:
        dropped = compare(result(ranks, me, DTYPES[dtype], dropped=True), expected)
        assert dropped
        assert ranks[0].spec.primitive not in SUMMED or dropped.n_wrong == right.numel()


@ALL
@DTYPE
def test_every_fault_in_an_exact_result_is_found(primitive: str, order: str, dtype: str) -> None:
    """At both ends of shapes that are tiny, long, tall and uneven; shards that are swapped, too."""
    for shape in SHAPES:
        ranks = made(primitive, order, dtype, shape)
        for me, share in ((0, 0.5), (-1, 1.0)):
            numel = ranks[me].expected("both").value.numel()
            faults_are_found(ranks, me, dtype, int(share * (numel - 1)))
        swapped = [copy.copy(rank) for rank in ranks]
        swap_shards(swapped)
        assert any(compare(result(swapped, me, DTYPES[dtype]), ranks[me].expected("both"))
                   for me in (0, 1)), shape


@given(case=st.sampled_from(ORDERS), dtype=st.sampled_from(sorted(SIGNIFICAND_BITS)),
       ranks=st.integers(1, 5), extents=st.tuples(*[st.integers(1, 9)] * 3), data=st.data())
@settings(deadline=None, max_examples=60)
def test_no_shape_hides_a_fault(
    case: tuple[str, str], dtype: str, ranks: int, extents: tuple[int, int, int],
    data: st.DataObject,
) -> None:
    inputs = ranks_of(*case, dtype, Shape(*(extent * ranks for extent in extents), ranks))
    me = data.draw(st.integers(0, ranks - 1))
    numel = inputs[me].expected("both").value.numel()
    faults_are_found(inputs, me, dtype, data.draw(st.integers(0, numel - 1)))


@pytest.mark.parametrize("order", ["sequence_parallel", "AR_after"])
@pytest.mark.parametrize(("dtype", "shape"), [
    (dtype, shape) for dtype in SIGNIFICAND_BITS for shape in (
        Shape(4, 8, 4, 4), Shape(33, 9, 3, 3), Shape(16, 1024, 64, 8),
        LARGE if dtype in GELU_INPUT else Shape(4, 4096, 64, 2))])
def test_a_factor_on_gelu_is_found_in_every_element(dtype: str, order: str, shape: Shape) -> None:
    """It is exact in short types."""
    ranks = ranks_of("tp_mlp", order, dtype, shape, activation="gelu")
    for me in (0, shape.ranks - 1):
        expected = ranks[me].expected("both")
        right = result(ranks, me, DTYPES[dtype])
        assert (expected.bound is None) == (dtype in GELU_INPUT)
        assert compare(right, expected) is None
        for wrong in (right * 1.01, result(ranks, me, DTYPES[dtype], dropped=True)):
            found = compare(wrong, expected)
            assert found and found.n_wrong == right.numel()


@pytest.mark.parametrize("dtype", sorted(GELU_INPUT))
def test_the_numbers_before_gelu_are_rounded_alike_by_all(dtype: str) -> None:
    """An error of a fiftieth of a step of the result does not change it."""
    before = torch.tensor([1.0, 2.0], dtype=torch.float64) * GELU_INPUT[dtype]
    assert torch.equal(before.to(DTYPES[dtype]).double(), before)
    exact = torch.nn.functional.gelu(before)
    step = torch.finfo(DTYPES[dtype]).eps * exact
    for error in (-step / 50, step / 50):
        assert (exact + error).to(DTYPES[dtype]).tolist() == [0.625, 1.5]


@ALL
def test_operands_hold_no_zero(primitive: str, order: str) -> None:
    for dtype in ("bf16", "fp32"):
        for own in ranks_of(primitive, order, dtype, LARGE):
            for name in ("rows", "columns", "tokens", "gradients", "weight", "up", "down"):
                if (operand := getattr(own, name, None)) is not None:
                    assert (operand != 0).all()


def bounded_cases() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield what has no exact result: long sums in short dtypes, and gelu in every dtype."""
    for (primitive, order), dtype in itertools.product(ORDERS, ("bf16", "fp16")):
        yield primitive, order, dtype, {}
    for order, dtype in itertools.product(("sequence_parallel", "AR_after"), SIGNIFICAND_BITS):
        yield "tp_mlp", order, dtype, {"activation": "gelu"}


@pytest.fixture
def normal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take normal numbers everywhere, as where sums have millions of terms or hundreds of ranks."""
    monkeypatch.setattr("hpcbench.kinds.primitive.run.inputs.sizes_of", lambda *_: None)


def long_sums(primitive: str) -> Shape:
    """Return a shape with 4096 terms in every sum, over 4 ranks."""
    return Shape(4096, 48, 64, 4) if primitive == "dp_allreduce" else Shape(64, 48, 4096, 4)


@pytest.mark.usefixtures("normal")
@pytest.mark.parametrize(("primitive", "order", "dtype", "options"), list(bounded_cases()))
def test_an_inexact_result_is_right_within_its_bound_and_wrong_beyond_twice_it(
    primitive: str, order: str, dtype: str, options: dict[str, Any],
) -> None:
    ranks = ranks_of(primitive, order, dtype, long_sums(primitive), **options)
    for me in (0, 3):
        expected = ranks[me].expected("both")
        right = result(ranks, me, DTYPES[dtype])
        assert expected.bound is not None and compare(right, expected) is None
        assert (expected.bound > 0).all()
        wide = right.double()
        index = wide.numel() // 3
        wide.view(-1)[index] += 2.001 * expected.bound.view(-1)[index]
        found = compare(wide, expected)
        assert found and (found.n_wrong, found.first_index) == (1, index)


@pytest.mark.usefixtures("normal")
@pytest.mark.parametrize(("primitive", "order", "dtype", "options"), list(bounded_cases()))
def test_faults_of_a_tenth_are_found_in_an_inexact_result(
    primitive: str, order: str, dtype: str, options: dict[str, Any],
) -> None:
    """Bounds are of 4 ranks' worst roundings: in bf16 4 / 256 of the sum of partial sums.

    That is 3 % of a usual result, and 10 % where two products follow each other; in fp16 1 to 2 %,
    in fp32 gelu 0.4 %.
    """
    shape = long_sums(primitive)
    ranks = ranks_of(primitive, order, dtype, shape, **options)
    swapped = [copy.copy(rank) for rank in ranks]
    swap_shards(swapped)
    for me in (0, 3):
        expected = ranks[me].expected("both")
        usual = expected.value.square().mean().sqrt()
        share = {"bf16": 0.03 if primitive != "tp_mlp" else 0.11, "fp16": 0.02, "fp32": 0.004,
                 "fp64": 1e-10}[dtype]
        assert expected.bound.median() < share * usual
        assert compare(result(ranks, me, DTYPES[dtype]) * 1.1, expected)
        assert compare(result(ranks, me, DTYPES[dtype], dropped=True), expected)
    assert any(compare(result(swapped, me, DTYPES[dtype]), ranks[me].expected("both"))
               for me in range(4))


@pytest.mark.usefixtures("normal")
@DTYPE
@pytest.mark.parametrize("order", ["sequence_parallel", "AR_after"])
def test_another_activation_is_no_gelu(order: str, dtype: str) -> None:
    """relu shows in every dtype, the tanh form of gelu where the dtype is fine enough."""
    ranks = ranks_of("tp_mlp", order, dtype, Shape(16, 32, 64, 2), activation="gelu")
    expected = ranks[1].expected("both")
    assert compare(result(ranks, 1, DTYPES[dtype]), expected) is None
    others = [torch.relu]
    if dtype in ("fp32", "fp64"):
        others.append(torch.nn.GELU(approximate="tanh"))
    for other in others:
        for rank in ranks:
            rank.activate = other
        assert compare(result(ranks, 1, DTYPES[dtype]), expected)


def options_of_products(primitive: str) -> Iterator[dict[str, Any]]:
    """Yield every combination of the options of compute_only."""
    spec = REGISTRY.primitives[primitive]
    known = {**spec.options, "size": REGISTRY.implementations["compute_only"][0].options["size"]}
    for values in itertools.product(*(value.allowed or (3,) for value in known.values())):
        yield dict(zip(known, values, strict=True))


@ALL
@DTYPE
def test_the_product_alone_is_checked_in_all_its_forms(
    primitive: str, order: str, dtype: str,
) -> None:
    for options, shape in itertools.product(
            options_of_products(primitive), (Shape(18, 9, 12, 3), Shape(48, 60, 360, 3))):
        workload = workload_of(primitive, order, dtype, shape, "compute_only", **options)
        operation = PrimitiveOperation(workload, place_of(1, 3))
        operation.prepare()
        operation.run()
        assert operation.check() is None, (options, shape)
        operation.corrupt_output()
        found = operation.check()
        assert found and found.n_wrong == 1, (options, shape)
        operation.prepare()
        found = operation.check()
        assert found and found.n_wrong == found.n_elements, (options, shape)


@pytest.mark.parametrize("split", ["even", "linear", "one_heavy", "zero"])
def test_tokens_of_uneven_experts_each_meet_their_own_expert(split: str) -> None:
    ranks = ranks_of("ep_all_to_all", "dispatch_combine", "fp32", Shape(30, 4, 8, 3), split=split)
    assert sum(ranks[0].counts) == 10
    assert sum(rank.arriving for rank in ranks) == 30
    for me, own in enumerate(ranks):
        expected = own.expected("both")
        assert torch.equal(expected.value.long(), result(ranks, me, torch.int64))
        right = result(ranks, me, torch.float32)
        assert compare(right, expected) is None
        assert compare(right.roll(1, 0), expected)


def test_what_is_communicated_is_compared_whole() -> None:
    """The gathered tokens and the reduced results of an MLP; the dispatched tokens of experts."""
    shape = Shape(8, 4, 6, 2)
    mlp = ranks_of("tp_mlp", "sequence_parallel", "fp32", shape)
    gathered = mlp[1].expected("communicate").value
    assert torch.equal(gathered[:8].long(), torch.cat([rank.tokens for rank in mlp]).long())
    assert torch.equal(gathered[8:].long(), result(mlp, 1, torch.int64))
    experts = ranks_of("ep_all_to_all", "dispatch_combine", "fp32", shape)
    arrived = torch.cat([rank.tokens.split(rank.counts)[1] for rank in experts])
    exchanged = experts[1].expected("communicate").value
    assert torch.equal(exchanged[:arrived.numel()].long(), arrived.reshape(-1).long())
    assert torch.equal(exchanged[arrived.numel():].long(),
                       result(experts, 1, torch.int64).reshape(-1))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_or_has_another_shape_is_wrong(value: float) -> None:
    right = torch.ones(3, 2)
    for bound in (None, torch.full((3, 2), 1e9).double()):
        expected = Expected(right.double(), bound)
        assert compare(right, expected) is None
        broken = right.clone()
        broken[1, 1] = value
        found = compare(broken, expected)
        assert found and (found.n_wrong, found.first_index) == (1, 3)
        assert compare(right.T, expected) and compare(right[:2], expected)


def test_a_gpu_rounds_no_partial_sum_to_a_short_dtype() -> None:
    """The bounds count on sums in fp32; torch's own default allows cuBLAS to add in bf16."""
    settings_of_cublas: Any = torch.backends.cuda.matmul
    names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = {name: getattr(settings_of_cublas, name) for name in names}
    try:
        add_in_fp32()
        assert [getattr(settings_of_cublas, name) for name in names] == [False, False]
    finally:
        for name, value in before.items():
            setattr(settings_of_cublas, name, value)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("options", [
    {"product": "none", "dispatch": "fp8"}, {"product": "mlp"},
    {"product": "mlp", "load": "zipf:1", "dedup": "expert"}], ids=str)
def test_a_lost_or_wrong_expert_of_a_token_is_found(dtype: str, options: dict[str, Any]) -> None:
    shape = Shape(32, 24, 16, 4)
    work = workload_of("ep_dispatch_combine", "dispatch_combine", dtype, shape, top_k=3, **options)
    for rank in range(shape.ranks):
        inputs = DispatchInputs(work, place_of(rank, shape.ranks))
        table, expected = inputs.table(rank), inputs.expected("both")
        right = expected.value.to(inputs.dtype)
        assert compare(right, expected) is None
        for experts in (0, table.max().item() - 1):
            wrong = copy.copy(inputs)
            shifted = torch.where(table == table[experts % len(table), 0], (table + 1) % 8, table)
            wrong.table = lambda rank, shifted=shifted: shifted  # type: ignore[method-assign]
            assert compare(wrong.expected("both").value.to(inputs.dtype), expected)
            lost = torch.where(table == table[experts % len(table), 1], -1, table)
            wrong.table = lambda rank, lost=lost: lost  # type: ignore[method-assign]
            assert compare(wrong.expected("both").value.to(inputs.dtype), expected)


def test_nccl_ep_is_called_in_the_order_of_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in of one rank, to whom all of its tokens go, with room for as many."""
    called: list[str] = []

    def dispatch(inputs: Any, outputs: Any, stream: int) -> None:
        called.append("dispatch")
        outputs.tokens.copy_(inputs.tokens)
        outputs.topk_weights.copy_(inputs.topk_weights)
        outputs.topk_idx.copy_(told[-1])

    def combine(inputs: Any, outputs: Any, stream: int) -> None:
        called.append("combine")
        outputs.tokens.copy_(inputs.tokens)

    def note(name: str, result: Any = None) -> Any:
        return lambda *given, **named: (called.append(name), told.extend(
            one for one in given if isinstance(one, torch.Tensor)), result)[-1]

    told: list[torch.Tensor] = []
    handle = SimpleNamespace(update=note("update"), dispatch=dispatch, combine=combine,
                             destroy=note("handle"))
    group = SimpleNamespace(create_handle=note("create_handle", handle), destroy=note("group"))
    monkeypatch.setitem(sys.modules, "nccl.ep", SimpleNamespace(  # type: ignore[arg-type]
        Algorithm=SimpleNamespace(HIGH_THROUGHPUT=1), Layout=SimpleNamespace(FLAT=3),
        Group=SimpleNamespace(create=note("create", group)), Tensor=lambda tensor: tensor,
        **dict.fromkeys(("GroupConfig", "DispatchInputs", "DispatchOutputs", "CombineInputs",
                         "CombineOutputs"), SimpleNamespace)))
    monkeypatch.setitem(sys.modules, "nccl.ep.interop.torch", SimpleNamespace(
        get_nccl_comm_from_group=note("communicator", SimpleNamespace(  # type: ignore[arg-type]
            destroy=note("end")))))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    inputs = DispatchInputs(workload_of("ep_dispatch_combine", "dispatch_combine", "bf16", Shape(
        32, 24, 16, 1), top_k=3, product="mlp", load="zipf:1"), place_of(0, 1))
    operation = NcclEp(inputs)
    for _ in range(2):
        operation.restore()
        operation.run()
        assert compare(operation.output, inputs.expected("both")) is None
    operation.close()
    each = ["update", "dispatch", "combine"]
    assert called == ["communicator", "create", "create_handle", *each, *each, "handle", "group",
                      "end"]
