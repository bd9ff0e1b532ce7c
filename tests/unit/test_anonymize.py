"""hpcbench anonymize: no planted name is left in any byte, and every number is."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.errors import FileError, UsageError
from hpcbench.interop.anonymize import Pseudonyms, anonymize
from hpcbench.interop.formats.export.cases import ExportRequest
from hpcbench.interop.formats.export.write import FORMATS, export_files
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results_file import open_results
from planted import (
    ENVIRON,
    GOOD,
    HIDDEN,
    NAMES,
    SAID_TOKENS,
    TOKENS,
    left_in,
    write_planted_run,
)
from synthetic import plan_of, write_synthetic_run

PLANTED = (*chain.from_iterable(NAMES.values()), *TOKENS)
RUNNER = CliRunner()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with all that is planted, and a note that the one who copies has left."""
    run = write_planted_run(tmp_path_factory.mktemp("written") / "acme-run")
    (run / "note.txt").write_text(f"by carolcopy in {Path.cwd()}: {SAID_TOKENS}\n")
    return run


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    """Return a run that a test may change."""
    return shutil.copytree(written, tmp_path / "acme-run", symlinks=True)


@pytest.fixture(scope="module")
def copied(written: Path) -> Path:
    """Copy by the command, as a user does; no test changes it."""
    target = written.with_name("copy")
    hidden = chain.from_iterable(("--hide", name) for name in HIDDEN)
    done = RUNNER.invoke(app, [
        "anonymize", str(written), "-o", str(target), *hidden, "--mapping",
        str(written.with_name("names.json"))], env={**ENVIRON, "LOGNAME": "carolcopy"})
    assert done.exit_code == 0, done.output
    return target


def test_no_planted_name_is_left_in_any_file(written: Path, copied: Path) -> None:
    assert {word for _, word in left_in(written, PLANTED)} == set(PLANTED)
    assert left_in(copied, [*PLANTED, "carolcopy", str(Path.cwd()), written.parent.name]) == []
    names = {path.name for path in copied.rglob("*")}
    assert {"results.h5", "summary.json", "summary.csv", "report.html", "config.json",
            "plan.json", "rank00003.h5"} <= names
    assert not {"link", "acme.nsys-rep"} & names


def test_no_planted_name_is_in_an_export_of_the_copy(copied: Path, tmp_path: Path) -> None:
    exported = 0
    for name in FORMATS:
        with suppress(UsageError):  # some have no table of all_reduce alone
            content, lines = export_files([copied], name, ExportRequest())
            (tmp_path / f"of-{name}").write_bytes(content.content)
            (tmp_path / f"of-{name}.lines").write_text("\n".join(lines))
            exported += 1
    assert exported >= 11 and left_in(tmp_path, PLANTED) == []


def test_a_copy_of_a_copy_is_the_same(copied: Path, tmp_path: Path) -> None:
    names, _ = anonymize(copied, tmp_path / copied.name)
    with open_results(copied) as once, open_results(tmp_path / copied.name) as twice:
        assert twice.results.cases == once.results.cases
        assert twice.results.run == once.results.run and twice.results.plan == once.results.plan
    assert sorted(path.name for path in copied.rglob("*")) == sorted(
        path.name for path in (tmp_path / copied.name).rglob("*"))
    assert names.keys() <= {"node"}  # this machine


def test_numbers_are_the_same_and_names_stay_apart(written: Path, copied: Path) -> None:
    with open_results(written) as before, open_results(copied) as after:
        assert [(one.case, one.status, one.statistics, one.timing) for one in after.results.cases
                ] == [(one.case, one.status, one.statistics, one.timing)
                      for one in before.results.cases]
        assert after.results.run.nodes == ("node1", "node2")
        assert [place.hostname for place in after.results.topology.ranks] == [
            "node1", "node1", "node2", "node2"]
        assert after.results.run.versions["cudnn"] == "9.1.0.70"
    for name in ("results.h5", "traces/rank00002.h5"):
        with h5py.File(written / name) as old, h5py.File(copied / name) as new:
            numbers = [key for key in _datasets(old) if old[key].dtype.kind != "S"]
            assert _datasets(old) == _datasets(new) and len(numbers) > 10
            for key in numbers:
                np.testing.assert_array_equal(old[key][:], new[key][:])


def _datasets(file: h5py.File) -> list[str]:
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(
        item, h5py.Dataset) else None)
    return found


