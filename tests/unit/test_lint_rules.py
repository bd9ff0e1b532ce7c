"""Each rule of the linter finds a mutation of a correct table, with its line and its numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import foreign_tables as written
from bad_input_process import hpcbench
from hpcbench.interop.formats.lint import RULES, BrokenRule, Linting, failures_of, lint
from hpcbench.interop.formats.reading.detect import tables_of
from hpcbench.interop.formats.reading.source import Unread
from launcher import ROOT

FOREIGN = ROOT / "tests" / "data" / "foreign"
TEXT = "all_reduce_8.txt"
Change = Callable[[str], str]


def replaced(old: str, new: str) -> Change:
    def change(text: str) -> str:
        assert old in text, old
        return text.replace(old, new, 1)

    return change


def without(pattern: str) -> Change:
    def change(text: str) -> str:
        assert re.search(pattern, text, re.MULTILINE), pattern
        return re.sub(pattern, "", text, flags=re.MULTILINE)

    return change


def found_in(path: Path, link: float | None = None) -> list[BrokenRule]:
    left_out = Unread()
    return [*(one for table in tables_of(path, left_out=left_out) for one in lint(table, link)),
            *failures_of(str(path), left_out)]


MUTATIONS: dict[str, tuple[str, Change, set[str], int]] = {
    "busbw of one row": (TEXT, replaced("426.13", "456.13"), {"factor", "average"}, 22),
    "a device line less": (TEXT, without(r"^#  Rank  7.*\n"), {"ranks"}, 1),
    "another collective": (TEXT, replaced("starting: all_reduce", "starting: reduce_scatter"),
                           {"factor", "size"}, 21),
    "count": (TEXT, replaced("  4096 ", "  4097 "), {"size"}, 20),
    "element type": (TEXT, replaced(" float ", "  half "), {"size"}, 18),
    "time": (TEXT, replaced("64.50", "46.50"), {"rate"}, 21),
    "algbw and busbw": (TEXT, lambda text: text.replace("243.50", "253.50").replace(
        "426.13", "443.63"), {"rate", "average"}, 22),
    "average": (TEXT, replaced("121.163", "125.163"), {"average"}, 24),
    "a size that falls": (TEXT, replaced("         128            32 ",
                                         "       32768          8192 "), {"order", "rate"}, 20),
    "wrong elements": (TEXT, replaced("56.90       0", "56.90      12"), {"wrong"}, 21),
    "out of bounds": (TEXT, replaced("values : 0 OK", "values : 3 FAILED"), {"wrong"}, 23),
    "below the least": (TEXT, replaced("121.163", "121.163 FAILED"), {"failed"}, 24),
    "test failure": (TEXT, replaced("# Out", "node1: Test NCCL failure common.cu:958\n# Out"),
                     {"failed"}, 23),
    "failure of rccl-tests": (TEXT, replaced("# Out", "n: Test HIP failure common.cu:9\n# Out"),
                              {"failed"}, 23),
    "a killed process": (TEXT, replaced("# Out", "mpirun noticed that process rank 3 with PID 1 on "
                                        "node n exited on signal 9 (Killed).\n# Out"),
                         {"failed"}, 23),
    "OSU: a failed check": ("osu_bw_checked.txt", lambda text: f"{text}DATA VALIDATION ERROR: "
                            "osu_bw exited with status 1 on message size 8.\n", {"failed"}, 5),
    "cut": (TEXT, lambda text: text[:text.index("# Out of")], {"cut"}, 1),
    "cut in a row": (TEXT, lambda text: text[:text.index("  427.06")], {"cut", "columns"}, 22),
    "columns of before 2.13": (TEXT, lambda text: text.replace(
        "root     time", "time").replace("      -1 ", "  ").replace("#wrong", " error"),
        {"columns"}, 1),
    "OSU: extremes": ("osu_allgather_full.txt", replaced("1.95", "2.95"), {"spread"}, 6),
    "OSU: check": ("osu_bw_checked.txt", replaced("12201.51              Pass",
                                                  "12201.51              Fail"), {"wrong"}, 4),
    "OSU: a size twice": ("osu_bw_checked.txt", replaced("4194304 ", "1       "), {"order"}, 4),
    "Inspector: busbw": ("inspector.jsonl", replaced("485.119099", "277.210914"), {"ranks"}, 1),
    "Inspector: size": ("inspector.jsonl", replaced("1048576", "2097152"), {"rate"}, 2),
    "PARAM: percentile": ("param.txt", replaced("103.0", "110.0"), {"spread"}, 3),
    "PARAM: busbw": ("param.txt", replaced("7.614", "8.702"), {"factor"}, 4),
    "PARAM: an element more a rank": ("param.txt", replaced("65536 ", "65568 "), {"size"}, 3),
    "nvbandwidth: sum": ("nvbandwidth.json", replaced("552.43", "652.43"), {"average"}, 0),
    "nvbandwidth: max": ("nvbandwidth.json", replaced('"max": 276.36', '"max": 286.36'),
                         {"average"}, 0),
    "nvbandwidth: status": ("nvbandwidth.json", replaced("Passed", "Error"), {"failed"}, 0),
    "DDLB: rate": ("ddlb.csv", replaced("10.73", "20.73"), {"rate"}, 2),
    "DDLB: least": ("ddlb.csv", replaced("0.19,", "0.2099,"), {"spread", "rate"}, 2),
    "DDLB: check": ("ddlb.csv", replaced('nccl",True', 'nccl",False'), {"wrong"}, 2),
    "SuperBench: code": ("superbench.jsonl", replaced('return_code":0', 'return_code":-1'),
                         {"failed"}, 1),
    "busbw nan": (TEXT, replaced("426.13", "   nan"), {"rate"}, 22),
    "busbw inf": (TEXT, replaced("426.13", "  -inf"), {"rate"}, 22),
    "time 0": (TEXT, replaced("64.50", " 0.00"), {"rate"}, 21),
    "a byte": (TEXT, replaced("  2097152 ", "  2097153 "), {"size"}, 21),
    "a byte of PARAM": ("param.txt", replaced(" 1048576 ", " 1048577 "), {"size"}, 4),
    "a byte without a collective": (
        "two_tables_prefixed.txt", replaced(" 1048576        131072", " 1048577        131072"),
        {"size"}, 12),
    "busbw of a rate of 0": ("two_tables_prefixed.txt", replaced(
        "10.24    0.10    0.10 ", "10.24    0.00    0.10 "), {"rate", "factor"}, 23),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_found(name: str, tmp_path: Path) -> None:
    file, change, rules, line = MUTATIONS[name]
    text = (FOREIGN / file).read_text()
    assert found_in(FOREIGN / file) == []
    path = tmp_path / file
    path.write_text(change(text))
    found = found_in(path)
    assert rules == {one.rule for one in found}
    assert line in {one.line for one in found}
    assert all(re.search(r"\d", one.message) or one.rule in ("failed", "wrong", "columns")
               for one in found)


def test_every_rule_has_a_mutation() -> None:
    assert set(RULES) == {"link", *(rule for _, _, rules, _ in MUTATIONS.values()
                                    for rule in rules)}


def test_a_rate_above_the_link() -> None:
    found = found_in(FOREIGN / TEXT, 450) + found_in(FOREIGN / "nvbandwidth.json", 277)
    assert found == [] == found_in(FOREIGN / TEXT, 427.06), "as the printed one"
    found = found_in(FOREIGN / TEXT, 426.5) + found_in(FOREIGN / "nvbandwidth.json", 276)
    assert [one.rule for one in found] == ["link"] * 2
    assert "427.06" in found[0].message


def test_findings_of_both_halves_of_a_row_differ(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_text(written.nccl_text(written.Sweep(
        "all_reduce", 8, "float", (2**20,), ((900.0, 900.0),))))
    found = found_in(path, link=0.1)
    assert len(found) == len({one.message for one in found}) == 2
    assert ["in-place" in one.message for one in found] == [False, True]


def test_the_implied_ranks_are_named(tmp_path: Path) -> None:
    path = tmp_path / TEXT
    path.write_text("".join(line for line in (FOREIGN / TEXT).read_text().splitlines(True)
                            if not re.match(r"#  Rank  [4-7]", line)))
    (found,) = found_in(path)
    assert "n = 8" in found.message and "states 4" in found.message


def test_one_of_another_n_stands_out_where_none_is_stated(tmp_path: Path) -> None:
    sweep = written.Sweep("all_gather", 12, "float", (2**18, 2**20, 2**22, 2**24),
                          ((900.0, 901.0), (3600.0, 3599.0), (14e3, 14e3), (56e3, 56e3)))
    text = re.sub(r"#  Rank.*\n", "", written.nccl_text(sweep))
    path = tmp_path / "table"
    path.write_text(text)
    assert found_in(path) == []
    busbw = f"{sweep.rates(sweep.sizes[2], 14e3)[1]:.2f}"
    path.write_text(text.replace(busbw, f"{float(busbw) * 1.05:.2f}", 1))
    assert {one.rule for one in found_in(path)} == {"factor", "average"}


def test_a_mutated_busbw_of_json_is_found(tmp_path: Path) -> None:
    sweep = written.Sweep("all_reduce", 8, "float", (2**18, 2**20, 2**22), ((900.0, 901.0),) * 3)
    data = json.loads(written.nccl_json(sweep))
    data["results"][1]["in_place"]["bus_bw"] *= 1.001
    path = tmp_path / "table.json"
    path.write_text(json.dumps(data))
    assert [(one.rule, one.line) for one in found_in(path)] == [("factor", 2), ("average", 0)]


def counted(path: Path) -> tuple[int, dict[str, int]]:
    linting = Linting("", None, as_json=True)
    linting.read(path)
    document = linting.document()
    return document["rows"] - sum(document["not_checked"].values()), document["not_checked"]


@pytest.mark.parametrize(("file", "checked", "others"), [
    (TEXT, 4, 0), ("osu_allgather_full.txt", 3, 0), ("osu_bw_checked.txt", 0, 2),
    ("two_tables_prefixed.txt", 3, 0), ("param.txt", 2, 0), ("superbench.jsonl", 4, 2),
    ("inspector.jsonl", 2, 0), ("ddlb.csv", 1, 0)])
def test_a_row_is_checked_or_counted(file: str, checked: int, others: int) -> None:
    n_checked, why = counted(FOREIGN / file)
    assert (n_checked, sum(why.values())) == (checked, others)


def test_a_table_of_no_known_collective_is_checked_but_for_its_factor(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    text = "".join(line for line in (FOREIGN / TEXT).read_text().splitlines(keepends=True)
                   if "Collective test starting" not in line)
    path.write_text(text)
    assert counted(path) == (4, {}) and not found_in(path)
    linting = Linting("", None, as_json=True)
    linting.read(path)
    assert linting.document()["without_factor"] == 4 and hpcbench("lint", str(path)).returncode == 0
    path.write_text(text.replace("243.50", "299.50"))
    assert "rate" in {one.rule for one in found_in(path)}


def test_nothing_to_check_is_no_success() -> None:
    path = FOREIGN / "osu_bw_checked.txt"
    assert counted(path)[0] == 0 and hpcbench("lint", str(path)).returncode == 3


def test_metrics_of_superbench_in_a_pattern(tmp_path: Path) -> None:
    """Several groups at a time are tables of their own; each is held against its factor."""
    names = {f"nccl-bw:pairs/allreduce_{step}_{group}:{size}_{what}:0": value
             for step in (0, 1) for group in (0, 1) for size in (1024, 4096)
             for what, value in (("busbw", 17.5), ("algbw", 10.0), ("time", 1.5))}
    path = tmp_path / "results-summary.jsonl"
    path.write_text(json.dumps({"node": "node1", **names, "nccl-bw:pairs/return_code": 0}) + "\n")
    assert (found_in(path), counted(path)) == ([], (9, {}))
    names["nccl-bw:pairs/allreduce_1_0:4096_busbw:0"] = 18.5
    names["nccl-bw:pairs/return_code"] = 3
    path.write_text(json.dumps({"node": "node1", **names}) + "\n")
    assert {one.rule for one in found_in(path)} == {"factor", "failed"}


def test_a_sweep_that_is_repeated_is_no_finding(tmp_path: Path) -> None:
    """nccl-tests -N 2 prints the rows of each cycle; sizes that fall otherwise are one."""
    counts = (2**18, 2**20, 2**22) * 2
    sweep = written.Sweep("all_reduce", 8, "float", counts, ((900.0, 901.0),) * 6)
    path = tmp_path / "cycles"
    path.write_text(written.nccl_text(sweep))
    assert found_in(path) == []
    path.write_text(written.nccl_text(replace(sweep, counts=(*sweep.counts[:4], 2**17, 2**22))))
    assert {one.rule for one in found_in(path)} == {"order"}
