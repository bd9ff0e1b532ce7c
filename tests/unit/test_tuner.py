"""`hpcbench advise FILE tuner`: tables by which NCCL, RCCL and NCCLX choose, from synthetic sweeps.

The readers below are written from the rules of those programs, apart from the code that writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hpcbench.answers.answer import Run
from hpcbench.cli import app
from hpcbench.config.axes import UNCHECKED
from hpcbench.errors import UsageError
from hpcbench.interop.answers.tuner import TunedChoice, TunerTable, spans, tuner_table
from hpcbench.interop.formats.export.cost_tables import DIALECTS, _written
from hpcbench.plan.case import Case
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.reduce.topology import RankPlace, Topology
from hpcbench.trace.schema import Record
from results_factory import (
    MemorySamples,
    in_passes,
    make_case,
    make_plan,
    make_results,
    make_workload,
    not_ok,
)
from synthetic import make_case as planned_case
from synthetic import plan_of, with_rows, write_synthetic_run

SIZES = tuple(1024 * 4**step for step in range(6))
RING, TREE = ("Ring", "LL"), ("Tree", "Simple")
NAMES = {"Ring": "ring", "Tree": "tree", "LL": "ll", "Simple": "simple"}
Setting = tuple[str, str] | None
Gain = Callable[[Setting, int], float]


# the readers


@dataclass(frozen=True)
class Line:
    collective: str
    low: int
    high: int
    algorithm: str
    protocol: str
    channels: int
    nodes: int
    ranks: int


def example_plugin(text: str) -> list[Line]:
    """Read as NCCL's example does: 255 characters at a time, unknown names become the default."""
    lines = []
    for part in (chunk for line in text.splitlines(keepends=True)
                 for chunk in re.findall(r"(?s).{1,255}", line)):
        if part[0] in "#\n":
            continue
        fields = part.rstrip("\n").split(",")
        assert 8 <= len(fields) <= 10 and part == part.replace(" ", "").lower()
        name, low, high, algorithm, protocol, *numbers = fields
        lines.append(Line(
            name if name in ("broadcast", "reduce", "allgather", "reducescatter") else "allreduce",
            int(low), int(high),
            algorithm if algorithm in ("tree", "collnet_direct", "collnet_chain", "nvls",
                                       "nvls_tree", "pat") else "ring",
            protocol if protocol in ("ll", "ll128") else "simple", *map(int, numbers[:3])))
    return lines


def chosen(lines: Sequence[Line], collective: str, size: int, nodes: int = 1, ranks: int = 4,
           ) -> tuple[str, str] | None:
    """Return the algorithm and protocol of the first line that matches; None: NCCL's own."""
    for line in lines:
        if (line.collective == collective and line.low <= size <= line.high
                and line.nodes in (-1, nodes) and line.ranks in (-1, ranks)):
            return line.algorithm, line.protocol
    return None


def holds(grammar: str, value: int) -> bool:
    """Return whether a value is in NCCLX's interval; raise for what it refuses."""
    if grammar == "*":
        return True
    if re.fullmatch(r"-?\d+", grammar):
        return value == int(grammar)
    found = re.fullmatch(r"([\[(])(-?\d*),(-?\d*)([\])])", grammar)
    if not found:
        raise ValueError(grammar)
    low = int(found[2]) + (found[1] == "(") if found[2] else -2**63
    high = int(found[3]) - (found[4] == ")") if found[3] else 2**63
    if low > high:
        raise ValueError(grammar)
    return low <= value <= high


