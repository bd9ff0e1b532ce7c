"""What tests of the machine compute: right results are right, and one wrong element is found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hpcbench.errors import CaseError
from hpcbench.kinds.hardware.plan.gemm import ELEMENT_BYTES, PRODUCTS, Gemm
from hpcbench.kinds.hardware.plan.test import ALL_THREADS, ARRAYS, TRANSFERS, Storage, Stream
from hpcbench.kinds.hardware.run import storage as storage_run
from hpcbench.kinds.hardware.run import stream as stream_run
from hpcbench.kinds.hardware.run.gemm import GemmOperation
from hpcbench.kinds.hardware.run.storage import StorageOperation
from hpcbench.kinds.hardware.run.stream import StreamOperation, last_cache_bytes
from hpcbench.kinds.memory.run import LiveStorages
from hpcbench.operations.place import Place

PLACE = Place(0, 1, None, torch.device("cpu"))
ON_CUDA = replace(PLACE, device=torch.device("cuda", 0))
ON_CPU = [name for name in ELEMENT_BYTES if name != "tf32"]
KERNELS = [name for name in ARRAYS if name not in TRANSFERS]


def called(operation: Any) -> Any:
    operation.prepare()
    operation.run()
    return operation


@pytest.mark.parametrize("dtype", ON_CPU)
@pytest.mark.parametrize("shape", [(48, 64, 32), (32, 16, 4096)])
def test_products_are_right(dtype: str, shape: tuple[int, int, int]) -> None:
    work = Gemm(dtype, *shape, right=PRODUCTS[dtype].right)
    operation = called(GemmOperation(work, PLACE, validate=True))
    assert operation.check() is None
    operation.corrupt_output()
    found = operation.check()
    assert found is not None and found.n_wrong == 1


@pytest.mark.parametrize(("dtype", "place"), [
    ("int8", ON_CUDA), ("fp8_e4m3", PLACE), ("fp8_e5m2", PLACE)])
def test_operands_lie_as_cublaslt_takes_them(dtype: str, place: Place) -> None:
    """Without a GPU: products of int8 are traced on cuda, those of fp8 lie alike everywhere."""
    traits, work = PRODUCTS[dtype], Gemm(dtype, 64, 32, 48, right=PRODUCTS[dtype].right)
    with FakeTensorMode(allow_non_fake_inputs=True):
        operation = GemmOperation(work, place, validate=False)
    assert traits.column_major and operation.right.stride() == (1, work.k)
    assert operation.left.is_contiguous() and operation.output.is_contiguous()
    assert operation.left.device.type == place.device.type
    types = {str(tensor.dtype) for tensor in (operation.left, operation.right)}
    assert types != {"torch.float8_e5m2"}, "cuBLASLt has no product of two of these"


@pytest.mark.parametrize("shape", [(512, 512, 512), (64, 512, 1024), (1024, 64, 512)])
@pytest.mark.parametrize("dtype", ON_CPU)
def test_a_product_needs_the_memory_that_was_planned(
    dtype: str, shape: tuple[int, int, int],
) -> None:
    """With the reference that it is compared with: a case that does not fit must be a skip."""
    work = Gemm(dtype, *shape)
    with LiveStorages((), ()) as live:
        called(GemmOperation(work, PLACE, validate=True)).check()
    held = sum(live.at_peak().values())
    assert held <= work.needs_bytes(checked=True) <= 1.6 * held
    with LiveStorages((), ()) as live:
        called(GemmOperation(work, PLACE, validate=False))
    assert sum(live.at_peak().values()) <= work.needs_bytes(checked=False)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
def test_a_term_that_is_left_out_is_found(dtype: str) -> None:
    operation = called(GemmOperation(Gemm(dtype, 64, 64, 256), PLACE, validate=True))
    left, right = operation.left.double(), operation.right.double()
    operation.output = (left[:, 1:] @ right[1:]).to(operation.output.dtype)
    found = operation.check()
    assert found is not None and found.n_wrong > 64 * 64 / 2


def test_a_product_that_wrote_nothing_is_wrong() -> None:
    operation = GemmOperation(Gemm("fp32", 8, 8, 8), PLACE, validate=True)
    operation.prepare()
    found = operation.check()
    assert found is not None and found.n_wrong == 64


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "bf16", "fp16", "int32"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_are_right(kernel: str, dtype: str) -> None:
    work = Stream(dtype, kernel, 4096, 1)
    operation = called(StreamOperation(work, PLACE, validate=True))
    try:
        assert operation.check() is None
        called(operation)
        operation.corrupt_output()
        found = operation.check()
        assert found is not None and found.n_wrong == 1
        if kernel != "read_modify_write":
            found = operation.check()
            assert found is not None and found.n_wrong == found.n_elements, "nothing was written"
    finally:
        operation.close()


def test_more_threads_than_cores_are_refused() -> None:
    with pytest.raises(CaseError, match="more than the"):
        StreamOperation(Stream("fp32", "copy", 64, 4000), PLACE, validate=True)


@pytest.mark.parametrize(("ranks", "threads"), [(1, 2), (2, 1), (8, 1)])
def test_all_threads_are_those_that_a_quota_grants(
    monkeypatch: pytest.MonkeyPatch, ranks: int, threads: int,
) -> None:
    monkeypatch.setattr(stream_run, "granted_cores", lambda files: 2.0)
    monkeypatch.setattr(stream_run, "own_cores", lambda: [*range(16)])
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    before = torch.get_num_threads()
    operation = StreamOperation(
        Stream("fp32", "copy", 4096, ALL_THREADS),
        replace(PLACE, world_size=ranks, local_size=ranks), validate=True)
    try:
        assert torch.get_num_threads() == threads
    finally:
        operation.close()
        torch.set_num_threads(before)


def test_a_numa_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(CaseError, match="no core of NUMA node 900"):
        StreamOperation(Stream("fp32", "copy", 64, 1, numa_node=900), PLACE, validate=True)


def test_what_is_refused_leaves_the_rank_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An inline worker goes on in the same process."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    core = min(before)
    (tmp_path / "node" / "node0").mkdir(parents=True)
    (tmp_path / "node" / "node0" / "cpulist").write_text(f"{core}\n")
    monkeypatch.setattr(stream_run, "_SYSTEM", tmp_path)
    with pytest.raises(CaseError, match="more than the 1 core"):
        StreamOperation(Stream("fp32", "copy", 64, 4000, numa_node=0), PLACE, validate=True)
    with pytest.raises(RuntimeError):
        StreamOperation(Stream("fp32", "copy", 2**60, 1, numa_node=0), PLACE, validate=True)
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == (before, threads)


def test_the_last_caches_of_a_node_are_added_up(tmp_path: Path) -> None:
    for cpu, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        for level, size, who in ((1, "48K", str(cpu)), (3, "32768K", shared)):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{level}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("size", size), ("shared_cpu_list", who)):
                (folder / name).write_text(f"{text}\n")
    assert last_cache_bytes(tmp_path) == 2 * 32 * 2**20
    assert last_cache_bytes(tmp_path / "nowhere") == 0


class Space(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("access", ["read_sequential", "read_random", "write_file_per_rank",
                                    "write_one_file"])
def test_files_are_right(access: str, folder: Path) -> None:
    work = Storage(access, 2**20, str(folder))
    operation = called(StorageOperation(work, PLACE, validate=True))
    try:
        assert operation.check() is None
        operation.corrupt_output()
        assert operation.check() is not None
        assert operation.answer()["storage"]["folder"] == str(folder)
    finally:
        operation.close()


def test_random_reads_are_of_whole_pages() -> None:
    assert Storage("read_random", 10_000, "x").call_bytes == 8192
    assert Storage("read_random", 2**30, "x").call_bytes == 2**20
    assert Storage("read_sequential", 10_000, "x").call_bytes == 10_000


def test_a_disk_without_space_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Space(2**40, 2**40 - 2**20, 2**20))
    with pytest.raises(CaseError, match="give a smaller size, or another folder"):
        StorageOperation(Storage("read_random", 2**20, str(folder)), PLACE, validate=True)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaseError, match="file/x: Not a directory"):
        StorageOperation(Storage("read_random", 2**20, str(tmp_path / "file" / "x")), PLACE,
                         validate=True)


def test_the_kernel_reports_what_it_has_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2**20))
    assert storage_run._dropped(path) in (True, False, None)
