"""What is recorded of a machine: read from trees of files with known contents, and from here."""

from __future__ import annotations

import json
import os
import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbench.measurement.environment import (
    build_id,
    cpu,
    host,
    kernel,
    load,
    loaded_libraries,
    machine,
    memory,
    nccl_conf,
    network,
    recorded_variables,
    scheduler_variables,
)
from hpcbench.measurement.process import (
    KernelFiles,
    allocation,
    cgroup,
    cpu_list,
    expected_threads,
    granted_cores,
    granted_memory,
    memory_policy,
    ranks_a_core,
    threads_of_rank,
)

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
NODE_OF_EIGHT_CORES = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Example 9000\nmicrocode\t: 0x7\nflags\t\t: fpu\n"
                    "cpu MHz\t\t: 2100.5\n\nprocessor\t: 1\nmodel name\t: Other\n",
    "proc/meminfo": "MemTotal:       131000000 kB\nMemAvailable:   120000000 kB\n"
                    "HugePages_Total:      16\nHugepagesize:       2048 kB\nSwapTotal: 0 kB\n",
    "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=1 isolcpus=2-7 nohz_full=2-7 token=s3cret "
                    "mitigations=off nosmt quiet\n",
    "proc/uptime": "1234.5 99.0\n", "proc/loadavg": "0.50 0.25 0.10 1/2 3\n",
    "proc/stat": "cpu  10 0 10 70 0 0 0 10 0 0\ncpu0 1 1\n",
    "proc/pressure/cpu": "some avg10=1.50 avg60=0.00 avg300=0.00 total=5\n",
    "proc/sys/kernel/numa_balancing": "1\n", "proc/sys/kernel/randomize_va_space": "2\n",
    "proc/sys/kernel/random/boot_id": "b-o-o-t\n",
    "proc/self/numa_maps": "555 interleave:0-1 file=/usr/bin/python3 mapped=2\n556 bind:0\n",
    "proc/self/status": "Name:\tpython\nVmHWM:\t   10880 kB\n"
                        "Mems_allowed_list:\t0-1\nTHP_enabled:\t1\n",
    "etc/os-release": 'NAME="Linux"\nPRETTY_NAME="Example Linux 1"\n',
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
    "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet \n",
    f"{CPUS}/online": "0-7\n", f"{CPUS}/smt/control": "off\n", f"{CPUS}/isolated": "2-7\n",
    f"{CPUS}/nohz_full": "(null)\n", f"{CPUS}/intel_pstate/no_turbo": "1\n",
    f"{CPUS}/vulnerabilities/meltdown": "Not affected\n",
    f"{CPUS}/vulnerabilities/spectre_v1": "Mitigation: something long\n",
    f"{CPUS}/vulnerabilities/mds": "Vulnerable: no microcode\n",
    f"{NODES}/node0/cpulist": "0-3\n", f"{NODES}/node1/cpulist": "4-7\n",
    f"{NODES}/node0/meminfo": "Node 0 MemTotal:  65000000 kB\n",
    f"{CPUS}/cpu0/topology/thread_siblings_list": "0\n",
    **{f"{CPUS}/cpu{number}/cpufreq/{name}": text for number in range(8) for name, text in (
        ("scaling_driver", "intel_pstate\n"), ("scaling_min_freq", "800000\n"),
        ("scaling_governor", "powersave\n" if number == 1 else "performance\n"),
        ("scaling_max_freq", f"{3000 + number}000\n"), ("scaling_cur_freq", "2500000\n"))},
}


def tree(folder: Path, contents: dict[str, str]) -> KernelFiles:
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return KernelFiles(folder)


@pytest.fixture
def eight(tmp_path: Path) -> KernelFiles:
    return tree(tmp_path, NODE_OF_EIGHT_CORES)


def test_host(eight: KernelFiles, tmp_path: Path) -> None:
    found = host(eight, {})
    assert (found["boot_id"], found["uptime_s"]) == ("b-o-o-t", 1234.5)
    assert (found["system"], found["container"]) == ("Example Linux 1", None)
    assert host(eight, {"APPTAINER_NAME": "a.sif"})["container"] == "apptainer a.sif"
    inside = tree(tmp_path, {"proc/self/cgroup": "0::/kubepods.slice/pod1\n",
                             "proc/self/timens_offsets": "monotonic  5  0\nboottime 0 7\n"})
    assert host(inside, {})["container"] == "kubepods"
    assert host(inside, {})["time_offsets"] == {"monotonic": "5 0", "boottime": "0 7"}


