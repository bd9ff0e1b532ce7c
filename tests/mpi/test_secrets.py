"""Tokens planted in a job's environment are in none of its files and in nothing that it prints."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcbench.errors import UsageError
from hpcbench.interop.formats.export.cases import ExportRequest
from hpcbench.interop.formats.export.write import FORMATS, export_files
from hpcbench.trace.journal import read_journal
from hpcbench.trace.source import header_to_json
from launcher import Finished, MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

NAMES = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASS", "LDAP_PASSWORD", "MY_CREDENTIALS",
         "PROXY_AUTH", "NCCL_API_KEY", "NCCL_FAKE_TOKEN", "UCX_AUTH", "UCX_PASSWORD",
         "SLURM_JWT_TOKEN")


def planted() -> dict[str, str]:
    """Return secrets: by name, and in the values of variables that are recorded."""
    secrets = {name: f"planted{uuid.uuid4().hex}" for name in NAMES}
    return secrets | {
        "UCX_PROXY": f"http://me:{(login := f'planted{uuid.uuid4().hex}')}@proxy:80",
        "NCCL_TUNER_CONFIG": f"token={login}x,fast=1",
        "GLOO_COMMENT": f"as in {secrets['HF_TOKEN']}",
        "LD_PRELOAD_COMMENT": login,
        "MALLOC_COMMENT": f"--password {login}y",
    }


def texts_of(path: Path) -> Iterator[bytes]:
    """Yield a file as it is and, if it is HDF5, all its attributes and decompressed datasets."""
    yield path.read_bytes()
    if path.suffix == ".h5":
        with h5py.File(path, "r") as file:
            yield from _contents(file)
    elif path.suffix == ".journal":
        journal = read_journal(path)
        yield json.dumps([header_to_json(journal.header), [asdict(note) for note in journal.notes],
                          [record.detail for record in journal.records()]]).encode()


def _contents(group: h5py.Group) -> Iterator[bytes]:
    for value in group.attrs.values():
        yield str(value).encode()
    for item in group.values():
        if isinstance(item, h5py.Group):
            yield from _contents(item)
        else:
            for value in item.attrs.values():
                yield str(value).encode()
            values = np.asarray(item[()])
            yield (str(values.tolist()).encode() if values.dtype == object else values.tobytes())


def assert_clean(job: Finished, *more: Path) -> dict[str, int]:
    """Fail if a secret stands anywhere; return how many texts of each file were looked at."""
    looked_at = {}
    files = [path for path in job.folder.rglob("*") if path.is_file()]
    for path in (*files, *more):
        texts = list(texts_of(path))
        looked_at[path.name] = len(texts)
        assert not any(b"planted" in text for text in texts), path
    assert "planted" not in job.stdout + job.stderr
    return looked_at


def test_no_secret_in_any_output(mpirun: MpiLauncher, tmp_path: Path) -> None:
    faults = [{"case": "* 512B *", "rank": 0, "kind": "slow", "iteration": 0,
               "seconds": 1},  # to copy its journal
              {"case": "* 2048B *", "rank": 1, "kind": "raise", "iteration": 1},
              {"case": "* 1024B *", "rank": 0, "kind": "segv", "iteration": 1}]
    config = sweep("512", "1024", "2048", fault=faults, output={"plots": False},
                   launch={"pass_env": ["HF_*", "*_COMMENT"], "timeout_s": 30})
    kept = tmp_path / "rank00000.journal"
    with mpirun.start(2, config=config, env=planted()) as running:
        running.wait_for("results in")
        journal = (running.folder or Path()) / "traces" / kept.name
        until = time.monotonic() + 20
        while not journal.exists() and time.monotonic() < until:
            time.sleep(0.01)
        kept.write_bytes(journal.read_bytes())
        job = running.wait().check(1)
    looked_at = assert_clean(job, kept)
    assert job.folder is not None
    for name in FORMATS:
        with suppress(UsageError):  # some have no table of all_reduce alone
            content, lines = export_files([job.folder], name, ExportRequest())
            assert b"planted" not in content.content + "\n".join(lines).encode(), name
    assert looked_at["results.h5"] > 10 and looked_at["rank00001.h5"] > 10
    assert looked_at["rank00000.journal"] == 2
    assert {"config.json", "plan.json", "summary.json", "summary.csv"} < set(looked_at)
    outcome = read(job.folder)
    assert outcome.of_size(512).status == "ok"
    variables = outcome.results.run.environment["variables"]
    assert variables["UCX_PROXY"] == "http://***@proxy:80"
    assert variables["NCCL_TUNER_CONFIG"] == "token=***,fast=1"
    assert variables["GLOO_COMMENT"] == "as in ***"
    assert not variables.keys() & set(NAMES)
    assert outcome.results.run.environment["libraries"]["worker"]["libtorch_cpu.so"]["id"]


def test_a_library_that_prints_a_secret(mpirun: MpiLauncher) -> None:
    """gloo's error names the interface that it was told and that there is not."""
    secrets = planted()
    job = mpirun.run(1, config=sweep("512"), env=secrets | {
        "GLOO_SOCKET_IFNAME": secrets["HF_TOKEN"]}).check(1)
    assert_clean(job)
    case = read(job.folder).of_size(512)
    assert case.status == "failed" and "***" in case.reason
    assert any("***" in part["output"] for part in case.detail.values())


def test_the_last_line_of_a_job_that_cannot_start(mpirun: MpiLauncher) -> None:
    """The message names the key, as the configuration is kept."""
    secrets = planted()
    job = mpirun.run(1, "--set", f"launch.interface={secrets['HF_TOKEN']}", config=sweep("512"),
                     env=secrets).check(2)
    assert "hpcbench: " in job.stderr and 'launch.interface: "***" holds' in job.stderr
    assert "planted" not in job.stdout + job.stderr