def ncclx(text: str, collective: str, size: int, nodes: int = 1, local: int = 4,
          ) -> tuple[str, str] | None:
    """Return what NCCLX takes; raise for a file with which it makes no communicator."""
    found = None
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        fields = re.split(r",(?![^\[(]*[\])])", line)
        name, sizes, algorithm, protocol, channels, of_nodes, of_local = fields
        assert name in ("allreduce", "broadcast", "reduce", "allgather", "reducescatter")
        assert protocol in ("ll", "ll128", "simple") and int(channels) == -1
        matches = (name == collective and holds(sizes, size // (nodes * local))
                   and holds(of_nodes, nodes) and holds(of_local, local))
        found = found or ((algorithm, protocol) if matches else None)
    return found


# the sweeps


def none(_setting: Setting, _size: int) -> float:
    return 1.0


def sweep(
    gain: Gain = none, *, noise: float = 0.01, seed: int = 0, collective: str = "all_reduce",
    settings: Sequence[Setting] = (None, RING, TREE), sizes: Sequence[int] = SIZES,
    passes: int = 9, world_size: int = 4, dtype: str = "fp32",
) -> Iterator[CaseResult]:
    """Yield cases whose passes drift alike, with noise of their own; a gain makes one faster."""
    random = np.random.default_rng(seed)
    drift = random.lognormal(0, 0.1, passes)
    for at, (setting, size) in enumerate((one, size) for one in settings for size in sizes):
        case = nccl_case(setting, size, at, collective, world_size, dtype)
        times = drift * random.lognormal(0, noise, passes) * (1e-5 + size / 1e10)
        yield in_passes(case, *(times / gain(setting, size)).tolist())


def nccl_case(
    setting: Setting, size: int, index: int = 0, collective: str = "all_reduce",
    world_size: int = 4, dtype: str = "fp32", **changes: object,
) -> Case:
    env = () if setting is None else (("NCCL_ALGO", setting[0]), ("NCCL_PROTO", setting[1]))
    return make_case(make_workload(collective, size, dtype, world_size), index=index,
                     backend="nccl", device="cuda", world_size=world_size, env=env, **changes)


def run_of(items: Sequence[CaseResult], passes: int = 9, nodes: int = 1, **changes: object) -> Run:
    results = make_results(tuple(items), **changes)
    ranks = max(item.case.world_size for item in items)
    places = tuple(RankPlace(rank, f"host{rank * nodes // ranks}", *(None,) * 6)
                   for rank in range(ranks))
    results = replace(results, topology=Topology(places), plan=make_plan(
        tuple(item.case for item in items), passes=passes))
    return Run("FILE", results, MemorySamples(results))


def written(table: TunerTable, to: str, run: Run) -> str:
    return _written(table, DIALECTS[to], [run]).content.decode()


def lines_of(items: Sequence[CaseResult], **changes: object) -> list[Line]:
    run = run_of(items, **changes)
    return example_plugin(written(tuner_table([run]), "nccl", run))


def gain_at(setting: Setting, *sizes: int, factor: float = 1.1) -> Gain:
    return lambda one, size: factor if one == setting and size in sizes else 1.0


# what is in a table


def test_a_planted_gain_is_found_at_its_sizes_and_nowhere_else() -> None:
    lines = lines_of([*sweep(gain_at(TREE, *SIZES[1:4]))])
    assert lines == [Line("allreduce", SIZES[1], SIZES[3], "tree", "simple", -1, 1, 4)]
    between = (SIZES[2] + SIZES[3]) // 2
    for size in (SIZES[1], between, SIZES[3]):
        assert chosen(lines, "allreduce", size) == ("tree", "simple")
    for size in (0, SIZES[0], SIZES[1] - 1, SIZES[3] + 1, SIZES[-1], 2**40):
        assert chosen(lines, "allreduce", size) is None
    assert chosen(lines, "allgather", between) is chosen(lines, "allreduce", between, 2) is None
    assert chosen(lines, "allreduce", between, ranks=8) is None


def test_no_line_reaches_beyond_the_smallest_or_the_largest_measured_size() -> None:
    lines = lines_of([*sweep(gain_at(RING, *SIZES))])
    assert [(line.low, line.high) for line in lines] == [(SIZES[0], SIZES[-1])]
    (line,) = lines_of([*sweep(gain_at(RING, SIZES[2]))])
    assert line.low == line.high == SIZES[2]


def test_sizes_with_different_winners_leave_what_is_between_to_nccl() -> None:
    def gain(setting: Setting, size: int) -> float:
        return 1.2 if setting == (RING if size <= SIZES[2] else TREE) else 1.0

    lines = lines_of([*sweep(gain)])
    assert [(line.algorithm, line.low, line.high) for line in lines] == [
        ("ring", SIZES[0], SIZES[2]), ("tree", SIZES[3], SIZES[-1])]
    assert chosen(lines, "allreduce", SIZES[2] + 1) is None


def test_choices_that_are_as_good_share_one_line() -> None:
    lines = lines_of([*sweep(lambda setting, _: 1.2 if setting else 1.0)])
    assert [(line.low, line.high) for line in lines] == [(SIZES[0], SIZES[-1])]


def test_100_draws_of_noise_give_no_line() -> None:
    settings = (None, RING, TREE, ("NVLS", "Simple"))
    for seed in range(100):
        items = [*sweep(noise=0.05, seed=seed, settings=settings, sizes=SIZES[:5])]
        assert not tuner_table([run_of(items)]).ranges


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.02])
def test_gains_that_do_not_matter_have_no_line(factor: float) -> None:
    run = run_of([*sweep(gain_at(TREE, *SIZES, factor=factor), noise=0.001)])
    text = written(tuner_table([run]), "nccl", run)
    assert not example_plugin(text) and "# no line" in text