def test_kernel(eight: KernelFiles) -> None:
    found = kernel(eight)
    assert found["command_line"] == {
        "isolcpus": "2-7", "nohz_full": "2-7", "mitigations": "off", "nosmt": ""}
    assert (found["clocksource"], found["clocksources"]) == ("hpet", ["tsc", "hpet"])
    assert found["transparent_hugepages"] == "madvise"
    assert (found["numa_balancing"], found["aslr"]) == (1, 2)
    assert (found["isolated_cpus"], found["nohz_full_cpus"]) == ("2-7", None)


def test_cpu(eight: KernelFiles) -> None:
    found = cpu(eight, [0, 1, 5])
    assert (found["name"], found["microcode"]) == ("Example 9000", "0x7")
    assert (found["governors"], found["turbo"]) == (["performance", "powersave"], False)
    assert found["mhz"] == {"lowest": 800.0, "highest": 3005.0, "now": [2500.0] * 3}
    assert found["mitigations"] == {"mitigated": ["spectre_v1"], "vulnerable": ["mds"]}
    assert (found["smt"], found["threads_per_core"]) == ("off", 1)


def test_memory_and_load(eight: KernelFiles) -> None:
    found = memory(eight)
    assert (found["total_bytes"], found["installed_gib"]) == (131000000 * 1024, 128)
    assert (found["huge_pages"], found["huge_page_bytes"]) == (16, 2 << 20)
    assert found["numa_nodes"] == {"0": {"cpus": "0-3", "total_bytes": 65000000 * 1024},
                                   "1": {"cpus": "4-7", "total_bytes": None}}
    assert load(eight) == {"average": [0.5, 0.25, 0.1], "steal_share_since_boot": 0.1,
                           "pressure": {"cpu": 1.5, "memory": None, "io": None}}


def test_memory_of_this_process(eight: KernelFiles, tmp_path: Path) -> None:
    assert eight.process_bytes("VmHWM") == 10880 * 1024
    assert eight.process_bytes("VmRSS") is None and eight.process_bytes("Name") is None
    assert KernelFiles(tmp_path / "empty").process_bytes("VmHWM") is None


def test_memory_policy(eight: KernelFiles, tmp_path: Path) -> None:
    assert memory_policy(eight) == "interleave:0-1"
    found = allocation(
        eight, {"MALLOC_ARENA_MAX": "2", "LD_PRELOAD": "/l/libjemalloc.so", "X": "y"})
    assert found["allocator"] == {"LD_PRELOAD": "/l/libjemalloc.so", "MALLOC_ARENA_MAX": "2"}
    assert (found["memory_nodes"], found["transparent_hugepages"]) == ("0-1", True)
    assert found["affinity"] == sorted(os.sched_getaffinity(0))
    assert memory_policy(KernelFiles(tmp_path / "nothing")) is None


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


@pytest.mark.parametrize(("contents", "expected"), [
    ({}, (None, None, None)),
    ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/cpu.max": "150000 100000\n",
      f"{V2}/a/b/cpu.max": "max 100000\n", f"{V2}/a/b/memory.max": "max\n"}, (2, 1.5, "unlimited")),
    ({"proc/self/cgroup": "0::/\n", f"{V2}/memory.max": "1073741824\n"}, (2, None, 2**30)),
    ({"proc/self/cgroup": "4:memory:/job1\n2:cpu,cpuacct:/job1\n0::/x\n",  # of another namespace
      f"{V1}/memory.limit_in_bytes": "9223372036854771712\n",
      f"{V1}/job1/memory.limit_in_bytes": "4096\n",
      "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
      "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, (1, "unlimited", 4096)),
    ({"proc/self/cgroup": "0::/a\n", f"{V2}/a/cpu.max": "300000 0\n"}, (2, None, None)),
])
def test_cgroup_limits(
    tmp_path: Path, contents: dict[str, str], expected: tuple[object, ...],
) -> None:
    found = cgroup(tree(tmp_path, contents))
    assert (found["version"], found["cpus"], found["memory_bytes"]) == expected


@pytest.mark.parametrize(("quota", "cores"), [
    ("50000 100000\n", 0.5), ("max 100000\n", os.cpu_count()), ("99999999 1\n", os.cpu_count())])
def test_granted_cores(tmp_path: Path, quota: str, cores: float) -> None:
    files = tree(tmp_path, {"proc/self/cgroup": "0::/a\n", f"{V2}/a/cpu.max": quota})
    assert granted_cores(files) == cores


@pytest.mark.parametrize(("limit", "granted"), [
    ("4096\n", (4096, "the cgroup's")), ("max\n", (2**30, "the node's")),
    ("9999999999\n", (2**30, "the node's"))])
