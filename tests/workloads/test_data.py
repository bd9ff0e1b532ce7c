"""The test data are exact in every dtype, and every kind of wrong result shows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcbench.config.axes import BITWISE, COMPLEX_DTYPES, FLOATING_DTYPES
from hpcbench.operations.data import (
    DTYPES,
    PERIOD,
    average_is_exact,
    compare,
    contributed,
    moved,
    reduced,
    wipe,
)

OPS = ("sum", "prod", "min", "max")
FORMS = [(name, op) for name in sorted(DTYPES) for op in (*OPS, *BITWISE)
         if op == "sum" or name not in COMPLEX_DTYPES and (
             op in OPS or name not in FLOATING_DTYPES)]
"""Types and the operators that they have."""
dtypes = st.sampled_from(sorted(DTYPES))


def _combine(parts: list[torch.Tensor], op: str, order: list[int]) -> torch.Tensor:
    """Reduce in the dtype itself, in the given order: what a backend does."""
    total = parts[order[0]].clone()
    for rank in order[1:]:
        total = APPLIED[op](total, parts[rank])
    return total


APPLIED = {"sum": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum,
           "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("op", [*OPS, "moved"])
@pytest.mark.parametrize("ranks", [2, 3, 5, 7, 8, 300])
def test_a_factor_shows_in_every_element(name: str, op: str, ranks: int) -> None:
    dtype = DTYPES[name]
    expected = (moved(ranks, 0, PERIOD, dtype) if op == "moved" else
                reduced(ranks, op, 0, PERIOD, dtype))
    for factor in (1.01, 0.99):
        found = compare(expected * factor, expected)
        assert found and found.n_wrong == PERIOD


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32", "fp64", "complex64"])
@pytest.mark.parametrize("ranks", range(2, 9))
def test_a_factor_on_an_average_shows_in_every_element(name: str, ranks: int) -> None:
    """However it is made: dividing before or after the sum, or multiplying by 1 / n, as NCCL."""
    dtype = DTYPES[name]
    parts = [contributed(rank, ranks, "avg", 500, dtype) for rank in range(ranks)]
    expected = reduced(ranks, "avg", 0, 500, dtype)
    ulps = 0 if average_is_exact(ranks, dtype) else 2
    assert ulps == 0 or name in ("fp32", "fp64", "complex64")
    inverse, order = torch.ones((), dtype=dtype.to_real()) / ranks, list(range(ranks))
    for average in (_combine(parts, "sum", order) / ranks,
                    _combine(parts, "sum", order) * inverse,
                    _combine([part * inverse for part in parts], "sum", order)):
        assert compare(average, expected, ulps=ulps) is None
        found = compare(average * 1.01, expected, ulps=ulps)
        assert found and found.n_wrong == 500


@pytest.mark.parametrize("name", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 16, 20, 100, 254])
def test_an_average_of_integers_is_their_sum_divided_and_cut(name: str, ranks: int) -> None:
    """As NCCL makes it (FuncSumPostDiv), in the dtype, whatever the order of the sum."""
    dtype = DTYPES[name]
    parts = [contributed(rank, ranks, "avg", 500, dtype) for rank in range(ranks)]
    total = _combine(parts, "sum", list(range(ranks)))
    expected = reduced(ranks, "avg", 0, 500, dtype)
    assert average_is_exact(ranks, dtype) and (expected > 0).all()
    assert compare(total // ranks, expected) is None
    wrong = compare(total // ranks + 1, expected)
    assert wrong and wrong.n_wrong == 500


@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 300])
def test_a_lost_or_doubled_contribution_shows(name: str, ranks: int) -> None:
    dtype, count = DTYPES[name], 4096
    parts = [contributed(rank, ranks, "sum", count, dtype) for rank in range(ranks)]
    expected = reduced(ranks, "sum", 0, count, dtype)
    lost = _combine(parts, "sum", list(range(1, ranks)))
    doubled = _combine(parts, "sum", [0, *range(ranks)])
    assert compare(lost, expected) is not None
    assert name == "bool" or compare(doubled, expected) is not None


@pytest.mark.parametrize("ranks", [2, 3, 8, 300])
@pytest.mark.parametrize(("name", "op"), [
    form for form in FORMS if form[1] in BITWISE or form[0] == "bool"])
def test_a_lost_operand_of_bits_shows_whoever_s_it_is(name: str, op: str, ranks: int) -> None:
    dtype = DTYPES[name]
    parts = [contributed(rank, ranks, op, 4096, dtype) for rank in range(ranks)]
    expected = reduced(ranks, op, 0, 4096, dtype)
    assert name == "bool" or (expected != 0).all()
    for lost in range(min(ranks, 8)):
        assert compare(_combine(parts, op, [rank for rank in range(ranks) if rank != lost]),
                       expected) is not None


@pytest.mark.parametrize(("name", "op"), FORMS)
@pytest.mark.parametrize("first", [2, 4, 6])
def test_groups_have_their_own_exact_results(name: str, op: str, first: int) -> None:
    dtype, count = DTYPES[name], 4096
    parts = [contributed(rank, 2, op, count, dtype, first) for rank in range(2)]
    expected = reduced(2, op, 0, count, dtype, first)
    assert compare(_combine(parts, op, [1, 0]), expected) is None
    assert compare(reduced(2, op, 0, count, dtype), expected) is not None


@pytest.mark.parametrize(("name", "op"), FORMS)
def test_ranks_of_a_group_that_are_apart_have_exact_results(name: str, op: str) -> None:
    """Eight ranks of stride 8: as many factors as of consecutive ones, so that no type overflows.
    """
    dtype, count, ranks = DTYPES[name], 9000, range(3, 67, 8)
    parts = [contributed(rank, 8, op, count, dtype, ranks) for rank in range(8)]
    expected = reduced(8, op, 0, count, dtype, ranks)
    assert compare(_combine(parts, op, list(range(8))), expected) is None
    assert compare(_combine(parts, op, list(range(8))[::-1]), expected) is None
    if op != "avg":
        assert compare(reduced(8, op, 0, count, dtype, range(4, 68, 8)), expected) is not None


@settings(max_examples=60, deadline=None)
@example("bf16", 20, 376, 16)  # were equal
@example("bool", 0, 65, 16)  # were equal
@given(dtypes, st.integers(0, 3000), st.integers(0, 3000), st.integers(16, 300))
def test_what_ranks_send_differs_by_rank(name: str, one: int, other: int, count: int) -> None:
    ours, theirs = (moved(rank, 0, count, DTYPES[name]) for rank in (one, other))
    assert (compare(ours, theirs) is None) == (one == other)


@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("shift", [1, 16, 64, 250, 1024, 4096, 65536, 2**20])
def test_a_shifted_block_shows(name: str, shift: int) -> None:
    dtype = DTYPES[name]
    assert compare(moved(1, shift, 500, dtype), moved(1, 0, 500, dtype)) is not None


@settings(max_examples=40, deadline=None)
@given(dtypes, st.integers(0, 5 * PERIOD), st.integers(0, 2 * PERIOD))
def test_a_part_is_what_the_whole_holds_there(name: str, start: int, count: int) -> None:
    whole = moved(3, 0, start + count, DTYPES[name])
    assert torch.equal(moved(3, start, count, DTYPES[name]), whole[start:])


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_an_output_that_was_not_written_shows(name: str) -> None:
    dtype = DTYPES[name]
    untouched = torch.empty(300, dtype=dtype)
    wipe(untouched)
    for expected in (moved(0, 0, 300, dtype), *(
            reduced(4, op, 0, 300, dtype) for of, op in FORMS if of == name)):
        mismatch = compare(untouched, expected)
        assert mismatch.n_wrong == 300


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_avg_is_right_within_two_units_and_not_looser(name: str, ranks: int) -> None:
    dtype = DTYPES[name]
    parts = [contributed(rank, ranks, "avg", 500, dtype) for rank in range(ranks)]
    expected = reduced(ranks, "avg", 0, 500, dtype)
    average = _combine(parts, "sum", list(range(ranks))) / ranks
    assert compare(average, expected, ulps=2) is None
    average[7] = average[7] * (1 + 8 * torch.finfo(dtype).eps) + 8 * torch.finfo(dtype).tiny
    assert compare(average, expected, ulps=2) is not None


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32", "int64", "uint8", "int8"])
def test_a_mismatch_states_where_and_what(name: str) -> None:
    expected = moved(2, 0, 100, DTYPES[name])
    got = expected.clone()
    got[41] = expected[41] + 1
    got[77] = expected[77] + 1
    mismatch = compare(got, expected)
    assert (mismatch.n_wrong, mismatch.n_elements, mismatch.first_index) == (2, 100, 41)
    assert float(mismatch.got) == float(mismatch.expected) + 1