def test_a_gain_must_be_of_every_dtype_that_was_measured() -> None:
    both = [*sweep(gain_at(TREE, *SIZES)), *sweep(gain_at(TREE, *SIZES[:3]), dtype="fp16")]
    assert [(line.low, line.high) for line in lines_of(both)] == [(SIZES[0], SIZES[2])]
    assert any("3 sizes without a line" in note for note in tuner_table([run_of(both)]).notes)


def test_each_collective_and_number_of_ranks_has_lines_of_its_own() -> None:
    items = [*sweep(gain_at(TREE, SIZES[0])),
             *sweep(gain_at(RING, SIZES[1]), collective="all_gather"),
             *sweep(gain_at(RING, SIZES[2]), world_size=8)]
    lines = lines_of(items, nodes=2)
    assert {(line.collective, line.nodes, line.ranks, line.low) for line in lines} == {
        ("allreduce", 1, 4, SIZES[0]), ("allgather", 1, 4, SIZES[1]),
        ("allreduce", 2, 8, SIZES[2])}


def test_launches_are_compared_as_in_other_answers() -> None:
    table = tuner_table([run_of([*sweep(gain_at(TREE, *SIZES), passes=18)], passes=2)])
    (of_launches,) = table.ranges
    assert (of_launches.gain.unit, of_launches.gain.n) == ("launches", 9) and not table.notes
    least_at_third = [*sweep(lambda setting, size: 1.0 if setting != TREE else
                             1.2 if size == SIZES[2] else 1.4)]
    (of_all,) = tuner_table([run_of(least_at_third)]).ranges
    assert of_all.sizes == SIZES and of_all.gain.ratio == pytest.approx(1.2, rel=0.02)
    table = tuner_table([run_of([*sweep(gain_at(TREE, *SIZES), passes=2)], passes=2)])
    assert not table.ranges and any("too few passes" in note for note in table.notes)


# what is not in a table


def changed(
    items: Sequence[CaseResult], setting: Setting, size: int, **changes: object,
) -> list[CaseResult]:
    case = nccl_case(setting, size)
    return [replace(item, **changes) if (item.case.env, item.case.workload) == (
        case.env, case.workload) else item for item in items]


@pytest.mark.parametrize("changes", [
    {"status": "wrong", "statistics": None}, {"status": "failed", "statistics": None},
    {"status": "timeout", "statistics": None}, {"status": "skipped", "statistics": None},
    {"library": {"algorithm": "RING", "protocol": "LL128"}}], ids=str)
@pytest.mark.parametrize("setting", [TREE, None], ids=str)
def test_what_did_not_run_as_set_breaks_the_range_and_is_named(
    changes: dict[str, object], setting: Setting,
) -> None:
    items = changed([*sweep(gain_at(TREE, *SIZES))], setting, SIZES[2], **changes)
    table = tuner_table([run_of(items)])
    is_own_choice = setting is None and "library" in changes
    if is_own_choice:
        assert not table.left_out and len(table.ranges) == 1
        return
    assert [(one.sizes[0], one.sizes[-1]) for one in table.ranges] == [
        (SIZES[0], SIZES[1]), (SIZES[3], SIZES[-1])]
    (left_out,) = table.left_out
    assert f"{SIZES[2]}B" in left_out[1]


def test_what_nccl_logged_may_agree() -> None:
    items = changed([*sweep(gain_at(TREE, *SIZES))], TREE, SIZES[2],
                    library={"algorithm": "TREE", "protocol": "SIMPLE"})
    assert len(tuner_table([run_of(items)]).ranges) == 1


def test_a_choice_that_is_wrong_for_one_dtype_has_no_line() -> None:
    other = [not_ok(item.case, "wrong", "bad", n_wrong=3) if item.case.env else item
             for item in sweep(dtype="fp16")]
    assert not tuner_table([run_of([*sweep(gain_at(TREE, *SIZES)), *other])]).ranges


@pytest.mark.parametrize(("setting", "reason"), [
    (("Rings", "LL"), "NCCL_ALGO=Rings"), (("Ring,Tree", "LL"), "NCCL_ALGO=Ring,Tree"),
    (("^Ring", "LL"), "NCCL_ALGO=^Ring"), (("allreduce:tree", "LL"), "NCCL_ALGO=allreduce:tree"),
    (("Ring", "LL256"), "NCCL_PROTO=LL256"), (("", "LL"), "NCCL_ALGO=")])