def test_granted_memory(tmp_path: Path, limit: str, granted: tuple[int, str]) -> None:
    files = tree(tmp_path, {"proc/self/cgroup": "0::/a\n", f"{V2}/a/memory.max": limit})
    assert granted_memory(files, 2**30) == granted


@pytest.mark.parametrize(("masks", "most"), [
    ([[0], [1]], 1.0), ([[0, 1], [0, 1]], 1.0), ([[0], [0], [1, 2]], 2.0), ([[0, 1, 2, 3]], 0.25),
    ([[0, 1], [1, 2], [2, 0]], 1.0), ([[0, 1], [1, 2], [0, 2], [1]], 4 / 3),
    ([[0], [0], [0, 1, 2, 3], [0, 1, 2, 3]], 2.0), ([[0, 1]] * 3 + [[2, 3, 4]], 1.5)])
def test_ranks_a_core(masks: list[list[int]], most: float) -> None:
    assert ranks_a_core(masks) == most


EIGHT = [[*range(8 * rank, 8 * rank + 8)] for rank in range(8)]
"""srun --cpus-per-task=8 on a node of 64 cores."""


@pytest.mark.parametrize(("masks", "granted", "threads"), [
    (EIGHT, 64, [8] * 8),
    ([[*range(14 * rank, 14 * rank + 14)] for rank in range(8)], 112, [14] * 8),
    ([[*range(64)]] * 8, 64, [8] * 8),  # mpirun without binding
    ([[*range(4)]] * 4, 4, [1] * 4),
    ([[*range(2)]] * 2, 2, [1] * 2),
    ([[0]] * 4, 1, [1] * 4),
    ([[0], [1], [2], [3]], 4, [1] * 4),  # bound to a core each
    ([[*range(16)]], 2, [2]),  # a container of 2 CPUs on a machine of 16
    ([[*range(16)]] * 2, 2, [1] * 2),
    (EIGHT, 32, [4] * 8),  # bound within a container of half the machine
    ([[*range(16)]], 0.5, [1]),
    # both threads of each core: numbers c and c + 32, a core of two threads for each rank
    ([[rank, rank + 32] for rank in range(32)], 64, [2] * 32),
    ([[*range(4)] + [*range(32, 36)]] * 2, 64, [4] * 2),  # all ranks on one small part
    ([[*range(4)]] * 2 + [[*range(8)]], 8, [1, 1, 5]),  # 4 / 3 cores, and 4 / 3 + 4
])
def test_threads_of_a_rank(
    masks: list[list[int]], granted: float, threads: list[int],
) -> None:
    assert [threads_of_rank(own, masks, granted) for own in masks] == threads


@pytest.mark.parametrize(("own", "ranks", "launcher", "granted", "threads"), [
    (64, 8, 64, 64, 8), (4, 4, 4, 4, 1), (2, 2, 2, 2, 1), (1, 4, 1, 1, 1), (1, 3, 2, 2, 1),
    (8, 8, 64, 64, 8), (14, 8, 112, 112, 14), (2, 32, 64, 64, 2),  # bound side by side
    (32, 4, 64, 64, 16),  # bound to a socket of two
    (8, 4, 8, 64, 2),  # a cpuset of 8 of 64 cores, unbound; and bound to 2 each in it
    (2, 4, 8, 64, 2),
    (8, 3, 8, 64, 2),
    (16, 1, 16, 2, 2), (16, 2, 16, 2, 1), (8, 8, 64, 32, 4), (64, 1, 64, 0.5, 1)])
def test_threads_before_other_ranks_are_known(
    own: int, ranks: int, launcher: int, granted: float, threads: int,
) -> None:
    """``launcher`` is of how many cores what started the ranks has."""
    assert expected_threads(own, ranks, launcher, granted) == threads


