"""The file that a GPU session leaves to send back: whole or absent, cut as it says, no secrets."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import tarfile
from itertools import chain
from pathlib import Path

import h5py
import pytest

from launcher import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from gpu import archive  # noqa: E402
from hpcbench.reduce.results_file import open_results  # noqa: E402
from planted import (  # noqa: E402
    ENVIRON,
    NAMES,
    NODES,
    SAID_NAMES,
    SAID_TOKENS,
    TOKENS,
    UUID,
    left_in,
    write_planted_run,
)

UNMARKED = ("secretproject", "acme", "cache dir")
"""Names that only a person can tell from other words."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_planted_run(tmp_path_factory.mktemp("run") / "run", reports=False) / "results.h5"


@pytest.fixture
def session(tmp_path: Path, results: Path) -> Path:
    """A session's folder as it stands after one of two steps."""
    folder = tmp_path / f"gpu-{NODES[0]}"
    step = folder / "steps" / "one"
    (step / "results").mkdir(parents=True)
    (folder / "verdicts.json").write_text(json.dumps(
        {"machine": {"uuids": [f"GPU-{UUID}"], "mig": []}, "text": f"on GPU-{UUID} {SAID_TOKENS}"}))
    (folder / "verdicts.md").write_text(
        f"# Verdicts\n{platform.node()} planteduser6 {SAID_NAMES} {SAID_TOKENS}\n")
    (step / "output.log").write_text(
        f"File \"/scratch/planted7/lib/python3.11/site-packages/torch/x.py\", line 3\n"
        f"/scratch/planted7/run.sh: {SAID_NAMES} {SAID_TOKENS} in {ROOT}/benchmarks\n")
    shutil.copy(results, step / "results" / "results.h5")
    return folder


def contents(path: Path) -> dict[str, bytes]:
    """Return the files of an archive by their names in it."""
    with tarfile.open(path) as file:
        assert {(member.uname, member.gname) for member in file} == {("", "")}
        return {member.name.removeprefix("gpu-session/"): file.extractfile(member).read()  # type: ignore[union-attr]
                for member in file.getmembers()}


def pack(session: Path) -> dict[str, bytes]:
    path = session / "to-send.tar.gz"
    assert archive.pack(session, path, ["one", "two"]) == path.stat().st_size
    return contents(path)


def test_no_planted_name_is_in_any_byte_and_results_are_the_same(
    session: Path, results: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**ENVIRON, "USER": "planteduser6"}.items():
        monkeypatch.setenv(name, value)
    found = pack(session)
    planted = {*chain.from_iterable(NAMES.values()), *TOKENS, "planteduser6", str(ROOT),
               "/scratch/planted7"} - set(UNMARKED)
    assert left_in(session / "to-send.tar.gz", planted) == []
    assert set(found) == {"CONTENTS.txt", "environment.json", "verdicts.json", "verdicts.md",
                          "steps/one/output.log", "steps/one/results/results.h5"}
    assert f" {platform.node()} " not in found["verdicts.md"].decode()
    log = found["steps/one/output.log"].decode()
    assert 'File "<path>/site-packages/torch/x.py", line 3' in log
    assert "<HPCBENCH>/benchmarks" in log and "<path>/run.sh: " in log
    assert "Left out:\nnothing" in found["CONTENTS.txt"].decode()
    copy = session / "copy.h5"
    copy.write_bytes(found["steps/one/results/results.h5"])
    with open_results(results) as old, open_results(copy) as new:
        assert new.results.run.nodes == ("node1", "node2")
        assert [(item.case, item.status, item.timing) for item in new.results.cases] == [
            (item.case, item.status, item.timing) for item in old.results.cases]
        assert any(new.samples(item.case.case_id) is not None for item in new.results.cases)
    with h5py.File(results) as before, h5py.File(copy) as after:
        names: list[str] = []
        before.visit(names.append)
        assert all(before[name].attrs.keys() == after[name].attrs.keys() for name in names)


def test_what_is_too_large_or_cannot_be_read_is_named(
    session: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = session / "steps/one/output.log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    (session / "steps/one/results/results.h5").write_bytes(b"format hpcbench-results\n")
    (session / "steps/one/step.json").write_text("{")
    found = pack(session)
    kept = found["steps/one/output.log"].decode().splitlines()
    assert kept[0] == "line 0" and kept[-1] == "line 99999"
    (gap,) = (line for line in kept if not line.startswith("line "))
    left_out = int(gap.removeprefix("[").split()[0])
    assert left_out + len(found["steps/one/output.log"]) - len(gap) - 2 == log.stat().st_size
    said = found["CONTENTS.txt"].decode()
    assert "steps/one/results/results.h5: " in said and "steps/one/step.json: " in said
    monkeypatch.setattr(archive, "_ALL_BYTES", 1000)
    small = pack(session)
    assert "steps/one/output.log" not in small
    assert "steps/one/output.log: " in small["CONTENTS.txt"].decode()


def test_the_archive_is_whole_or_as_it_was(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = session / "to-send.tar.gz"
    path.write_text("the one before")
    before = sorted(session.iterdir())

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(archive, "_environment", interrupted)
        archive.pack(session, path, ["one"])
    assert path.read_text() == "the one before"
    assert sorted(session.iterdir()) == before


@pytest.mark.parametrize(("text", "masked"), [
    ("GB/s tokens/s 1/2/3 mpi/direct", "GB/s tokens/s 1/2/3 mpi/direct"),
    ("/sys/devices/cpu0/x /dev/nvidia0", "/sys/devices/cpu0/x /dev/nvidia0"),
    ("-o=/data/proj/run, '/data/proj/a.yaml'", "-o=<path>, '<path>/a.yaml'"),
    ("file:///data/proj/x", "file://<path>"),
    ("/data/proj/bin/python -m x", "<path>/bin/python -m x"),
    ("n17:88 [0] NCCL n17.hpc.edu n171 xn17", "node1:88 [0] NCCL node1 n171 xn17")])
def test_paths_and_names_in_a_line(text: str, masked: str) -> None:
    assert archive.Masks(dict.fromkeys(("n17", "n17.hpc.edu"), "node"), {}).text(text) == masked