def test_names_that_tables_lack_are_left_out(setting: tuple[str, str], reason: str) -> None:
    items = [*sweep(gain_at(setting, *SIZES), settings=(None, setting, TREE))]
    table = tuner_table([run_of(items)])
    assert not table.ranges and {one.partition(":")[0] for one, _ in table.left_out} >= {
        reason.partition(":")[0]}
    with pytest.raises(UsageError, match="nothing to compare"):
        tuner_table([run_of([item for item in items if dict(item.case.env).get(
            "NCCL_ALGO") != "Tree"])])


@pytest.mark.parametrize(("name", "text"), [
    ("Tree", "tree"), ("RING", "ring"), ("CollnetDirect", "collnet_direct"),
    ("collNetChain", "collnet_chain"), ("NVLS", "nvls"), ("NVLSTree", "nvls_tree"),
    ("PAT", "pat")])
def test_every_algorithm_of_nccl_has_its_name(name: str, text: str) -> None:
    setting = (name, "Simple")
    lines = lines_of([*sweep(gain_at(setting, *SIZES), settings=(None, setting))])
    assert chosen(lines, "allreduce", SIZES[0]) == (text, "simple")


def test_collectives_and_settings_that_tables_lack_are_left_out() -> None:
    good = [*sweep(gain_at(TREE, *SIZES))]
    to_all = [*sweep(gain_at(TREE, *SIZES), collective="all_to_all")]
    half = [replace(item, case=replace(item.case, env=item.case.env[:1])) for item in good
            if item.case.env]
    table = tuner_table([run_of([*good, *to_all, *half])])
    assert len(table.ranges) == 1
    reasons = {reason for reason, _ in table.left_out}
    assert reasons == {"tuner tables have no all_to_all",
                       "NCCL_ALGO is set and NCCL_PROTO is not; a line needs both"}


def with_variables(run: Run, **variables: str) -> Run:
    return within(run, variables=variables)


def within(run: Run, **environment: Any) -> Run:
    results: Results = replace(run.results, run=replace(
        run.results.run, environment=environment))
    return Run("FILE", results, MemorySamples(results))


def test_what_the_job_set_is_not_nccls_own_choice() -> None:
    run = run_of([*sweep(gain_at(TREE, *SIZES))])
    with pytest.raises(UsageError, match="the job had NCCL_ALGO=Ring"):
        tuner_table([with_variables(run, NCCL_ALGO="Ring")])
    of_file = {"NCCL_PROTO": {"value": "LL", "file": "/etc/nccl.conf"}}
    with pytest.raises(UsageError, match="NCCL_PROTO=LL of /etc/nccl.conf"):
        tuner_table([within(run, nccl_conf=of_file)])
    table = tuner_table([with_variables(run, NCCL_TUNER_PLUGIN="libfast.so")])
    assert table.ranges and any("libfast.so" in note for note in table.notes)


def test_other_backends_are_no_nccl() -> None:
    items = [replace(item, case=replace(item.case, backend="gloo", device="cpu"))
             for item in sweep(gain_at(TREE, *SIZES))]
    with pytest.raises(UsageError, match="sweep env NCCL_ALGO"):
        tuner_table([run_of(items)])


# how it is written


def test_ncclx_has_bytes_a_rank_and_local_ranks() -> None:
    run = run_of([*sweep(gain_at(TREE, *SIZES[1:4]), world_size=8)], nodes=2)
    text = written(tuner_table([run]), "ncclx", run)
    assert f"allreduce,[{SIZES[1] // 8},{SIZES[3] // 8}],tree,simple,-1,2,4\n" in text
    for size in SIZES:
        expected = ("tree", "simple") if size in SIZES[1:4] else None
        assert ncclx(text, "allreduce", size, 2, 4) == expected
    assert ncclx(text, "allreduce", SIZES[1], 1, 8) is None


def test_ncclx_has_no_line_where_ranks_are_uneven_or_sizes_too_close() -> None:
    run = run_of([*sweep(gain_at(TREE, *SIZES), world_size=9)], nodes=2)
    exported = _written(tuner_table([run]), DIALECTS["ncclx"], [run])
    assert "\nallreduce" not in exported.content.decode() and exported.left_out
    sizes = (4, 8, 12, 4096)
    run = run_of([*sweep(gain_at(TREE, 8), world_size=8, sizes=sizes)], nodes=1)
    exported = _written(tuner_table([run]), DIALECTS["ncclx"], [run])
    assert "\nallreduce" not in exported.content.decode()
    assert [one.reason for one in exported.left_out] == [
        "sizes that differ by less than a byte a rank"]


