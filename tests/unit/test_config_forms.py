"""What stands for a sweep: results, stored plans, names in place of names, declared hardware."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import pytest
from typer.testing import CliRunner

from figure_texts import first_figure, texts_of
from golden import EXPECTED, GOLDEN, RUNS
from hpcbench.cli import app
from hpcbench.config.load import check_config, load_config
from hpcbench.config.schema import Config, stored_config
from hpcbench.errors import ConfigError, UsageError
from hpcbench.plan.case import Plan
from hpcbench.plan.expand import make_plan
from hpcbench.report.console import print_results
from hpcbench.report.summary import write_summary
from hpcbench.texts import Verbosity
from hpcbench.trace.container import SEAL_BYTES
from hpcbench.trace.journal import MAGIC
from hpcbench.views.table import declared_links
from results_factory import make_case, make_results, ok

FOREIGN = "hpcbench reads its own results only; give the config that they were made from"


def complaint(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(path)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(f"{path}: looks like ")
    return text.removeprefix(f"{path}: looks like ")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a copy of a run's folder."""
    shutil.copytree(RUNS["training"], tmp_path / "run")
    for name in ("summary.json", "summary.csv"):
        shutil.copy(EXPECTED / "training" / name, tmp_path / "run")
    shutil.copy(GOLDEN / "configs/training.json", tmp_path / "run/config.json")  # its keys of today
    return tmp_path / "run"


@pytest.mark.parametrize(("name", "what", "shown"), [
    ("plan.json", "the plan of a run", "."), ("summary.json", "the summary of a run", "."),
    ("summary.csv", "the table of cases of a run", "."),
    ("results.h5", "the results of a run", "results.h5"), ("traces/rank00000.h5", "a trace", ".")])
def test_a_file_of_a_run_states_how_the_run_is_shown(
    run: Path, name: str, what: str, shown: str,
) -> None:
    assert complaint(run / name) == (
        f"{what}, not a config; hpcbench show {run / shown} prints it, and {run / 'config.json'} "
        "is its config")
    assert CliRunner().invoke(app, ["show", str(run / shown)]).exit_code == 0
    load_config(run / "config.json")