def test_a_copy_is_read_reduced_and_compared_as_any_run(
    written: Path, copied: Path, tmp_path: Path,
) -> None:
    copy = shutil.copytree(copied, tmp_path / "copy")
    before = (copy / "summary.csv").read_text()
    for command in (["show", str(copy)], ["compare", str(written), str(copy)],
                    ["reduce", str(copy)], ["report", str(copy), "--force"]):
        done = RUNNER.invoke(app, command)
        assert done.exit_code in (0, 1), done.output
    assert (copy / "summary.csv").read_text() == before
    switches, *others = [place.switches for place in reduce_folder(copy).topology.ranks]
    assert set(switches or ()) == {"switch1", "switch2"} and others == [switches] * 3


def test_one_name_has_one_replacement_in_all_files(copied: Path) -> None:
    mapping = copied.with_name("names.json")
    names = json.loads(mapping.read_text())
    assert names["node"]["acme-gpu017"] == "node1" and mapping.stat().st_mode & 0o77 == 0
    assert not list(copied.rglob("*names*"))
    config = json.loads((copied / "config.json").read_text())
    assert config["launch"]["address"] == "node1" and ", node2, node1 as " in config["notes"]
    user, log = names["user"]["bobby"], next(copied.glob("slurm-*.log")).read_text()
    assert f"node2: {user}" in log and names["address"]["10.20.30.40"] in log
    assert f" {names['partition']['bigqueue']} " in log
    with h5py.File(copied / "traces/rank00000.h5") as file:
        assert file.attrs["hostname"] == "node1"
        environment = json.loads(file["environment"][0])
        assert environment["libraries"]["worker"]["libtorch.so"]["path"].endswith(
            "/site-packages/torch/lib/libtorch.so")
        assert environment["scheduler"]["SLURM_JOB_ID"] == names["job"]["7654321"]


def test_journals_of_a_run_that_was_killed(tmp_path: Path) -> None:
    run, copy = write_planted_run(tmp_path / "acme-run", sealed=False), tmp_path / "copy"
    anonymize(run, copy, HIDDEN)
    assert left_in(copy, PLANTED) == [] and len(list(copy.rglob("*.journal"))) == 4
    kept = [[(item.case.case_id, item.status, item.statistics) for item in reduce_folder(one).cases]
            for one in (run, copy)]
    assert kept[0] == kept[1]


def test_words_that_are_results_stay_where_they_are(tmp_path: Path) -> None:
    """A host with the name of a backend: its fields are replaced, results keep theirs."""
    run = tmp_path / "run"
    write_synthetic_run(run, plan_of([GOOD], 4),
                        headers=lambda of: replace(of, hostname="gloo", node="gloo"))
    reduce_folder(run)
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
    ("N17.HPC.edu of n18.hpc.edu in hpc.edu", "node1 of node2 in domain1"),
    ("node1 user2 http://url1 /path3 '/path3/site-packages/x.py'", None),
    ("at 26-11-29-10-45-59 02-42-ac-11-00-02", "at 26-11-29-10-45-59 mac1"),
    ("token=abcdefgh1", "token=***")])
def test_names_in_a_line(text: str, expected: str | None) -> None:
    names = Pseudonyms({"n17": "node", "n17.hpc.edu": "node"}, {})
    assert names.text(text) == (text if expected is None else expected)


def test_numbers_that_real_names_have_are_not_given_to_others() -> None:
    names = Pseudonyms(dict.fromkeys(("node1", "acme7"), "node"), {})
    assert names.text("acme7 node1") == "node2 node1"


def test_the_name_of_a_partition_that_is_a_word_stays_in_texts(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "rank0.json").write_text(json.dumps(
        [{"scheduler": {"SLURM_JOB_PARTITION": name, "SLURM_JOB_NAME": f"my-{name}"},
          "gpu": {"name": "NVIDIA A100-SXM4"},
          "text": f"on {name}, my-{name}: {name}-SXM4 @torch.compile torch.compile"}
         for name in ("A100", "normal", "text", "bigqueue")]))
    anonymize(tmp_path, tmp_path.with_name("copy"))
    rows = json.loads((tmp_path.with_name("copy") / "traces" / "rank0.json").read_text())
    assert [(row["scheduler"]["SLURM_JOB_PARTITION"], row["text"]) for row in rows] == [
        (f"partition{n}", f"on {kept}, jobname{n}: {kept}-SXM4 @torch.compile torch.compile")
        for n, kept in enumerate(("A100", "normal", "text", "partition4"), 1)]


def test_hosts_of_one_name_in_two_domains_stay_two() -> None:
    names = Pseudonyms(dict.fromkeys(("n17", "n17.a.org", "n17.b.org"), "node"), {})
    assert len({names.text(host) for host in ("n17.a.org", "n17.b.org")}) == 2
