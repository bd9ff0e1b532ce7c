"""Loads of experts: what the routings that have them add up to, and tables of bytes from files."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbench.errors import FileError
from hpcbench.operations.loads import (
    DEDUPS,
    MAX_OVER_MEAN,
    MOST_EXPERTS,
    AnyRouting,
    ByteMatrix,
    Load,
    Routing,
    copies,
    popularity,
    read_matrix,
    route,
    route_given,
    tokens_of_experts,
)
from hpcbench.operations.token_copies import ExpertTables, copies_to, traffic_within, within

TEXTS = ("balanced", "lognormal:0.8", "zipf:1.1,seed=5", "max_over_mean:1.3", "lognormal:3,seed=2")
shapes = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 40), st.integers(1, 5))


def copied(routing: AnyRouting, dedup: str) -> list[list[int]]:
    """Return how many copies of its tokens each rank sends to each."""
    tables, each = ExpertTables(routing), routing.experts // routing.ranks
    return [[len(copies_to(tables.of(sender), receiver, each, dedup).token)
             for receiver in range(routing.ranks)] for sender in range(routing.ranks)]


def experts_of(routing: AnyRouting, rank: int) -> list[tuple[int, ...]]:
    """Return the experts of each of a rank's tokens, one by one."""
    if isinstance(routing, Routing):
        return routing.experts_of(rank)
    each = routing.experts // routing.ranks
    line = [receiver * each + (rank + copy) % each
            for receiver, count in enumerate(routing.cells[rank]) for copy in range(count)]
    return [tuple(line[token::routing.tokens]) for token in range(routing.tokens)]


def check_sums(routing: AnyRouting) -> None:
    """Check the sums of a routing against its tokens, one by one."""
    ranks, each = routing.ranks, routing.experts // routing.ranks
    tokens = [experts_of(routing, rank) for rank in range(ranks)]
    assert [len(one) for one in tokens] == [routing.tokens] * ranks
    everywhere = [expert for own in tokens for experts in own for expert in experts]
    assert routing.of_experts() == tuple(map(everywhere.count, range(routing.experts)))
    for dedup in DEDUPS:
        rows = [[0] * ranks for _ in range(ranks)]
        for sender, own in enumerate(tokens):
            for experts in own:
                for receiver in copies(experts, each, dedup):
                    rows[sender][receiver] += 1
        assert copied(routing, dedup) == rows
        traffic = routing.traffic(dedup)
        assert traffic.sent == tuple(map(sum, rows))
        assert traffic.received == tuple(map(sum, zip(*rows, strict=True)))
        assert traffic.kept == tuple(rows[rank][rank] for rank in range(ranks))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TEXTS), shapes)
def test_a_routing_has_the_counts_of_its_load_and_different_experts(text, shape):
    ranks, each, tokens, top_k = shape
    experts, load = ranks * each, Load.from_text(text)
    if load.unfit(experts, top_k):
        return
    routing = route(load, ranks, tokens, experts, top_k)
    check_sums(routing)
    assert routing.of_experts() == tokens_of_experts(load, ranks * tokens, experts, top_k)
    assert all(len(set(one)) == top_k
               for rank in range(ranks) for one in routing.experts_of(rank))
    by_rank, by_expert = (routing.traffic(dedup).received for dedup in DEDUPS)
    assert all(a <= b for a, b in zip(by_rank, by_expert, strict=True))
    assert sum(by_expert) == ranks * tokens * top_k


def test_an_expert_keeps_the_first_tokens_of_a_rank_up_to_its_capacity():
    table = np.array([[0, 1], [0, 2], [1, 0], [0, 1], [2, 1]])
    assert within(table, 0) is table
    assert within(table, 2).tolist() == [[0, 1], [0, 2], [1, -1], [-1, -1], [2, -1]]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TEXTS[:3]), shapes, st.integers(1, 30))
def test_a_capacity_drops_what_is_above_it(text, shape, capacity):
    ranks, each, tokens, top_k = shape
    experts, load = ranks * each, Load.from_text(text)
    if load.unfit(experts, top_k):
        return
    routing = route(load, ranks, tokens, experts, top_k)
    own = [Counter(expert for one in routing.experts_of(rank) for expert in one)
           for rank in range(ranks)]
    by_dedup, counts = traffic_within(routing, capacity)
    for dedup in DEDUPS:
        traffic = by_dedup[dedup]
        assert counts == tuple(sum(min(one[expert], capacity) for one in own)
                               for expert in range(experts))
        whole, kept = routing.traffic(dedup), capacity >= tokens
        assert all(a <= b for a, b in zip(traffic.received, whole.received, strict=True))
        assert not kept or traffic == whole
        assert dedup == "rank" or sum(traffic.sent) == sum(counts)


@pytest.mark.parametrize("ratio", [1, 1.05, 1.5, 2, 7.9])
@pytest.mark.parametrize(("experts", "top_k"), [(64, 8), (256, 8), (16, 2)])
def test_the_largest_load_over_the_mean_is_the_one_asked_for_to_one_token(ratio, experts, top_k):
    tokens = 16 * 1000
    load = Load(MAX_OVER_MEAN, ratio, 7)
    counts = tokens_of_experts(load, tokens, experts, top_k)
    assert abs(max(counts) - ratio * tokens * top_k / experts) <= 1
    assert sum(counts) == tokens * top_k