def test_a_journal_states_how_results_are_made_of_it(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    path = tmp_path / "traces/rank00000.journal"
    path.write_bytes(MAGIC + b"\0" * 100)
    assert complaint(path) == (f"the journal of a run, not a config; hpcbench reduce {tmp_path} "
                               "makes results of it")


def test_an_hdf5_file_of_others_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.json", "w"):
        pass
    assert complaint(tmp_path / "x.json") == (
        "an HDF5 file, not a config; give a JSON or YAML sweep file")


@pytest.mark.parametrize(("data", "what"), [
    ({"name": "x", "world_size": 2, "timestamp": "t", "config": {}, "results": {}},
     "results of a benchmark"),
    ([{"timestamp": 1, "results": {}}], "results of a benchmark"),
    ({"version": 3, "results": [], "out_of_bounds": {"count": 0}}, "results of nccl-tests (-J)"),
    ({"results": [], "average_bus_bandwidth": {}}, "results of nccl-tests (-J)"),
    ({"traceEvents": [], "schemaVersion": 1}, "a Chrome trace of a profiler"),
    ([{"ph": "X", "ts": 1, "name": "x"}], "a Chrome trace of a profiler")])
def test_results_of_others_are_named(tmp_path: Path, data: Any, what: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(data))
    assert complaint(path) == f"{what}, not a config; {FOREIGN}"


@pytest.mark.parametrize(("head", "what"), [
    (b"format hpcbench-results\nschema_version 2\n".ljust(SEAL_BYTES, b"\n"),
     "the results of a run"),
    (b"\x89HDF\r\n\x1a\n" + bytes(439) + b"format hpcbench-trace\nschema_version 2\n",
     "a trace"),
    (b'{"schemaVersion": 1, "traceEvents": [', "a Chrome trace of a profiler"),
    (b'{\n  "schema": "hpcbench.summary",', "the summary of a run")])
def test_large_results_are_named_by_how_they_begin(tmp_path: Path, head: bytes, what: str) -> None:
    path = tmp_path / "large"
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(2**30)
    assert complaint(path).startswith(f"{what}, not a config; ")


@pytest.mark.parametrize("words", [("plan",), ("list",)])
def test_what_a_command_prints_as_json_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "printed.json"
    path.write_text(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert complaint(path) == (f"JSON of hpcbench {words[0]}, not a config; give a sweep file; "
                               "hpcbench gen-config makes one")


def test_the_command_ends_with_code_2_in_one_line(run: Path) -> None:
    done = CliRunner().invoke(app, ["plan", str(run / "plan.json")])
    assert isinstance(done.exception, UsageError) and done.exception.exit_code == 2


def test_a_list_of_configs_is_reported_as_one(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    path.write_text(json.dumps([{"hardware": {}}, {"hardware": {}}]))
    with pytest.raises(UsageError, match="is a list of 2 mappings, and a config is one; write each "
                       "to a file of its own"):
        load_config(path)


SMALL: dict[str, Any] = {
    "kind": "training", "model": ["gpt2", "bert-large"], "layers": 2, "hidden": 1536,
    "strategies": {"data": {}, "fsdp": {"reshard": [False]}}, "seq_length": 64}
COMM = {"kind": "collective", "collective": "all_reduce", "size": 8}


def loaded(folder: Path, *overrides: tuple[str, object], **top: Any) -> Config:
    path = folder / "sweep.json"
    path.write_text(json.dumps({"benchmarks": [COMM, SMALL], **top}))
    return load_config(path, overrides)


def planned(config: Config) -> Plan:
    return make_plan(config, 4)


def test_a_model_that_is_named_keeps_its_extents(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("model", ["gpt2"]))
    assert {(case.workload.model, case.workload.layers) for case in planned(config).cases} == {
        ("gpt2", 2)}
    assert config.notes == ()


def test_another_model_replaces_it_without_its_extents(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("model", ["transformer-large"]))
    works = [case.workload for case in planned(config).cases]
    assert {(work.model, work.layers, work.hidden, work.seq_length) for work in works} == {
        ("transformer-large", 24, 2048, 64)}
    assert config.notes == ("benchmarks[1]: model transformer-large instead of gpt2, bert-large; "
                            "dropped: layers 2, hidden 1536",)


def test_strategies_keep_their_options_where_they_are_named(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("strategy", ["fsdp", "zero1"]), ("model", ["gpt2"]))
    assert {(case.workload.strategy, dict(case.workload.options).get("reshard"))
            for case in planned(config).cases} == {("fsdp", False), ("zero1", None)}
    assert config.notes == ("benchmarks[1]: strategies fsdp, zero1 instead of data, fsdp",)


def test_the_file_may_name_them_and_an_assignment_wins(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("benchmarks.1.layers", 3), model="transformer-small")
    assert {(case.workload.model, case.workload.layers) for case in planned(config).cases} == {
        ("transformer-small", 3)}


def test_a_kept_configuration_is_read_as_it_is(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("model", ["transformer-large"]), ("benchmarks.1.layers", 3))
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(config.plain()))
    assert load_config(kept).plain() == config.plain()


@pytest.mark.parametrize(("overrides", "message"), [
    ([("model", ["gpt3"])], 'benchmarks: training-2: model: "gpt3" is not known; did you mean'),
    ([("strategy", ["fsd"])], 'strategies.fsd: "fsd" is not known; did you mean "fsdp"?'),
    ([("model", 3)], "command line: model: must be text, not 3"),
    ([("model", ["gpt2"]), ("benchmark", "comm")], "model: no case of the sweep has a model"),
])
def test_names_that_are_none_are_refused(
    tmp_path: Path, overrides: list[tuple[str, object]], message: str,
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(loaded(tmp_path, *overrides))
    assert message in str(caught.value)


def test_what_models_of_another_sort_lack_is_left_out(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("model", ["resnet50"]))
    assert planned(config).cases and "seq_length 64" in config.notes[0]
    both = loaded(tmp_path, ("model", ["resnet50", "llama3-8b"]))
    assert both.benchmarks[1].seq_length == (64,)


def test_the_own_block_of_a_kind_takes_any_model(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("benchmark", "memory"), ("model", ["resnet50"]))
    assert {case.workload.training.model for case in planned(config).cases} == {"resnet50"}


LINKS = {"interconnect": "infiniband", "link_peaks": {"nvlink": 450.0},
         "network_bandwidth_gbps": 400.0}
DECLARED = "declared: interconnect infiniband, nvlink 450 GB/s, network 400 Gbit/s a node"


def estimate_s(ranks: int, **hardware: Any) -> float:
    (case,) = make_plan(check_config({"hardware": hardware, "benchmarks": [{
        "kind": "collective", "collective": "all_reduce", "backend": "nccl", "device": "cuda",
        "size": "1GiB"}]}, "test"), ranks).cases
    return case.estimate_s


@pytest.mark.parametrize(("hardware", "text"), [
    (LINKS, DECLARED), ({"interconnect": "pcie"}, "declared: interconnect pcie"), ({}, ""),
    ({"interconnect": None, "link_peaks": {}, "network_bandwidth_gbps": None}, "")])
def test_declared_links_in_words(hardware: dict[str, Any], text: str) -> None:
    assert declared_links({"hardware": hardware}) == text


def test_links_are_shown_beside_bandwidths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    results = make_results((ok(make_case()),))
    print_results(results, tmp_path, Verbosity.VERBOSE)
    assert "declared:" not in capsys.readouterr().out
    results = replace(results, plan=replace(results.plan, config={"hardware": LINKS}))
    print_results(results, tmp_path, Verbosity.VERBOSE)
    assert DECLARED in capsys.readouterr().out
    assert DECLARED in texts_of(first_figure(results)).replace("\n", " ")
    write_summary(results, tmp_path)
    document = json.loads((tmp_path / "summary.json").read_text())
    assert document["config"]["interconnect"] == "infiniband"


def test_the_network_is_not_for_ranks_of_one_node() -> None:
    slow = {"network_bandwidth_gbps": 1}
    assumed = estimate_s(8)
    assert estimate_s(8, **slow) > 10 * assumed
    assert estimate_s(8, **slow, num_devices=8) == assumed
    assert estimate_s(16, **slow, num_devices=8) == estimate_s(16, **slow)


def test_a_key_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="interconect.*interconnect"):
        check_config({"hardware": {"interconect": "nvlink"}, "benchmarks": [{
            "kind": "collective", "collective": "barrier"}]}, "test")
    with pytest.raises(ConfigError, match="price_per_device_hour"):
        check_config({"hardware": {"price_per_device_hour": -1}, "benchmarks": [{
            "kind": "collective", "collective": "barrier"}]}, "test")


BLOCK = {"kind": "collective", "collective": "all_reduce", "backend": "gloo", "size": "1KiB"}


def test_what_this_version_writes_comes_back_the_same_but_for_its_blocks() -> None:
    config = check_config({
        "benchmarks": [BLOCK], "launch": {"port": {"from": 7, "to": 9}, "pass_env": "A_*"},
        "fault": [{"rank": 1, "kind": "slow"}], "notes": "one",
        "required_backends": "gloo"}, "test")
    plain = json.loads(json.dumps(config.plain()))
    assert stored_config(plain).plain() == {**plain, "benchmarks": []}
    assert stored_config(plain).launch.port == (7, 9)
    of_a_plugin = {**plain, "benchmarks": [{"kind": "not_installed"}]}
    assert stored_config(of_a_plugin) == stored_config(plain)


def test_what_another_version_wrote_is_refused_with_its_keys() -> None:
    with pytest.raises(ConfigError, match="another version.* not read launch.of_another_time"):
        stored_config({"launch": {"timeout_s": 5.0, "of_another_time": 3}})