def test_network(tmp_path: Path) -> None:
    net, port = "sys/class/net", "sys/class/infiniband/mlx5_0/ports/1"
    files = tree(tmp_path, {
        f"{net}/lo/mtu": "65536\n", f"{net}/lo/type": "772\n", f"{net}/lo/operstate": "unknown\n",
        f"{net}/ib0/mtu": "4092\n", f"{net}/ib0/speed": "200000\n", f"{net}/ib0/operstate": "up\n",
        f"{net}/eth1/mtu": "1500\n", f"{net}/eth1/operstate": "down\n",
        f"{net}/bonding_masters": "bond0\n", f"{net}/ib0/device/driver/x": "",
        f"{port}/state": "4: ACTIVE\n", f"{port}/rate": "200 Gb/sec (4X HDR)\n",
        f"{port}/link_layer": "InfiniBand\n", "sys/class/infiniband/mlx5_0/fw_ver": "20.1\n",
        **{f"{net}/veth{number}/mtu": "1500\n" for number in range(40)}})
    found = network(files)
    assert found["interfaces"]["ib0"] == {
        "speed_mbit": 200000, "mtu": 4092, "driver": None, "state": "up", "loopback": False}
    assert found["interfaces"]["lo"]["loopback"] is True
    assert "eth1" not in found["interfaces"] and len(found["interfaces"]) == 32
    assert found["not_described"] == 11
    assert found["infiniband"] == {"mlx5_0/1": {
        "state": "4: ACTIVE", "rate": "200 Gb/sec (4X HDR)", "link_layer": "InfiniBand",
        "firmware": "20.1"}}


