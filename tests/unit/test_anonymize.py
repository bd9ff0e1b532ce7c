"""hpcbench anonymize: no planted name is left in any byte, and every number is."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from hpcbench.anonymize import Pseudonyms, anonymize
from hpcbench.cli import app
from hpcbench.errors import FileError, UsageError
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results_file import open_results
from hpcbench.report.answer_lines import topic_results_in
from hpcbench.report.summary import write_reports
from hpcbench.trace.schema import Header, Record
from synthetic import make_case, plan_of, write_synthetic_run

NODES = ("acme-gpu017", "acme-gpu018")
BOOT = "40cbe5c1-aca8-4015-a83c-42cab5bdfce3"
UUID = "5c1f77aa-0001-4a4a-8b8b-123456789abc"
PLANTED = (
    "acme", "gpu017", "gpu018", "gpu019", "corp.example", "alice", "bobby", "secretproject",
    "10.20.30.40", "2001:db8::17", "fe80::a1", "02:42:ac:11:00:02", "e41d:2d03:00a1:b2c3",
    "7654321", "ml-account", "bigqueue", "nightly-llm", "tok_Planted99", BOOT, UUID, "5c1f77aa",
    "leaf-rack7", "/scratch", "/home", "intranet", "cache dir", "0123456789abcdef0123456789abcdef")
RUNNER = CliRunner()


def header(of: Header) -> Header:
    """Return a header of one of two nodes, with what a cluster's job says of itself."""
    name = NODES[of.rank // 2]
    environment = {
        **of.environment, "host": {"name": f"{name}.corp.example", "boot_id": BOOT},
        "variables": {"UCX_NET_DEVICES": "mlx5_0:1", "NCCL_HOSTID": f"{name}-hostid",
                      "OMPI_MCA_btl_tcp_if_include": "10.20.30.40/16",
                      "TORCH_HOME": "/scratch/bobby/cache dir/torch"},
        "scheduler": {"SLURM_JOB_ID": "7654321", "SLURM_JOB_NODELIST": "acme-gpu[017-018]",
                      "SLURM_JOB_NAME": "nightly-llm", "SLURM_JOB_PARTITION": "bigqueue",
                      "SLURM_JOB_ACCOUNT": "ml-account", "SLURMD_NODENAME": name,
                      "SLURM_TOPOLOGY_ADDR": f"core.leaf-rack7.{name}",
                      "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"},
        "libraries": {"worker": {"libtorch.so": {
            "path": "/home/alice/venv/lib/python3.11/site-packages/torch/lib/libtorch.so",
            "id": "sample:0123456789abcdef0123456789abcdee"}}},
        "network": {"interfaces": {"enx0242ac110002": {"mtu": 1500}},
                    "guid": "e41d:2d03:00a1:b2c3", "mac": "02:42:ac:11:00:02"},
        "gpu": {"uuid": f"GPU-{UUID}", "machine_id": "0123456789abcdef0123456789abcdef"}}
    versions = {**of.versions, "cudnn": "9.1.0.70",
                "mpi": "Open MPI v5.0.6, package: Open MPI alice@acme-gpu019 Distribution"}
    return replace(of, hostname=name, node=f"{name}/{BOOT}", environment=environment,
                   versions=versions)


def change(rank: int, record: Record) -> Iterable[Record]:
    """Have a case fail with a text that names all."""
    if record.case_id != FAILS.case_id:
        yield record
        return
    reason = ("RuntimeError: connect to [2001:db8::17]:29500 (10.20.30.40) from fe80::a1%ib0 as "
              "alice@acme-gpu019.corp.example failed at 12:34:56 in /scratch/bobby/cache "
              "dir/torch, see http://intranet.corp.example/secretproject and "
              "-I/home/alice/secretproject/inc, ~bobby/x/y; token=tok_Planted99 job 7654321, "
              "/usr/local/acme/bin/x")
    yield replace(record, status="failed", reason=reason, samples=record.samples, n_wrong=-1)


GOOD, FAILS = make_case(0, world_size=4, iterations=30), make_case(1, world_size=4, iterations=30)


def notes(rank: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "worker_output", {"text": f"File \"/home/alice/run.py\" on {NODES[1]}, rank {rank}"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("written") / "acme-run")


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    """Return a run that a test may change."""
    return shutil.copytree(written, tmp_path / "acme-run", symlinks=True)


def write_run(folder: Path, *, sealed: bool = True) -> Path:
    plan = plan_of([GOOD, FAILS], 4)
    config = {**plan.config, "title": "alice's secretproject on acme-gpu017",
              "output": {"folder": "/scratch/bobby/results", "plots": False},
              "launch": {"address": "acme-gpu017.corp.example"}}
    plan = replace(plan, config=config)
    write_synthetic_run(folder, plan, headers=header, change=change, notes=notes, sealed=sealed)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "profile").mkdir()
    (folder / "profile" / "alice.json.gz").write_bytes(gzip.compress(json.dumps(
        {"host": "acme-gpu017", "traceEvents": [{"name": "/home/alice/x/y.py(3)", "ts": 1.5}]}
    ).encode()))
    (folder / "slurm-7654321.log").write_text("acme-gpu018: bobby\n/scratch/a/b 10.20.30.40\n")
    (folder / "profile" / "acme.nsys-rep").write_bytes(b"\0acme-gpu017")
    (folder / "link").symlink_to("/home/alice")
    if sealed:
        write_reports(reduce_folder(folder), folder, topic_results_in(folder))
    return folder


def everything(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and all that can be read of each file: bytes, and texts that are packed."""
    for path in sorted(folder.rglob("*")):
        yield str(path.relative_to(folder)), str(path.relative_to(folder))
        if path.is_dir() or path.is_symlink():
            continue
        data = path.read_bytes()
        yield path.name, data.decode("latin-1")
        if path.suffix == ".gz":
            yield path.name, gzip.decompress(data).decode()
        if path.suffix == ".h5":
            yield from ((path.name, text) for text in texts_of(path))


def texts_of(path: Path) -> list[str]:
    """Return the texts in datasets and attributes."""
    found: list[str] = []

    def collect(name: str, item: h5py.Group | h5py.Dataset) -> None:
        found.extend([name, *map(str, item.attrs.values())])
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "SO":
            found.extend(text.decode() for text in np.atleast_1d(item[()]))

    with h5py.File(path) as file:
        collect("/", file)
        file.visititems(collect)
    return found


def leaks(folder: Path) -> list[tuple[str, str]]:
    return [(name, planted) for name, text in everything(folder) for planted in PLANTED
            if planted.lower() in text.lower()]


def copy_of(run: Path, *args: str) -> Path:
    """Copy by the command, as a user does."""
    target = run.with_name("copy")
    done = RUNNER.invoke(app, ["anonymize", str(run), "-o", str(target), "--hide", "secretproject",
                               "--hide", "acme", *args])
    assert done.exit_code == 0, done.output
    return target


def test_no_planted_name_is_left_in_any_file(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "tok_Planted99")
    assert len({planted for _, planted in leaks(run)}) == len(PLANTED)
    copy = copy_of(run)
    assert leaks(copy) == []
    names = {path.name for path in copy.rglob("*")}
    assert {"results.h5", "summary.json", "summary.csv", "report.html", "config.json",
            "plan.json", "rank00003.h5"} <= names
    assert not {"link", "acme.nsys-rep"} & names


def test_numbers_are_the_same_and_names_stay_apart(run: Path) -> None:
    copy = copy_of(run)
    with open_results(run) as before, open_results(copy) as after:
        assert [(one.case, one.status, one.statistics, one.timing) for one in after.results.cases
                ] == [(one.case, one.status, one.statistics, one.timing)
                      for one in before.results.cases]
        assert after.results.run.nodes == ("node1", "node2")
        assert [place.hostname for place in after.results.topology.ranks] == [
            "node1", "node1", "node2", "node2"]
        assert after.results.run.versions["cudnn"] == "9.1.0.70"
    for name in ("results.h5", "traces/rank00002.h5"):
        with h5py.File(run / name) as old, h5py.File(copy / name) as new:
            numbers = [key for key in _datasets(old) if old[key].dtype.kind != "S"]
            assert _datasets(old) == _datasets(new) and len(numbers) > 10
            for key in numbers:
                np.testing.assert_array_equal(old[key][:], new[key][:])


def _datasets(file: h5py.File) -> list[str]:
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(
        item, h5py.Dataset) else None)
    return found


def test_a_copy_is_read_reduced_and_compared_as_any_run(run: Path) -> None:
    copy = copy_of(run)
    before = (copy / "summary.csv").read_text()
    for command in (["show", str(copy)], ["compare", str(run), str(copy)], ["reduce", str(copy)],
                    ["report", str(copy), "--force"]):
        done = RUNNER.invoke(app, command)
        assert done.exit_code in (0, 1), done.output
    assert (copy / "summary.csv").read_text() == before
    switches = [place.switches for place in reduce_folder(copy).topology.ranks]
    assert switches == [("switch1", "switch2")] * 4


def test_one_name_has_one_replacement_in_all_files(run: Path) -> None:
    copy, mapping = run.with_name("copy"), run.with_name("names.json")
    copy_of(run, "--mapping", str(mapping))
    names = json.loads(mapping.read_text())
    assert names["node"]["acme-gpu017"] == "node1" and mapping.stat().st_mode & 0o77 == 0
    assert not list(copy.rglob("*names*"))
    assert json.loads((copy / "config.json").read_text())["launch"]["address"] == "node1"
    user, log = names["user"]["bobby"], next(copy.glob("slurm-*.log")).read_text()
    assert f"node2: {user}" in log and names["address"]["10.20.30.40"] in log
    with h5py.File(copy / "traces/rank00000.h5") as file:
        assert file.attrs["hostname"] == "node1"
        environment = json.loads(file["environment"][0])
        assert environment["libraries"]["worker"]["libtorch.so"]["path"].endswith(
            "/site-packages/torch/lib/libtorch.so")
        assert environment["scheduler"]["SLURM_JOB_ID"] == names["job"]["7654321"]


def test_journals_of_a_run_that_was_killed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "acme-run", sealed=False)
    copy = copy_of(run)
    assert leaks(copy) == [] and len(list(copy.rglob("*.journal"))) == 4
    kept = [[(item.case.case_id, item.status, item.statistics) for item in reduce_folder(one).cases]
            for one in (run, copy)]
    assert kept[0] == kept[1]


def test_words_that_are_results_stay_where_they_are(tmp_path: Path) -> None:
    """A host with the name of a backend: its fields are replaced, results keep theirs."""
    run = tmp_path / "run"
    write_synthetic_run(run, plan_of([GOOD], 4),
                        headers=lambda of: replace(of, hostname="gloo", node="gloo"))
    write_reports(reduce_folder(run), run, topic_results_in(run))
    anonymize(run, tmp_path / "copy")
    with open_results(tmp_path / "copy") as file:
        assert file.results.run.nodes == ("node1",)
        assert file.results.cases[0].case.backend == "gloo"


@pytest.mark.parametrize("what", ["absent", "empty", "suite", "there", "inside", "damaged"])
def test_what_cannot_be_copied_is_one_line(run: Path, tmp_path: Path, what: str) -> None:
    source, target = run, tmp_path / "copy"
    if what == "absent":
        source = tmp_path / "absent"
    elif what == "empty":
        source = tmp_path / "empty"
        source.mkdir()
    elif what == "suite":
        (run / "suite.json").write_text("{}")
    elif what == "there":
        target.mkdir()
        (target / "mine").write_text("mine")
    elif what == "inside":
        target = run / "copy"
    else:
        data = bytearray((run / "results.h5").read_bytes())
        data[-100] ^= 1
        (run / "results.h5").write_bytes(data)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((FileError, UsageError)) as caught:
        anonymize(source, target)
    assert "\n" not in str(caught.value) and sorted(tmp_path.rglob("*")) == before
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("text", "expected"), [
    ("GB/s tokens/s 1/2/3 mpi/direct 12:34:56 c10d::all_reduce", None),
    ("/sys/devices/cpu0/x /dev/nvidia0 127.0.0.1 ::1 0.0.0.0", None),
    ("n17:88 [0] NCCL n17.hpc.edu n171 xn17", "node1:88 [0] NCCL node1 n171 xn17"),
    ("--file=/a/b c '/a/b' /a/b/c", "--file=/path1 c '/path1' /path2"),
    ("tcp://10.1.2.3:5 10.1.2.3.", "tcp://url1 address1."),
    ("2001:db8::1, 2001:db8::1%eth0", "address1, address2"),
    ("/opt", "/path1"),
    ("token=abcdefgh1", "token=***")])
def test_names_in_a_line(text: str, expected: str | None) -> None:
    names = Pseudonyms({"n17": "node", "n17.hpc.edu": "node"}, {})
    assert names.text(text) == (text if expected is None else expected)


def test_hosts_of_one_name_in_two_domains_stay_two() -> None:
    names = Pseudonyms(dict.fromkeys(("n17", "n17.a.org", "n17.b.org"), "node"), {})
    assert len({names.text(host) for host in ("n17.a.org", "n17.b.org")}) == 2


def test_who_copies_is_not_in_the_copy(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "carolcopy")
    (run / "note.txt").write_text(f"by carolcopy in {Path.cwd()}\n")
    copy = copy_of(run)
    assert "carolcopy" not in (copy / "note.txt").read_text()
    assert str(Path.cwd()) not in (copy / "note.txt").read_text()
    assert run.parent.name not in (copy / "report.html").read_text()
