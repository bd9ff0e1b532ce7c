"""What is kept of a worker's output and of its libraries' logs; no text holds a secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.launch.worker_process import (
    KEPT_BYTES,
    SLACK_BYTES,
    WorkerOutput,
    case_stacks,
    read_tail,
)
from hpcbench.measurement.library_log import read_choices
from hpcbench.texts import holds_secret, masked, masked_json
from hpcbench.trace.schema import LibraryChoices, merged
from launcher import ROOT

MOST_BYTES = 2 * KEPT_BYTES + SLACK_BYTES
PAGES_AT_THE_EDGES = 4 * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def output() -> Iterator[WorkerOutput]:
    found = WorkerOutput()
    yield found
    found.close()


def lines(name: str, size_bytes: int) -> bytes:
    """Return numbered lines of 64 bytes, as many as fit."""
    return b"".join(f"{name} {number}".ljust(63, ".").encode() + b"\n"
                    for number in range(size_bytes // 64))


def memory_bytes(output: WorkerOutput) -> int:
    return os.fstat(output.fd).st_blocks * 512


def test_a_case_has_what_was_printed_since_it_began(output: WorkerOutput) -> None:
    assert output.since_mark() == b""
    os.write(output.fd, b"before\n")
    output.mark()
    assert output.since_mark() == b""
    os.write(output.fd, b"one\ntwo")
    assert output.since_mark() == b"one\ntwo"
    output.mark()
    assert output.since_mark() == b""
    assert read_tail(output.fd, 100) == "before\none\ntwo"


def test_of_much_both_ends_are_kept_in_whole_lines(output: WorkerOutput) -> None:
    os.write(output.fd, b"joined\n")
    output.mark()
    os.write(output.fd, b"connected\n" + lines("call", 5 * KEPT_BYTES) + b"the end")
    found = output.since_mark().split(b"\n")
    assert (found[0], found[-1]) == (b"connected", b"the end")
    assert all(len(line) == 63 and line.startswith(b"call ") for line in found[1:-1])
    assert 2 * KEPT_BYTES - 128 < len(b"\n".join(found)) <= 2 * KEPT_BYTES
    assert read_tail(output.fd, 100).endswith("\nthe end")


def test_memory_is_bounded_within_a_case_and_over_many(output: WorkerOutput) -> None:
    most = 0
    for case in range(6):
        output.mark()
        os.write(output.fd, b"connected\n")
        for _ in range(3):  # a look every wakeup_s
            os.write(output.fd, lines(f"case {case}", SLACK_BYTES))
            output.tidy()
            most = max(most, memory_bytes(output))
        found = output.since_mark()
        assert found.startswith(b"connected\ncase %d 0." % case) and b"\0" not in found
        assert found.endswith(lines(f"case {case}", SLACK_BYTES)[-64 * 1000:])
    assert output.size() > 3 * MOST_BYTES
    assert most <= MOST_BYTES + PAGES_AT_THE_EDGES


def test_little_output_is_never_touched(output: WorkerOutput) -> None:
    for _ in range(3):
        os.write(output.fd, lines("x", SLACK_BYTES // 4))
        output.mark()
    assert memory_bytes(output) >= output.size()


def test_another_process_goes_on_writing_behind_the_hole(output: WorkerOutput) -> None:
    code = "import sys; sys.stdout.write('b' * int(sys.argv[1])); print(); print('last')"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(2 * MOST_BYTES)], stdout=output.fd,
                       check=True)
        output.mark()
    assert output.size() == 2 * (2 * MOST_BYTES + 6)
    assert memory_bytes(output) <= KEPT_BYTES + PAGES_AT_THE_EDGES
    assert read_tail(output.fd, 100) == "last\n"


def test_a_process_that_empties_its_output_is_survived(output: WorkerOutput) -> None:
    os.write(output.fd, lines("x", MOST_BYTES))
    output.mark()
    os.truncate(output.fd, 0)  # what fopen("/dev/stdout", "w") does
    assert output.since_mark() == b""
    output.tidy()
    output.mark()
    assert output.size() == 0


@pytest.mark.parametrize("call", ["None", "print_whole_lines()"])
def test_what_a_library_prints_comes_at_once(call: str) -> None:
    """C's stdout keeps what NCCL says for itself until it has 4096 bytes, or for ever."""
    code = ("import ctypes, os; from hpcbench.launch.template_process import print_whole_lines; "
            f"{call}; ctypes.CDLL(None).puts(b'NCCL INFO'); os._exit(0)")
    env = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True,
                          check=True)
    assert done.stdout == (b"NCCL INFO\n" if "lines" in call else b"")


def test_stacks_begin_with_the_thread_of_the_case() -> None:
    recorder = 'Thread 0x1 (most recent call first):\n  File "profiling/flight.py", line 3 in _a'
    other = 'Thread 0x2 (most recent call first):\n  File "loader.py", line 1 in get'
    case = 'Current thread 0x3 (most recent call first):\n  File "c10d.py", line 9 in all_reduce'
    assert case_stacks(f"{recorder}\n\n{other}\n\n{case}\n") == f"{case}\n\n{other}"
    assert case_stacks("") == ""


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


SECRET = "s3cr3t-Va1ue"


@pytest.mark.parametrize("name", [
    "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "DB_PASS", "X_CREDENTIALS", "PROXY_AUTH",
    "api_key", "NCCL_API_KEY"])
def test_a_name_shows_that_there_is_a_secret(name: str) -> None:
    assert holds_secret(name, "0x1")
    assert masked(f"no route to {SECRET}!", {name: SECRET}) == "no route to ***!"


