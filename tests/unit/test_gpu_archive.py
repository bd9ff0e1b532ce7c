"""The file that a GPU session leaves to send back: whole or absent, cut as it says, no secrets."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import tarfile
from pathlib import Path

import h5py
import pytest

from launcher import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from gpu import archive  # noqa: E402
from hpcbench.reduce.results_file import open_results  # noqa: E402

SAMPLE = ROOT / "tests" / "data" / "golden" / "runs" / "mixed" / "results.h5"
SECRETS = {"HF_TOKEN": "hf_Zq8PlantedToken1", "AWS_SECRET_ACCESS_KEY": "aws/Planted+Secret2",
           "NCCL_PLUGIN_CONFIG": "user=ops;password=Planted-pass3", "NCCL_STORE": "tcp://ops:Planted4x@h",
           "SLURM_JOB_ACCOUNT": "planted_account5", "USER": "planteduser6"}
PLANTED = ("hf_Zq8PlantedToken1", "aws/Planted+Secret2", "Planted-pass3", "Planted4x",
           "planted_account5", "planteduser6", "/scratch/planted7")


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session's folder as it stands after one of two steps."""
    folder = tmp_path / "gpu-x"
    results = folder / "steps" / "one" / "results"
    results.mkdir(parents=True)
    (folder / "verdicts.json").write_text(json.dumps(
        {"machine": {"uuids": ["GPU-5c1f-77aa"], "mig": []}, "text": "on GPU-5c1f-77aa"}))
    (folder / "verdicts.md").write_text(f"# Verdicts\n{platform.node()} {' '.join(PLANTED)}\n")
    (folder / "steps" / "one" / "output.log").write_text(
        f"File \"/scratch/planted7/lib/python3.11/site-packages/torch/x.py\", line 3\n"
        f"/scratch/planted7/run.sh: {' '.join(PLANTED)} in {ROOT}/benchmarks\n")
    shutil.copy(SAMPLE, results / "results.h5")
    return folder


def contents(path: Path) -> dict[str, bytes]:
    """Return the files of an archive by their names in it."""
    with tarfile.open(path) as file:
        assert {(member.uname, member.gname) for member in file} == {("", "")}
        return {member.name.removeprefix("gpu-session/"): file.extractfile(member).read()  # type: ignore[union-attr]
                for member in file.getmembers()}


def pack(session: Path) -> dict[str, bytes]:
    path = session.with_name("gpu-x.tar.gz")
    assert archive.pack(session, path, ["one", "two"]) == path.stat().st_size
    return contents(path)


def test_secrets_names_and_paths_are_masked(
    session: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    found = pack(session)
    assert set(found) == {"CONTENTS.txt", "environment.json", "verdicts.json", "verdicts.md",
                          "steps/one/output.log", "steps/one/results/results.h5"}
    texts = b"\n".join(data for name, data in found.items() if not name.endswith(".h5")).decode()
    for planted in (*PLANTED, "5c1f-77aa", str(ROOT)):
        assert planted not in texts, planted
    assert f" {platform.node()} " not in texts and "<host>" in found["verdicts.md"].decode()
    log = found["steps/one/output.log"].decode()
    assert 'File "<path>/site-packages/torch/x.py", line 3' in log
    assert "<HPCBENCH>/benchmarks" in log and "<path>/run.sh: " in log
    assert "Left out:\nnothing" in found["CONTENTS.txt"].decode()


def test_results_are_masked_and_read_as_any_others(session: Path, tmp_path: Path) -> None:
    path = session / "steps/one/results/results.h5"
    with open_results(path) as file:
        before = file.results
    (host, *_) = before.run.nodes
    masks = archive.Masks({}, {host: "<host>"})
    copy = tmp_path / "copy.h5"
    copy.write_bytes(archive._results(path, masks))
    with open_results(copy) as file:
        assert "<host>" in file.results.run.nodes and host not in file.results.run.nodes
        assert [(item.case.label, item.status, item.timing) for item in file.results.cases] == [
            (item.case.label, item.status, item.timing) for item in before.cases]
        assert any(file.samples(item.case.case_id) is not None for item in before.cases)
    with h5py.File(path) as old, h5py.File(copy) as new:
        names: list[str] = []
        old.visit(names.append)
        assert all(dict(old[name].attrs).keys() == dict(new[name].attrs).keys() for name in names)


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
    path = session.with_name("gpu-x.tar.gz")
    path.write_text("the one before")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(archive, "_environment", interrupted)
        archive.pack(session, path, ["one"])
    assert path.read_text() == "the one before"
    assert sorted(item.name for item in session.parent.iterdir()) == ["gpu-x", "gpu-x.tar.gz"]


@pytest.mark.parametrize(("text", "masked"), [
    ("GB/s tokens/s 1/2/3 mpi/direct", "GB/s tokens/s 1/2/3 mpi/direct"),
    ("/sys/devices/cpu0/x /dev/nvidia0", "/sys/devices/cpu0/x /dev/nvidia0"),
    ("-o=/data/proj/run, '/data/proj/a.yaml'", "-o=<path>, '<path>/a.yaml'"),
    ("file:///data/proj/x", "file://<path>"),
    ("/data/proj/bin/python -m x", "<path>/bin/python -m x"),
    ("n17:88 [0] NCCL n17.hpc.edu n171 xn17", "<host>:88 [0] NCCL <host>.hpc.edu n171 xn17")])
def test_paths_and_names_in_a_line(text: str, masked: str) -> None:
    assert archive.Masks({}, {"n17": "<host>"}).text(text) == masked
