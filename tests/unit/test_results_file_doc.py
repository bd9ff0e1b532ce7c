"""docs/results-file.md names every part of both files, and its plots can be made."""

from __future__ import annotations

import fcntl
import fnmatch
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import pytest

from hpcbench.kinds.registry import kinds
from hpcbench.reduce import run_checks as environments
from hpcbench.reduce.kind_facts import COLUMNS, LINES_OF_CASES, KindColumns, deriver_of
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import RankTold
from hpcbench.reduce.results_file import ATTRIBUTES as OF_RESULTS
from hpcbench.reduce.results_file import CONTENTS as TELEMETRY
from hpcbench.reduce.results_file import contents
from hpcbench.reduce.roofline import ROOFLINE_COLUMNS
from hpcbench.report.summary import summary_document
from hpcbench.trace.sealed import ATTRIBUTES as OF_TRACE
from hpcbench.trace.sealed import CLOCKS, seal, write_clocks
from hpcbench.trace.sealed import CONTENTS as OF_A_TRACE
from hpcbench.views.presenter import presenter_of
from launcher import ROOT
from results_factory import make_results

PAGE = (ROOT / "docs" / "results-file.md").read_text("utf-8")
_, OF_ALL_KINDS, TRACE = re.split(r"\n## (?=results\.h5|A trace)", PAGE)
BESIDE_CEILINGS = {column.name for column in ROOFLINE_COLUMNS} | {
    "of_link", "of_measured_link", "measured_link_bytes_per_s", "of_measured_product",
    "of_declared_product", "mfu", "mfu_of_measured"}
"""Columns that are empty in runs that measure and declare no peak."""
KINDS = ("collective", "primitive", "training")
"""Kinds that the stored runs have cases of."""
RESULTS = re.sub(rf"\n### Columns of kind (?!{'|'.join(KINDS)})\w+\n.*?(?=\n###|\n\n\w)", "",
                 OF_ALL_KINDS, flags=re.DOTALL)
BITS = RESULTS[RESULTS.index("## Bits of a sample"):]
RUNS = ROOT / "tests" / "data" / "golden" / "runs"
USAGE = "cases/usage"
AS_IN_RESULTS = {f"samples/{name}" for name in (
    "device_ns", "enqueue_ns", "start_ns", "end_ns", "flags")}
"""Of a trace, what the page tells of results.h5 alone."""
SEVERAL = {"TABLE": [*TELEMETRY], "KIND": [f"derived/{kind}" for kind in KINDS]}
"""Word in the name of a row that stands for several parts of the file -> these and others."""
Parts = Mapping[str, h5py.Group | h5py.Dataset]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results with cases of all kinds."""
    folder = tmp_path_factory.mktemp("mixed") / "run"
    shutil.copytree(RUNS / "mixed", folder)
    reduce_folder(folder)
    return folder


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of rank 0 of all kinds, with phases."""
    path = tmp_path_factory.mktemp("trace") / "rank00000.h5"
    seal(ROOT / "tests" / "data" / "journal-v2-phases.journal", path)
    return path


def parts(file: h5py.File) -> Parts:
    found: dict[str, Any] = {}
    file.visititems(found.__setitem__)
    return found


def rows(text: str) -> dict[str, tuple[str, ...]]:
    """Return the cells of each row of the page's tables by its first cell."""
    cells = (line.strip("| ").split(" | ") for line in text.splitlines()
             if re.match(r"\| (`|\d)", line))
    return {first.strip("`"): tuple(rest) for first, *rest in cells}


def described(text: str) -> dict[str, tuple[str, str]]:
    """Return units and description of each dataset and group that the page names."""
    pattern = re.compile(r"^\| `/([\w/]+)` \|([^|]*)\| (.*) \|$", re.MULTILINE)
    return {one: (units.strip(), what.replace("KIND", one.rpartition("/")[2]))
            for name, units, what in pattern.findall(text) for one in meant(name)}


def meant(name: str) -> list[str]:
    """Return the parts that a row is of: one, or several of a word in capitals."""
    return next((fnmatch.filter(parts, name.replace(word, "*"))
                 for word, parts in SEVERAL.items() if word in name), [name])


def test_the_page_and_results_say_the_same(results: Path) -> None:
    page = described(RESULTS)
    own = {f"cases/{column.name}" for spec in kinds().values()
           for column in deriver_of(spec).columns}
    with h5py.File(results / "results.h5") as file:
        found = parts(file)
        assert {name for name in page if not of_telemetry(name)} == found.keys()
        for name, item in found.items():
            units, what = item.attrs.get("units", ""), item.attrs["description"]
            assert page[name][0] == units, name
            assert page[name][1] in what if name in own else page[name][1] == what, name
            assert bool(units) == isinstance(item, h5py.Dataset)
        named = {"names", "values", "bits", "record", "fields", "version"}
        others = {attribute for item in found.values() for attribute in item.attrs}
        assert others - {"description", "units"} == named
        assert all(f"`{name}`" in PAGE or f" {name} (" in PAGE for name in named)
        numbered = [line.split(" ", 1) for line in file["samples/use"].attrs["values"]]
        assert numbered == [[number, ": ".join(cells).replace("`", "")] for number, cells in
                            rows(RESULTS[:RESULTS.index("### Columns of all")]).items()
                            if number.isdigit()]


@pytest.mark.parametrize("kind", ["hardware", "memory", *KINDS])
def test_the_page_has_the_columns_of_each_kind(kind: str) -> None:
    _, section = OF_ALL_KINDS.split(f"### Columns of kind {kind}\n")
    page = described(re.split(r"\n###|\n\n\w", section)[0])
    assert page == {f"cases/{column.name}": (column.units, column.text)
                    for column in deriver_of(kinds()[kind]).columns}


