"""Names and tokens of a cluster that is not there, a run that holds them wherever a run records
texts, and all that can be read of files: what is given away is searched for each."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcbench.reduce.reduce import reduce_folder
from hpcbench.report.answer_lines import topic_results_in
from hpcbench.report.summary import write_reports
from hpcbench.trace.columns import TelemetryReport
from hpcbench.trace.schema import Header, Record
from hpcbench.validation.rank_report import CheckLine, State, rendered
from synthetic import make_case, plan_of, write_synthetic_run

DOMAIN, USER, OWNER, JOB = "hpc.corp.example", "alice", "bobby", "7654321"
NODES = ("acme-gpu017", "acme-gpu018")
BOOT = "40cbe5c1-aca8-4015-a83c-42cab5bdfce3"
UUID = "5c1f77aa-0001-4a4a-8b8b-123456789abc"
NAMES: Mapping[str, tuple[str, ...]] = {
    "host": (*NODES, "acme-gpu019", "gpu017"),
    "full host": (f"{NODES[0]}.{DOMAIN}", f"acme-gpu019.{DOMAIN}", f"login1.{DOMAIN}",
                  "ACME-GPU018", "acme-gpu020.rack7.example"),
    "domain": (DOMAIN, "corp.example", "rack7.example", "Corp.Example"),
    "user": (USER, OWNER),
    "home": (f"/home/{USER}", "~bobby"),
    "folder": ("/scratch/bobby", "cache dir", "/opt/acme", "secretproject"),
    "job": (JOB, "7654399"),
    "job's name": ("nightly-llm",),
    "partition": ("bigqueue",),
    "account": ("ml-account",),
    "cluster": ("hellespont",),
    "reservation": ("maintenance-xmas",),
    "IPv4": ("10.20.30.40", "10.20.30.41"),
    "IPv6": ("2001:db8::17", "fe80::a1", "2001:0db8:0000:0000:0000:0000:0000:0018"),
    "MAC": ("02:42:ac:11:00:02", "02-42-ac-11-00-03", "0242ac110002"),
    "GUID": ("e41d:2d03:00a1:b2c3", "0xe41d2d0300a1b2c4"),
    "UUID": (BOOT, UUID, "5c1f77aa", "0123456789abcdef0123456789abcdef"),
    "serial": ("1652821034567",),
    "switch": ("leaf-rack7",),
    "URL": ("intranet", "wiki.corp.example"),
}
"""What `anonymize` replaces, by kind."""
HIDDEN = ("secretproject", "acme", "cache dir")
"""Names that nothing marks as such: they are given by --hide."""
ENVIRON = {
    "HF_TOKEN": "tok_Planted1", "AWS_SECRET_ACCESS_KEY": "aws/Planted+2",
    "DB_PASS": "Planted-pass3", "UCX_PROXY": "http://ops:Planted4x@proxy:80",
    "NCCL_PLUGIN_CONFIG": "user=ops;password=Planted5y",
    "GIT_URL": "https://ghs_Planted6z@git.example/x"}
TOKENS = ("tok_Planted1", "aws/Planted+2", "aws%2FPlanted%2B2", "Planted-pass3", "Planted4x",
          "Planted5y", "ghs_Planted6z", "Planted7", "Planted8", "Planted9", "PlantedA", "PlantedB")
"""What is in no output at all: secrets of ENVIRON, and those that their form gives away."""
SAID_TOKENS = (
    "tok_Planted1 aws/Planted+2 aws%2FPlanted%2B2 Planted-pass3 Planted4x Planted5y ghs_Planted6z "
    "token=Planted7 https://a.example/x?sig=Planted8w&y=1 Authorization: Bearer Planted9abc "
    "--api-key PlantedAbc DB2_PASS=PlantedBcd")
SAID_NAMES = (
    f"no route to {DOMAIN} of corp.example: acme-gpu019.{DOMAIN}, login1.{DOMAIN}, "
    f"acme-gpu020.rack7.example, host rack7.example, ACME-GPU018, ACME-GPU017.HPC.Corp.Example "
    f"as {USER}@acme-gpu019.{DOMAIN}; ~bobby/x/y; "
    f"/scratch/bobby/cache dir/torch -I/home/{USER}/secretproject/inc /opt/acme/bin/x "
    f"job {JOB} nightly-llm in bigqueue of ml-account on hellespont, maintenance-xmas "
    f"[2001:db8::17]:29500 (10.20.30.40) 10.20.30.41:2048 fe80::a1%ib0 "
    f"2001:0db8:0000:0000:0000:0000:0000:0018 12:34:56 02:42:ac:11:00:02 02-42-ac-11-00-03 "
    f"enx0242ac110002 e41d:2d03:00a1:b2c3 0xe41d2d0300a1b2c4 GPU-{UUID} {BOOT} GPU-5c1f77aa "
    f"0123456789abcdef0123456789abcdef serial 1652821034567 leaf-rack7 slurm-7654399.out "
    f"http://intranet.corp.example/secretproject, wiki.corp.example")
VARIABLES = {
    "UCX_NET_DEVICES": "mlx5_0:1", "NCCL_HOSTID": f"{NODES[0]}-hostid",
    "OMPI_MCA_btl_tcp_if_include": "10.20.30.40/16", "TORCH_HOME": "/scratch/bobby/cache dir/torch"}
SCHEDULER = {
    "SLURM_JOB_ID": JOB, "SLURM_JOB_NODELIST": "acme-gpu[017-018]", "SLURM_JOB_NAME": "nightly-llm",
    "SLURM_ARRAY_JOB_ID": "7654399", "SLURM_JOB_PARTITION": "bigqueue",
    "SLURM_JOB_ACCOUNT": "ml-account", "SLURM_CLUSTER_NAME": "hellespont",
    "SLURM_JOB_RESERVATION": "maintenance-xmas",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
GOOD, FAILS = make_case(0, world_size=4, iterations=20), make_case(1, world_size=4, iterations=20)


def header(of: Header) -> Header:
    """Return a header of one of two nodes, with what a cluster's job says of itself."""
    name = NODES[of.rank // 2]
    environment = {
        **of.environment, "host": {"name": f"{name}.{DOMAIN}", "boot_id": BOOT},
        "variables": VARIABLES,
        "scheduler": {**SCHEDULER, "SLURMD_NODENAME": name,
                      "SLURM_TOPOLOGY_ADDR": f"core.leaf-rack7.{name}"},
        "nccl_conf": {"NCCL_COMMENT": {"value": SAID_NAMES, "file": f"/home/{USER}/.nccl.conf"}},
        "libraries": {"worker": {"libtorch.so": {
            "path": f"/home/{USER}/venv/lib/python3.11/site-packages/torch/lib/libtorch.so",
            "id": "sample:0123456789abcdef0123456789abcdee"}}},
        "network": {"interfaces": {"enx0242ac110002": {"mtu": 1500}},
                    "guid": "e41d:2d03:00a1:b2c3", "mac": "02:42:ac:11:00:02"},
        "gpu": {"uuid": f"GPU-{UUID}", "machine_id": "0123456789abcdef0123456789abcdef",
                "serial": "1652821034567"}}
    versions = {**of.versions, "cudnn": "9.1.0.70",
                "mpi": f"Open MPI v5.0.6, package: Open MPI {USER}@acme-gpu019 Distribution"}
    return replace(of, hostname=name, node=f"{name}/{BOOT}", environment=environment,
                   versions=versions)


def change(rank: int, record: Record) -> Iterable[Record]:
    """Have a case fail with texts that name all."""
    if record.case_id != FAILS.case_id:
        yield record
        return
    yield replace(record, status="failed", reason=f"RuntimeError: {SAID_NAMES}", n_wrong=-1,
                  detail={"output": f"stderr of {NODES[rank // 2]}\n{SAID_NAMES}\n",
                          "library": {"algorithm": "RING", "protocol": "LL", "channels": "2",
                                      "transport": f"NET/IB via {NODES[0]}.{DOMAIN}"},
                          f"on {NODES[0]}.{DOMAIN}": [{"text": SAID_NAMES}]})


def notes(rank: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "worker_output", {"text": f"File \"/home/{USER}/run.py\" rank {rank}\n{SAID_NAMES}"}
    yield "telemetry", TelemetryReport(1.0, {"network": ("enx0242ac110002",)}, {
        "energy": f"on {NODES[0]}.{DOMAIN}: {SAID_NAMES}"}).to_json()


def write_planted_run(folder: Path, *, sealed: bool = True, reports: bool = True) -> Path:
    """Write the folder of a run on two nodes, all of NAMES in each of its files."""
    plan = plan_of([GOOD, FAILS], 4)
    config = {**plan.config, "title": f"{USER}'s secretproject on {NODES[0]}", "notes": SAID_NAMES,
              "output": {"folder": "/scratch/bobby/results", "plots": False},
              "launch": {"address": f"{NODES[0]}.{DOMAIN}"}}
    plan = replace(plan, config=config)
    write_synthetic_run(folder, plan, headers=header, change=change, notes=notes, sealed=sealed)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "profile").mkdir()
    (folder / "profile" / f"{USER}.json.gz").write_bytes(gzip.compress(json.dumps(
        {"host": NODES[0], "traceEvents": [{"name": f"/home/{USER}/x/y.py(3)", "ts": 1.5,
                                            "args": {"text": SAID_NAMES}}]}).encode()))
    (folder / f"slurm-{JOB}.log").write_text(
        f"{NODES[1]}: {OWNER}\n/scratch/a/b 10.20.30.40\n{SAID_NAMES}\n")
    (folder / "validate.json").write_text(rendered([
        CheckLine("interface", State.FAIL, f"rank 0 on {NODES[0]}: {SAID_NAMES}", SAID_NAMES),
        CheckLine(f"on {NODES[1]}", State.OK, USER, "")], as_json=True, ranks=4, nodes=2))
    (folder / "ucc.log").write_text(
        f"[1732600000.123456] [{NODES[0]}:{JOB}:0]     ucc_context.c:402  UCC  INFO  {SAID_NAMES}\n"
        f"[{NODES[1]}.{DOMAIN}:4711 :0:4711] tl_ucp_lib.c:64 UCC WARN as {USER} on 10.20.30.41\n")
    (folder / "profile" / "acme.nsys-rep").write_bytes(b"\0acme-gpu017")
    (folder / "link").symlink_to(f"/home/{USER}")
    if sealed:
        results = reduce_folder(folder)
        if reports:
            write_reports(results, folder, topic_results_in(folder))
    return folder


def everything(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and all that can be read of each file: bytes, and texts that are packed."""
    for place in sorted([path, *path.rglob("*")]):
        name = str(place.relative_to(path.parent))
        if place != path:
            yield name, name
        if place.is_file() and not place.is_symlink():
            yield from _unpacked(name, place.read_bytes())


def _unpacked(name: str, data: bytes) -> Iterator[tuple[str, str]]:
    text = data.decode("latin-1")
    yield name, text
    for packed in re.findall(r"base64,([\w+/=]{16,})", text):
        yield f"{name} base64", base64.b64decode(packed).decode("latin-1")
    if data[:2] == b"\x1f\x8b":
        yield from _unpacked(f"{name} unpacked", gzip.decompress(data))
    elif data[:8] == b"\x89HDF\r\n\x1a\n":
        with h5py.File(io.BytesIO(data)) as file:
            yield from ((f"{name} {at}", part) for at, part in _parts(file))
    elif data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                yield name, f"{member.name} {member.uname} {member.gname} {member.linkname}"
                content = archive.extractfile(member)
                yield from _unpacked(f"{name} {member.name}", content.read() if content else b"")
    elif data[:4] == b"PAR1":
        import pyarrow.parquet

        yield name, str(pyarrow.parquet.read_table(io.BytesIO(data)).to_pydict())


def _parts(file: h5py.File) -> Iterator[tuple[str, str]]:
    """Yield names of links, attributes, and unpacked texts of an HDF5 file."""
    found: list[tuple[str, h5py.Group | h5py.Dataset]] = [("/", file)]
    file.visititems(lambda name, item: found.append((name, item)))
    for name, item in found:
        yield name, f"{name} {dict(item.attrs)}"
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "SO":
            yield from ((name, text.decode()) for text in np.atleast_1d(item[()]))


def left_in(path: Path, words: Iterable[str]) -> list[tuple[str, str]]:
    """Return where in a file or a folder which of the words are left, in any case of letters."""
    wanted = [(word, word.lower()) for word in words]
    return [(name, word) for name, text in everything(path) for word, lower in wanted
            if lower in text.lower()]