def test_partition_keys_are_none() -> None:
    assert not holds_secret("NCCL_IB_PKEY", "0x7fff")
    assert not holds_secret("UCX_IB_PKEY", "8001")
    assert holds_secret("NCCL_IB_PKEY", SECRET)


@pytest.mark.parametrize(("text", "expected"), [
    (f"http://me:{SECRET}@proxy:8080/x", "http://***@proxy:8080/x"),
    (f"http://me:{SECRET}@p@ss@proxy:8080/x", "http://***@proxy:8080/x"),
    (f"http://me:{SECRET}/p@proxy:8080", "http://***@proxy:8080"),
    (f"https://{SECRET}@git.example/x", "https://***@git.example/x"),
    (f"https://a.example/x?api_key={SECRET}&y=1", "https://a.example/x?api_key=***&y=1"),
    (f'token="{SECRET}"', 'token="***"'),
    (f'{{"hf_token": "{SECRET}", "n": 1}}', '{"hf_token": "***", "n": 1}'),
    (f"password: {SECRET}", "password: ***"),
    (f"run --db-password {SECRET} --fast", "run --db-password *** --fast"),
    (f"Authorization: Bearer {SECRET}", "Authorization: Bearer ***"),
    (f"Authorization: token {SECRET}", "Authorization: token ***"),
    (f"X-Api-Key: {SECRET}", "X-Api-Key: ***"),
    (f"run --api-key {SECRET} --fast", "run --api-key *** --fast"),
    (f"https://a.example/x?sv=1&sig={SECRET}&y=1", "https://a.example/x?sv=1&sig=***&y=1"),
    (f'password="two {SECRET} words", y=1', 'password="***", y=1'),
    (rf'{{\"token\": \"{SECRET}\"}}', r'{\"token\": \"***\"}'),
    (rf"password=a\{SECRET} y", "password=*** y"),
    (f"export DB_PASS={SECRET} NCCL_IB_PKEY=0x7fff", "export DB_PASS=*** NCCL_IB_PKEY=0x7fff"),
    (f'{{"SSH_KEY": "{SECRET}"}}', '{"SSH_KEY": "***"}'),
    ("pushed by ghp_" + 36 * "a", "pushed by ***"),
])
def test_texts_like_secrets_are_masked(text: str, expected: str) -> None:
    assert masked(text, {}) == expected


@pytest.mark.parametrize("text", [
    "KeyError: 'rank'", "sorted(items, key=len)", "http://host:80/path", "tokens: 5, passed: 3",
    "tcp://10.0.0.1:29500", "tokens_per_s=12.5", "author: me", "Connection closed by peer [::1]:80",
    "NCCL INFO Channel 00/08 : 0[0] -> 1[1] via P2P/CUMEM",
    "MAX_TOKENS=4096 seed_key=7 hf_text", "basic case; bearer of news", "a?b=1&sigma=2"])
def test_ordinary_text_stays(text: str) -> None:
    assert masked(text, {"X_KEY": "1", "Y_AUTH": "true", "Z_TOKEN": ""}) == text


def test_every_form_of_a_value() -> None:
    environ = {"MY_KEY": "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\n-----END KEY-----\n",
               "DB_PASS": "p@ss/word ä", "LONG_TOKEN": SECRET + SECRET, "SHORT_TOKEN": SECRET}
    texts = ["got MIIEvQIBADANBgkq there", "http%3A p%40ss%2Fword%20%C3%A4", repr("p@ss/word ä"),
             repr(environ["MY_KEY"]), SECRET + SECRET]
    joined = masked("\n".join(texts), environ)
    assert not any(part in joined for part in ("MIIE", "p%40ss", "p@ss", SECRET, "Va1ue"))


def test_a_secret_within_a_value_is_known_where_it_stands_alone() -> None:
    environ = {"UCX_PROXY": f"http://ops:{SECRET}@proxy:80", "A_MODE": "token=auto",
               "PYTEST_CURRENT_TEST": "tests/test_secrets.py::test_of_it",
               "B_MODE": "the password: alphabet",
               "NCCL_X": "user=ops;password=0ther-one"}
    assert masked(f"{SECRET} 0ther-one ops auto alphabet test_of_it secrets.py:f", environ) == (
        "*** *** ops auto alphabet test_of_it secrets.py:f")


@given(st.text(min_size=6, alphabet="abcXYZ019-_.!$%()+ /"), st.text(), st.text())
def test_the_value_of_a_secret_variable_is_never_left(value: str, before: str, after: str) -> None:
    text = masked(f"{before}{value}{after}", {"MY_TOKEN": value})
    stripped = value.strip()
    assert len(stripped) < 4 or stripped not in text.replace("***", "\0")


def test_a_secret_that_was_cut_off() -> None:
    environ = {"A_TOKEN": SECRET}
    assert masked(f"no route to {SECRET[:9]}", environ) == "no route to ***"
    assert masked(f"{SECRET[-9:]} is no name", environ) == "*** is no name"
    assert masked(f"no route to {SECRET[:4]}", environ) == f"no route to {SECRET[:4]}"


def test_json_values_keep_their_shape() -> None:
    value = {"a": [1, None, {"b": f"x {SECRET}"}], "c": True, SECRET: 1.5}
    found = masked_json(value, {"A_TOKEN": SECRET})
    assert found == {"a": [1, None, {"b": "x ***"}], "c": True, SECRET: 1.5}
    json.dumps(found)
