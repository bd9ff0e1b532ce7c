"""What NCCL and UCC say in their logs; each sample has the form that the version named prints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.measurement.library_log import read_choices
from hpcbench.trace.schema import LibraryChoices, merged

INIT_2_27 = """\
n1:412:498 [0] NCCL INFO Channel 00/08 :    0   1
n1:412:498 [0] NCCL INFO Channel 07/08 :    0   1
n1:412:498 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
n1:412:498 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
n1:412:498 [0] NCCL INFO 8 coll channels, 8 collnet channels, 0 nvls channels, 8 p2p channels, \
2 p2p channels per peer
n1:412:412 [0] NCCL INFO ncclCommInitRankConfig comm 0x55d0 rank 0 nranks 2 - Init COMPLETE
"""
CALL_2_27 = ("n1:412:412 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE "
             "channel{Lo..Hi}={0..7}\n")
CALL_2_21 = "n1:412:412 [0] NCCL INFO 1048576 Bytes -> Algo 1 proto 2 time 35.400002\n"
CALL_2_23 = "n1:412:412 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo 0 proto 0 time 11.2\n"
UCC_1_10 = ("[1700000000.1] [n1:5:0]  ucc_coll.c:339  UCC_COLL INFO  coll_init: Allreduce sum "
            "inplace: dst={0x7f00, 256, float32, Host}; CL_BASIC {TL_UCP}, team_id 32768\n")
UCX_1_17 = """\
[1700000000.1] [n1:5:0]  ucp_worker.c:1871 UCX  INFO  0x1d79 self cfg#0 tag(self/memory)
[1700000000.1] [n1:5:0]  ucp_worker.c:1871 UCX  INFO  0x1d79 intra-node cfg#1 \
tag(posix/memory cma/memory)
[1700000000.1] [n1:5:0]  ucp_worker.c:1871 UCX  INFO  0x1d79 inter-node cfg#2 \
tag(rc_mlx5/mlx5_0:1) rma(rc_mlx5/mlx5_0:1)
"""
NOTHING = {"algorithm": "unknown", "protocol": "unknown", "channels": "unknown",
           "transport": "unknown"}


def test_nothing_logged_is_unknown() -> None:
    assert read_choices("").to_json() == NOTHING
    assert read_choices("Traceback: Algo went via the wall, 8 channels\n").to_json() == NOTHING


def test_nccl_2_27_logs_everything() -> None:
    assert read_choices(INIT_2_27 + CALL_2_27 * 50).to_json() == {
        "algorithm": "RING", "protocol": "SIMPLE", "channels": "8", "transport": "P2P/CUMEM"}


def test_later_cases_of_a_group_keep_its_connections_but_not_its_calls() -> None:
    first = read_choices(INIT_2_27 + CALL_2_27)
    second = read_choices(CALL_2_27.replace("RING", "TREE").replace("0..7", "0..3"), first)
    assert second.to_json() == {
        "algorithm": "TREE", "protocol": "SIMPLE", "channels": "4", "transport": "P2P/CUMEM"}
    silent = read_choices("", read_choices(INIT_2_27))
    assert silent.to_json() == {**NOTHING, "channels": "up to 8", "transport": "P2P/CUMEM"}
    assert read_choices("", first).channels == ()


@pytest.mark.parametrize(("line", "algorithm", "protocol", "channels"), [
    (CALL_2_21, "RING", "SIMPLE", "unknown"),
    (CALL_2_23, "TREE", "LL", "unknown"),
    (CALL_2_21.replace("Algo 1", "Algo 9"), "number 9", "SIMPLE", "unknown"),
    ("NCCL INFO AllGather: 8 Bytes -> Algo NVLS proto LL128 channel{Lo..Hi}={2..2}\n",
     "NVLS", "LL128", "1"),
    ("NCCL INFO AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_RSxLD_AGxST nchannels 24 "
     "nthreads 512 nWorks 1\n", "Symmetric AllReduce_RSxLD_AGxST", "unknown", "24"),
    ("NCCL INFO AllGather [Copy Engine]: 1048576 Bytes -> cudaMemcpy\n", "Copy Engine", "unknown",
     "unknown"),
])
def test_calls_of_other_versions(
    line: str, algorithm: str, protocol: str, channels: str,
) -> None:
    assert read_choices(line).to_json() == {
        "algorithm": algorithm, "protocol": protocol, "channels": channels, "transport": "unknown"}


@pytest.mark.parametrize(("via", "kind"), [
    ("Channel 00 : 0[1b000] -> 1[1c000] via P2P/IPC/read", "P2P/IPC/read"),  # 2.10
    ("Channel 00 : 0[1b000] -> 1[1c000] via direct shared memory", "SHM"),  # 2.10
    ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer", "P2P/direct pointer"),
    ("Channel 00/0 : 0[0] -> 3[3] via P2P/indirect/1[1]/read", "P2P/indirect"),
    ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM/direct/direct"),
    ("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA", "NET/IB/GDRDMA"),
    ("Channel 00/0 : 1[1] -> 2[0] [receive] via NET/Socket/3", "NET/Socket"),
    ("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/2(5)/GDRDMA/Shared", "NET/IB/GDRDMA/Shared"),
    ("Channel 00/0 : 1[1] -> 2[0] [send] via NET/AWS Libfabric/1/GDRDMA(PCI)",
     "NET/AWS Libfabric/GDRDMA(PCI)"),
    ("Channel 00 : 0[c1000] -> 1[c6000] via P2P/direct pointer comm 0x7f31e0001040 nRanks 08",
     "P2P/direct pointer"),  # RCCL
    ("CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA", "COLLNET/SHARP/GDRDMA"),
])
def test_transports_of_nccl(via: str, kind: str) -> None:
    text = f"n1:1:2 [0] NCCL INFO {via}\nn1:1:2 [0] NCCL INFO {via}\n"
    assert read_choices(text).to_json() == {**NOTHING, "transport": kind}


def test_ucc_logs_its_layers_and_ucx_its_transports() -> None:
    assert read_choices(UCX_1_17 + UCC_1_10 * 3).to_json() == {
        **NOTHING,
        "transport": "CL_BASIC/TL_UCP + posix/memory cma/memory + rc_mlx5/mlx5_0:1"}
    old = "UCX  INFO  ep_cfg[1]: tag(posix/memory knem/memory); stream(posix/memory); \n"  # 1.12
    assert read_choices(old).transport == ("posix/memory knem/memory",)


def test_what_the_ranks_log_is_put_together() -> None:
    leader = read_choices(INIT_2_27 + CALL_2_27)
    other = read_choices("NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0\n"
                         "NCCL INFO 8 coll channels, 8 collnet channels\n")
    assert merged([leader, other]).to_json() == {
        "algorithm": "RING", "protocol": "SIMPLE", "channels": "8",
        "transport": "P2P/CUMEM + NET/IB"}
    assert merged([other]).channels == ("up to 8",)
    assert merged([]) == LibraryChoices()
    assert merged([LibraryChoices.from_json(item.to_json()) for item in (leader, other)]) == merged(
        [leader, other])
    assert LibraryChoices.from_json(NOTHING) == LibraryChoices()


def test_one_endless_line_is_not_searched() -> None:
    text = "NCCL INFO Channel " * 60_000 + "\n" + INIT_2_27
    assert read_choices(text) == read_choices(INIT_2_27)


@given(st.lists(st.sampled_from([
    "NCCL INFO ", "Channel 00/08 : 0 1", " via ", "NET/IB/0", "Algo ", "99999999", " proto ", "\n",
    "[Symmetric]: 1 Bytes -> ", "Bytes -> ", "coll_init: ", "; CL {", "}, team_id", "cfg#1 tag(",
    "channel{Lo..Hi}={", "0..7}", "x"])).map("".join) | st.text())
def test_any_text_can_be_read(text: str) -> None:
    choices = read_choices(text, read_choices(text))
    assert all(value for value in choices.to_json().values())
    assert LibraryChoices.from_json(choices.to_json()).to_json() == choices.to_json()