def test_texts_from_outside_cannot_become_lines() -> None:
    evil = "x" * 300 + "\nallreduce,0,999,ring,ll,-1,-1,-1"
    run = run_of([*sweep()], run_id=evil, versions={"nccl": evil})
    for to in DIALECTS:
        text = written(tuner_table([run]), to, run)
        assert not example_plugin(text) and max(map(len, text.splitlines())) < 255


# the ranges


CHOICES = [TunedChoice("ring", "ll"), TunedChoice("tree", "ll"), TunedChoice("nvls", "simple")]
good_sizes = st.lists(st.dictionaries(st.sampled_from(CHOICES), st.floats(1.04, 2.0)), max_size=7)


def fewest(good: Sequence[dict[TunedChoice, float]]) -> int:
    """Return how few runs can hold every size that has a choice, by trying all last runs."""
    best = [0]
    for end in range(1, len(good) + 1):
        best.append(best[-1] if not good[end - 1] else min(
            best[begin] + 1 for begin in range(end)
            if set.intersection(*map(set, good[begin:end]))))
    return best[-1]


@given(good_sizes)
def test_ranges_hold_each_size_that_gains_once_and_are_the_fewest(
    good: list[dict[TunedChoice, float]],
) -> None:
    found = [*spans(good)]
    held = [at for first, last, _ in found for at in range(first, last + 1)]
    assert held == [at for at, of in enumerate(good) if of]
    assert all(choice in good[at] for first, last, choice in found
               for at in range(first, last + 1))
    assert len(found) == fewest(good)
    for (_, last, choice), (first, _, other) in zip(found, found[1:], strict=False):
        assert first > last and (first > last + 1 or choice != other)


# the command


def faster(_rank: int, record: Record) -> Iterator[Record]:
    rows = record.samples.rows()
    rows[:, 1] = rows[:, 0] + (rows[:, 1] - rows[:, 0]) * 9 // 10
    yield with_rows(record, rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reduced run in which Tree with LL is a tenth faster, at two of three sizes."""
    made = tmp_path_factory.mktemp("tuner") / "run"
    cases = [planned_case(size, backend="nccl", env=env, check=UNCHECKED)
             for env in ((), (("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL"))) for size in range(3)]
    write_synthetic_run(made, plan_of(
        [replace(case, case_id=f"{at:012x}") for at, case in enumerate(cases)], 2, passes=9),
        change=lambda rank, record: faster(rank, record) if int(record.case_id, 16) > 3
        else iter([record]))
    reduce_folder(made)
    return made


def advise(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["advise", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr + str(done.exception or "")


def test_the_command_writes_the_table_and_how_to_prove_it(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "tuner.csv"
    code, out, told = advise(folder, "tuner", "--to", "nccl", "-o", target)
    assert (code, out) == (0, f"{target}\n")
    (line,) = example_plugin(target.read_text())
    assert (line.low, line.high, line.algorithm, line.ranks) == (16, 32, "tree", 2)
    assert f"NCCL_TUNER_CONFIG_FILE={target}" in told and "NCCL_TUNER_PLUGIN=" in told
    assert "hpcbench compare untuned/latest tuned/latest" in told and "nChannels = 0" in told
    assert advise(folder, "--to", "nccl")[1] == target.read_text()
    assert "NCCLX_TUNER_CONFIG_FILE=FILE" in advise(folder, "tuner", "--to", "ncclx")[2]
    target.write_text("mine")
    assert advise(folder, "tuner", "--to", "nccl", "-o", target)[0] != 0
    assert target.read_text() == "mine"
    assert advise(folder, "tuner", "--to", "nccl", "-o", target, "--force")[0] == 0


@pytest.mark.parametrize("words", [
    ["tuner"], ["--to", "ncl"], ["--to", "nccl", "--only", "cost"], ["tuner", "--to", "rccl"],
    ["tuner", "--to", "nccl", "--json"], ["-o", "x"]], ids=" ".join)
def test_bad_usage_is_reported(folder: Path, words: list[str], tmp_path: Path) -> None:
    code, out, told = advise(folder, *words)
    assert code != 0 and out == "" and "\n" not in told.strip()