def test_variables_are_recorded_by_an_allow_list_without_secrets() -> None:
    environ = {
        "NCCL_DEBUG": "INFO", "NCCL_IB_PKEY": "0x7fff", "UCX_API_KEY": "s3cr3t", "HOME": "/root",
        "UCX_PROXY": "http://me:pw@host", "GLOO_X": "a s3cr3t b", "OMPI_MCA_btl": "^ofi",
        "OMPI_MCA_orte_precondition_transports": "12-34", "SLURM_JOB_ID": "7",
        "I_MPI_HYDRA_UUID": "8", "I_MPI_PIN_INFO": "0", "I_MPI_PIN_MAPPING": "2:0 0,1 1",
        "I_MPI_INFO_NC": "2", "I_MPI_PIN_DOMAIN": "core",
        "SLURM_JWT": "s3cr3t", "PBS_JOBID": "8", "CUDA_VISIBLE_DEVICES": "0", "AWS_X": "1"}
    assert recorded_variables(environ) == {
        "CUDA_VISIBLE_DEVICES": "0", "GLOO_X": "a *** b", "I_MPI_PIN_DOMAIN": "core",
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_PKEY": "0x7fff", "OMPI_MCA_btl": "^ofi", "UCX_PROXY": "http://***@host"}
    assert scheduler_variables(environ) == {"PBS_JOBID": "8", "SLURM_JOB_ID": "7"}


def test_files_of_nccl_set_what_nothing_before_them_has(tmp_path: Path) -> None:
    for name, text in {
            "home/a/.nccl.conf": "#NCCL_PROTO=LL\nNCCL_ALGO=Ring\r\nNCCL_ALGO=Tree\n"
            " NCCL_DEBUG=INFO\nNCCL_NTHREADS =64\nNCCL_SOCKET_IFNAME==ens1\nNCCL_PROTO\n",
            "etc/nccl.conf": "NCCL_ALGO=PAT\nNCCL_PROTO=Simple\nNCCL_IB_HCA=mlx5\nA_TOKEN=s3cr3t\n"
            "NCCL_API_TOKEN=s3cr3t\nNCCL_IB_PKEY=0x7fff\n",
            "other.conf": "NCCL_ALGO=NVLS\n"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environ = {"HOME": "/home/a", "NCCL_IB_HCA": "", "NCCL_TOKEN": "mlx5"}
    found = nccl_conf(KernelFiles(tmp_path), environ)
    assert {name: (one["value"], one["file"]) for name, one in found.items()} == {
        "NCCL_ALGO": ("Ring", "/home/a/.nccl.conf"),
        "NCCL_SOCKET_IFNAME": ("=ens1", "/home/a/.nccl.conf"),
        "NCCL_PROTO": ("Simple", "/etc/nccl.conf"), "NCCL_IB_PKEY": ("0x7fff", "/etc/nccl.conf")}
    assert "s3cr3t" not in json.dumps(machine(environ, tmp_path))
    named = nccl_conf(KernelFiles(tmp_path), {**environ, "NCCL_CONF_FILE": "/other.conf"})
    assert named["NCCL_ALGO"] == {"value": "NVLS", "file": "/other.conf"}
    assert "NCCL_SOCKET_IFNAME" not in named
    assert nccl_conf(KernelFiles(tmp_path / "none"), {}) == {}


def test_this_machine() -> None:
    found = machine({"NCCL_ALGO": "Ring", "A_TOKEN": "python", "LD_PRELOAD": ""})
    json.dumps(found, allow_nan=False)
    assert not [name for name, topic in found.items()
                if isinstance(topic, dict) and "unreadable" in topic]
    assert found["memory_bytes"] == found["memory"]["total_bytes"] > 0
    assert found["clock_resolution_ns"] > 0
    assert found["process"]["affinity_cpus"] == len(os.sched_getaffinity(0))
    assert found["kernel"]["release"] == os.uname().release
    assert "libc.so.6" in found["libraries"]["supervisor"] or os.uname().sysname != "Linux"
    assert found["variables"] == {"NCCL_ALGO": "Ring"}
    assert found["python"]["implementation"] == "c***"  # whatever topic a secret appears in


PATHS = sorted({*NODE_OF_EIGHT_CORES, "proc/self/cgroup", "proc/self/maps",
                "proc/self/timens_offsets", f"{V2}/cpu.max", f"{V2}/memory.max",
                "sys/class/net/a/mtu", "sys/class/net/a/speed"})


@settings(max_examples=30, deadline=None, suppress_health_check=[
    HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(PATHS), st.binary(max_size=40) | st.sampled_from([
    b"0-1\n", b"-\n", b"9999999999999999999999\n", b"max max\n", b"cpu a b c d e f g h\n", b"0::\n",
    b"MemTotal: x kB\n", b": : :\n", b"a 1-\x00\n", b"\xff\xfe", b"1\n", b"some avg10=.\n"])))
def test_no_contents_make_it_fail(tmp_path: Path, contents: dict[str, bytes]) -> None:
    for name in PATHS:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents.get(name, b""))
    json.dumps(machine({}, tmp_path), allow_nan=False)


def test_a_machine_that_reports_nothing(tmp_path: Path) -> None:
    found: dict[str, Any] = machine({}, tmp_path)
    assert found["kernel"]["clocksource"] is None and found["cpu"]["mhz"]["now"] is None
    assert found["network"]["interfaces"] == {} and found["libraries"] == {"supervisor": {}}


def test_cpu_lists() -> None:
    assert cpu_list("0-2,8\n") == [0, 1, 2, 8]
    assert cpu_list(None) == cpu_list("") == cpu_list("(null)") == []


def elf(note: bytes, kind: int = 4, align: int = 4) -> bytes:
    """A 64-bit little-endian ELF file of one program header."""
    head = b"\x7fELF\x02\x01" + bytes(26) + struct.pack("<Q", 64) + bytes(14) + struct.pack(
        "<HH", 56, 1) + bytes(6)
    assert len(head) == 64
    return head + struct.pack("<IIQQQQQQ", kind, 4, 120, 0, 0, len(note), 0, align) + note


OTHER_NOTE = struct.pack("<III", 4, 5, 1) + b"ABC\0" + b"12345\0\0\0"
BUILD_ID = struct.pack("<III", 4, 4, 3) + b"GNU\0" + b"\xde\xad\xbe\xef"


@pytest.mark.parametrize(("data", "expected"), [
    (elf(BUILD_ID), "build-id:deadbeef"), (elf(OTHER_NOTE + BUILD_ID), "build-id:deadbeef"),
    (elf(OTHER_NOTE), None), (elf(BUILD_ID, kind=1), None), (b"", None), (b"\x7fELF" * 40, None),
    (elf(BUILD_ID[:13]), None)])
def test_build_ids(data: bytes, expected: str | None) -> None:
    assert build_id(BytesIO(data)) == expected


def test_libraries_are_distinguished_by_what_is_in_them(tmp_path: Path) -> None:
    one, two, gone = (tmp_path / name for name in ("a/libmpi.so.12", "b/libmpi.so.12", "libucc.so"))
    for path, data in ((one, b"x" * 10**5), (two, elf(BUILD_ID)), (tmp_path / "libm.so.6", b"")):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    lines = [f"7f0-7f1 r-xp 0 08:01 5   {path}" for path in (
        one, one, two, gone, tmp_path / "libm.so.6")]
    files = tree(tmp_path / "root", {"proc/self/maps": "\n".join([*lines, "7f2-7f3 rw-p 0 0 0"])})
    found = loaded_libraries(files)
    assert set(found) == {"libmpi.so.12", "libmpi.so.12 (2)", "libucc.so"}
    assert found["libmpi.so.12"]["id"].startswith("sample:")
    assert found["libmpi.so.12 (2)"] == {
        "path": str(two), "size_bytes": len(elf(BUILD_ID)), "id": "build-id:deadbeef"}
    assert found["libucc.so"]["id"] is None
    before = found["libmpi.so.12"]["id"]
    one.write_bytes(b"x" * 10**5 + b"y")
    assert loaded_libraries(files)["libmpi.so.12"]["id"] != before