@pytest.mark.parametrize("kind", ["hardware", "memory"])
def test_the_page_names_what_the_summary_adds(kind: str) -> None:
    """Fields that are no column, and all keys of the document."""
    summary = PAGE[PAGE.index("## summary.json and summary.csv"):]
    own = {column.name for column in deriver_of(kinds()[kind]).columns}
    added = {name for name in presenter_of(kind).fields if name not in own}
    document = summary_document(replace(make_results(()), told=(RankTold(0, 0, 2.0),)), [])
    for name in {*added, *document} - {"cases", "results"}:
        shown = re.sub("^.*(?=_bytes_of_peak_predicted)", "*", name)
        assert f"`{shown}`" in summary, name


def of_telemetry(name: str) -> bool:
    """Return whether only runs that read the machine have it; these older runs did not."""
    return name in TELEMETRY or name == USAGE


def test_the_page_and_readings_say_the_same() -> None:
    page, described_here = described(RESULTS), contents(KindColumns((), {}, {}), ())
    for name in (*TELEMETRY, USAGE):
        what = described_here[name]
        assert page[name] == (what.units, what.text.removesuffix("; -1 if not read")), name
    of_trace = {name: what for name, what in OF_A_TRACE.items() if name.startswith("telemetry/")}
    own = {name for name in TELEMETRY if name.rpartition("/")[2] in ("rank", "attempt", "sources")}
    assert of_trace.keys() == TELEMETRY.keys() - own - {"telemetry"}


def test_the_page_and_a_trace_say_the_same(trace: Path) -> None:
    page = described(TRACE) | {
        name: what for name, what in described(RESULTS).items() if name in AS_IN_RESULTS}
    with h5py.File(trace) as file:
        found = parts(file)
        assert found.keys() - CLOCKS.keys() == page.keys() - CLOCKS.keys()
        assert all(page[name] == (item.attrs.get("units", ""), item.attrs["description"])
                   for name, item in found.items() if name not in CLOCKS)
        bits = [line.split(" ", 1) for line in file["samples/flags"].attrs["bits"]]
    assert bits == [[bit, ": ".join(cells).replace("`", "")]
                    for bit, cells in rows(BITS).items() if bit.isdigit()]


def test_each_attribute_of_the_files_is_on_the_page(results: Path, trace: Path) -> None:
    for path, attributes, text in ((results / "results.h5", OF_RESULTS, RESULTS),
                                   (trace, OF_TRACE, TRACE)):
        page = {name: cells[0] for name, cells in rows(text).items() if name in attributes}
        assert page == dict(attributes)
        with h5py.File(path) as file:
            told = dict(line.split(": ", 1) for line in file.attrs["attributes"])
            assert told.keys() == {*file.attrs} - {"description", "attributes"}
            assert told.items() <= attributes.items()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_one_kind_has_its_columns(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / kind
    shutil.copytree(RUNS / kind, folder)
    items = reduce_folder(folder).cases
    own = {column.name for column in deriver_of(kinds()[kind]).columns}
    with h5py.File(folder / "results.h5") as file:
        cases = file["cases"]
        assert {*cases} - {*LINES_OF_CASES} == {column.name for column in COLUMNS} | own
        assert cases["kind"].asstr()[:].tolist() == [kind] * len(items)
        assert cases["backend"].asstr()[:].tolist() == [item.case.backend for item in items]
        filled = {name for name in own if any(
            str(value) not in ("", "-1", "nan", "b''") for value in cases[name][:].tolist())}
        own -= BESIDE_CEILINGS
        assert len(filled & own) > 0.7 * len(own), own - filled


def test_rates_are_those_of_the_medians(results: Path) -> None:
    with h5py.File(results / "results.h5") as file:
        read = {name: file[f"cases/{name}"][:] for name in (
            "kind", "status", "size_bytes", "median_s", "algbw_bytes_per_s", "busbw_factor",
            "busbw_bytes_per_s", "global_batch", "samples_per_s")}
    some = (read["status"] == b"ok") & (read["busbw_factor"] > 0)
    assert some.any()
    algbw = read["size_bytes"][some] / read["median_s"][some]
    assert read["algbw_bytes_per_s"][some] == pytest.approx(algbw)
    assert read["busbw_bytes_per_s"][some] == pytest.approx(algbw * read["busbw_factor"][some])


@pytest.mark.parametrize("snippet", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL),
                         ids=["h5py", "pandas"])
def test_a_plot_can_be_made(
    results: Path, snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "import pandas" in snippet:
        pytest.importorskip("pandas", reason="pandas is not installed")
    assert snippet.count("\n") <= 17
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "latest").symlink_to(results)
    monkeypatch.chdir(tmp_path)
    with (results / "results.h5").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as on a share that has no locks
        exec(compile(snippet, "docs/results-file.md", "exec"), {})
    assert (tmp_path / "busbw.png").stat().st_size > 5000


def test_both_ways_to_write_clocks_describe_the_same(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write_clocks(file, [])
        assert {f"clock/{name}" for name in file["clock"]} | {"clock"} == CLOCKS.keys()


def test_the_topics_of_the_environment_are_those_of_their_page(results: Path) -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text("utf-8").split("\n#")[1]
    topics = {name for line in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
              for name in re.findall("`(\\w+)`", line)}
    with h5py.File(results / "results.h5") as file:
        environment = json.loads(file["run"][0])["environment"]
    later = {"gpu_topology"}  # these traces are older
    rare = {"faults", "lost"}
    assert topics - rare - later == environment.keys() - rare
    assert {"MOMENTARY", "RANK_SPECIFIC"} <= vars(environments).keys()