def test_balanced_loads_are_equal_and_a_seed_changes_who_is_popular():
    assert set(tokens_of_experts(Load("balanced"), 1024, 64, 8)) == {128}
    one, other = (popularity(Load("zipf", 1.0, seed), 32) for seed in (0, 1))
    assert one != other
    assert sorted(one) == sorted(other)


def test_a_routing_is_the_same_in_every_process():
    code = ("from hpcbench.operations.loads import Load, route; import hashlib; "
            "print(hashlib.sha256(repr(route(Load('zipf', 1.3, 4), 8, 96, 64, 6)).encode())"
            ".hexdigest())")
    found = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            check=True, env={**os.environ, "PYTHONHASHSEED": seed}).stdout
             for seed in ("1", "2")}
    assert len(found) == 1


def test_copies_once_a_rank_are_as_few_as_chance_makes_them():
    """8 of 64 experts, 8 on each of 8 ranks: 8 (1 - C(56,8) / C(64,8)) = 5.43 ranks a token."""
    for seed in range(5):
        sent = sum(route(Load("balanced", 0, seed), 8, 512, 64, 8).traffic("rank").sent)
        assert abs(sent / (8 * 512) - 5.43) < 0.1


def test_texts_of_loads_are_read_as_they_are_written():
    for text in (*TEXTS, "matrix"):
        assert Load.from_text(text).text == text
    for text in ("zipf", "zipf:", "zipf:-1", "balanced:1", "max_over_mean:0.5", "zipf:1e3",
                 "zipf:999", "zipf:1,seed=x", "even", "", "zipf:1\n", "zipf:nan"):
        with pytest.raises(ValueError, match=r".+"):
            Load.from_text(text)
    for text in ("zipf:0.00001", "max_over_mean:999999.9", "zipf:12.345678"):
        assert Load.from_text(text).text == text  # no exponent, all digits: it can be read again
    assert Load.from_text("zipf:1.0,seed=0").text == "zipf:1"
    assert Load.from_text("balanced").unfit(MOST_EXPERTS + 1)
    assert Load.from_text("max_over_mean:9").unfit(64, 8)
    assert Load.from_text("balanced").unfit(4, 5)


TABLE = "0 64 128\n192 0 64\n\n 64\t64  1e2\n"


def written(folder: Path, content: bytes) -> str:
    path = folder / "table.txt"
    path.write_bytes(content)
    return str(path)


def test_a_table_of_bytes_is_realised_to_the_byte(tmp_path):
    matrix = read_matrix(written(tmp_path, TABLE.encode()))
    assert matrix.rows == ((0, 64, 128), (192, 0, 64), (64, 64, 100))
    assert matrix.of(2) == ((0, 64), (192, 0))
    assert matrix.unfit(2, 32, "tokens") is None
    assert matrix.unfit(3, 32, "tokens")
    assert matrix.unfit(4, 1, "elements")
    assert matrix.unfit_tokens(2, 6, 1, 32) is None
    assert matrix.unfit_tokens(2, 5, 2, 32)
    assert matrix.unfit_tokens(3, 6, 1, 4)
    routing = route_given(matrix, 2, 6, 4, 32)
    check_sums(routing)
    assert [[32 * count for count in row] for row in copied(routing, "rank")] == [
        [0, 64], [192, 0]]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_a_table_sends_a_token_to_a_rank_once(ranks, each, seed):
    draw = random.Random(seed)
    cells = tuple(tuple(draw.randint(0, 9) for _ in range(ranks)) for _ in range(ranks))
    routing = route_given(ByteMatrix(cells, ""), ranks, 9, ranks * each, 1)
    check_sums(routing)
    for rank in range(ranks):
        for experts in experts_of(routing, rank):
            receivers = copies(experts, each, "expert")
            assert len(set(receivers)) == len(receivers)


@pytest.mark.parametrize("content", [
    b"", b"\n \n", b"1 2\n3\n", b"1 2 3\n4 5 6\n", b"1 -2\n3 4", b"1 nan\n3 4", b"1 inf\n3 4",
    b"0x1 2\n3 4", b"1_0 2\n3 4", b"\xff\xfe\n", b"1.5 2\n3 4", b"9e99 2\n3 4", b"\x00",
    b"1" * 5000, "\u0661".encode(), b"1,2\n3,4\n"])
def test_other_tables_are_refused_in_one_line(tmp_path, content):
    path = written(tmp_path, content)
    with pytest.raises(FileError) as error:
        read_matrix(path)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 400 + len(path)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe", "absent", "x\0y"):
        with pytest.raises(FileError):
            read_matrix(f"{tmp_path}/{name}")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_an_error_of_one_line(tmp_path_factory, content):
    path = written(tmp_path_factory.getbasetemp(), content)
    try:
        matrix = read_matrix(path)
    except FileError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert all(len(row) == len(matrix.rows) for row in matrix.rows)
