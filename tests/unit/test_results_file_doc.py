"""Files have the parts that docs/results-file.md is made from, and its plots can be made."""

from __future__ import annotations

import fcntl
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
from hpcbench.reduce.kind_facts import COLUMNS, LINES_OF_CASES, deriver_of
from hpcbench.reduce.metric import KindColumns
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import RankTelemetry
from hpcbench.reduce.results_file import ATTRIBUTES as OF_RESULTS
from hpcbench.reduce.results_file import CONTENTS as TELEMETRY
from hpcbench.reduce.results_file import contents
from hpcbench.reduce.roofline import ROOFLINE
from hpcbench.report.summary import summary_document
from hpcbench.trace.sealed import ATTRIBUTES as OF_TRACE
from hpcbench.trace.sealed import CLOCKS, seal, write_clocks
from hpcbench.trace.sealed import CONTENTS as OF_A_TRACE
from launcher import ROOT
from results_factory import make_results

PAGE = (ROOT / "docs" / "results-file.md").read_text("utf-8")
BESIDE_CEILINGS = {column.name for column in ROOFLINE} | {
    "of_link", "of_measured_link", "measured_link_bytes_per_s", "of_measured_product",
    "of_declared_product", "mfu", "mfu_of_measured"}
"""Columns that are empty in runs that measure and declare no peak."""
KINDS = ("collective", "primitive", "training")
"""Kinds that the stored runs have cases of."""
RUNS = ROOT / "tests" / "data" / "golden" / "runs"
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


def test_results_have_the_parts_of_the_page(results: Path) -> None:
    told = contents(KindColumns())
    own = {f"cases/{column.name}" for spec in kinds().values()
           for column in deriver_of(spec).columns}
    with h5py.File(results / "results.h5") as file:
        found = parts(file)
        assert {name for name in told if not of_telemetry(name)} - {"/"} <= found.keys()
        assert found.keys() - told.keys() <= own
        for name, item in found.items():
            assert bool(item.attrs.get("units", "")) == isinstance(item, h5py.Dataset)
            assert name in own or item.attrs["description"] == told[name].text
        named = {"names", "values", "bits", "derived", "apart"}
        others = {attribute for item in found.values() for attribute in item.attrs}
        assert others - {"description", "units"} == named


def of_telemetry(name: str) -> bool:
    """Return whether only runs that read the machine have it; these older runs did not."""
    return name in TELEMETRY or name == "cases/usage"


def test_the_page_names_every_key_of_the_summary() -> None:
    summary = PAGE[PAGE.index("## summary.json and summary.csv"):]
    results = replace(make_results(()), telemetry=(RankTelemetry(0, 0, 2.0),))
    document = summary_document(results, [])
    missing = {name for name in document if f"`{name}`" not in summary}
    assert missing == {"cases", "schema_version"}


def test_a_trace_has_the_parts_of_the_page(trace: Path) -> None:
    with h5py.File(trace) as file:
        found = parts(file)
        told = {name for name in OF_A_TRACE if not name.startswith("telemetry")} - {"/", "plan"}
        assert told <= found.keys() <= {*OF_A_TRACE}
        assert all(item.attrs["description"] == OF_A_TRACE[name].text
                   for name, item in found.items())


def test_each_attribute_of_the_files_is_described(results: Path, trace: Path) -> None:
    for path, attributes in ((results / "results.h5", OF_RESULTS), (trace, OF_TRACE)):
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
                         ids=["h5py"])
def test_a_plot_can_be_made(
    results: Path, snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
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
