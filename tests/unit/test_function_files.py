"""Files of benchmarked functions: what they declare becomes cases, and what is wrong one line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hpcbench.config.load import load_config
from hpcbench.errors import CaseError, ConfigError, FileError
from hpcbench.kinds.function.derive import FunctionDeriver
from hpcbench.kinds.function.plan import FunctionCall
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.launch.attempt import PlainPlan
from hpcbench.launch.messages import REQUESTS, DryRunRequest, decoded, encoded
from hpcbench.operations.functions import (
    MOST_WRONG,
    TimedCall,
    WrongResult,
    checked,
    line_in,
    load_functions,
    timed_call,
    wrong_elements,
)
from hpcbench.plain import Plain
from hpcbench.plan.case import Plan, case_from_json, case_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.resume import _refuse_changed_files
from hpcbench.texts import MOST_CHARACTERS
from results_factory import make_case, ok

TWO = """
import hpcbench

@hpcbench.benchmark(tokens=[8, 16], chunks=[1, 2], backend=["gloo", "mpi"], compare="both",
                    baseline=True)
def first(ctx, tokens, chunks): pass

@hpcbench.benchmark(tokens=[8, 16], mode="pipelined", compare="both", way=["a", "b"],
                    settings="way", name="second-one")
def second(ctx, tokens, way, extra=3): pass
"""


def plan(folder: Path, text: str, ranks: int = 2) -> Plan:
    file = folder / "my_ops.py"
    file.write_text(text)
    return make_plan(load_config(file), ranks)


def calls(planned: Plan) -> list[FunctionCall]:
    works = [case.workload for case in planned.cases]
    assert all(isinstance(work, FunctionCall) for work in works)
    return works  # type: ignore[return-value]


def test_rates_are_of_the_mean_rank_and_none_of_some_of_them() -> None:
    work = FunctionCall("f.py", "", "f", (), "fp32", baseline=True)
    case = replace(make_case(world_size=2), kind="function", workload=work)
    first = {"flops": 30, "bytes": 4, "collective": "all_gather"}
    full, part = (ok(replace(case, case_id=str(n)), 2.0, detail={"0": first, "1": other})
                  for n, other in enumerate(({"flops": 10, "bytes": 12}, {"flops": 10})))
    found = FunctionDeriver().derive([full, part], {})
    rates = [[values[name] for name in ("rank_flops_per_s", "rank_bytes_per_s",
                                        "busbw_bytes_per_s")] for values in found.values()]
    assert rates == [[10.0, 4.0, 4.0 * 1 / 2], [10.0, None, None]]


def test_lists_are_axes_and_keys_of_blocks_are_those_of_blocks(tmp_path: Path) -> None:
    planned = plan(tmp_path, TWO)
    assert planned.name == "my_ops"
    found = {(case.workload.name, case.backend, case.mode, *dict(work.arguments).values())
             for case, work in zip(planned.cases, calls(planned), strict=True)}
    assert found == {
        *(("first", backend, "isolated", tokens, chunks)
          for backend in ("gloo", "mpi") for tokens in (8, 16) for chunks in (1, 2)),
        *(("second-one", "gloo", "pipelined", tokens, way)
          for tokens in (8, 16) for way in ("a", "b"))}
    assert {work.shared for work in calls(planned)} == {("tokens",)}
    assert {work.baseline for work in calls(planned) if work.function == "first"} == {True}
    settings = [work.choice().setting for work in calls(planned) if work.function == "second-one"]
    assert {*settings[0]} == {"function", "options.way"}
    for case in planned.cases:
        assert case_from_json(case_to_json(case)) == case


def test_the_file_on_the_first_page_is_whole(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
    text = page.partition("A Python file is a sweep")[2].partition("\n\n")[2].partition("mpirun")[0]
    planned = plan(tmp_path, textwrap.dedent(text))
    assert {work.function for work in calls(planned)} == {"own_sum"} and len(planned.cases) == 4
    names = {*load_functions(str(tmp_path / "my_ops.py"))["own_sum"].__globals__}
    assert {"dist", "hpcbench"} <= names


POINTS = """
import hpcbench

@hpcbench.benchmark(points=[{"m": 8, "n": 64}, {"m": 64, "n": 8}], shape=[(2, 3), (4,)],
                    limit=[1.0, float("inf"), -float("inf")], compare="two")
def f(ctx, m, n, shape, limit): pass

@hpcbench.benchmark(m=[8, 64], limit=1.0, compare="two")
def g(ctx, m, limit): pass
"""


def test_points_tuples_and_infinity_reach_the_worker_as_they_are(tmp_path: Path) -> None:
    planned = plan(tmp_path, POINTS)
    found = {tuple(dict(work.arguments).values()) for work in calls(planned)
             if work.function == "f"}
    assert found == {(shape, limit, m, n) for shape in ((2, 3), (4,)) for m, n in ((8, 64), (64, 8))
                     for limit in (1.0, float("inf"), -float("inf"))}
    assert {work.shared for work in calls(planned)} == {("limit", "m"), ("m", "limit")}
    assert len({case.case_id for case in planned.cases}) == len(planned.cases) == 14
    for case in planned.cases:
        sent = json.loads(json.dumps(case_to_json(case), allow_nan=False))
        assert case_from_json(sent) == case
        message = decoded(REQUESTS, encoded(REQUESTS, DryRunRequest(case)))
        assert isinstance(message, DryRunRequest) and message.case == case
        json.dumps([case.workload.choice().axes, case.workload.choice().task], allow_nan=False)
    adapter: Plain[Plan] = Plain(PlainPlan)
    assert adapter.read(adapter.write(planned)) == planned
    assert planned.cases[1].label == "f gloo cpu shape=(2,3) limit=1.0 m=64 n=8 fp32 ranks=2"


def test_the_content_of_the_file_is_part_of_the_id(tmp_path: Path) -> None:
    before = plan(tmp_path, TWO)
    assert {case.case_id for case in plan(tmp_path, TWO).cases} == {
        case.case_id for case in before.cases}
    _refuse_changed_files(before, tmp_path)
    after = plan(tmp_path, TWO + "# more\n")
    assert not {case.case_id for case in after.cases} & {case.case_id for case in before.cases}
    with pytest.raises(Exception, match=calls(before)[0].sha256):
        _refuse_changed_files(before, tmp_path)
    with pytest.raises(CaseError, match=calls(before)[0].sha256):
        load_functions(str(tmp_path / "my_ops.py"), calls(before)[0].sha256)


def test_beside_other_blocks_a_file_is_relative_to_the_sweep_file(tmp_path: Path) -> None:
    (tmp_path / "my_ops.py").write_text(TWO)
    (tmp_path / "sweep.json").write_text(
        '{"benchmarks": [{"kind": "function", "file": "my_ops.py", "function": "first", '
        '"world_size": [1, 2]}, {"kind": "collective", "collective": "barrier"}]}')
    planned = make_plan(load_config(tmp_path / "sweep.json"), 2)
    assert sorted({(case.kind, case.world_size) for case in planned.cases}) == [
        ("collective", 2), ("function", 1), ("function", 2)]


PRIMITIVE = """
import hpcbench

@hpcbench.benchmark(compare="tp_columnwise", baseline=["torch", "chunked_pipeline"], m=[64, 128],
                    n=64, k=64, order="AG_before", chunks=[2, 4])
def own(ctx, chunks): pass
"""


def test_a_function_stands_beside_implementations_of_a_primitive(tmp_path: Path) -> None:
    planned = plan(tmp_path, PRIMITIVE)
    works = [case.workload for case in planned.cases]
    assert all(isinstance(work, Primitive) for work in works)
    rows = {(work.implementation, work.m, dict(work.options).get("chunks"), bool(work.file))
            for work in works if isinstance(work, Primitive)}
    assert {row for row in rows if row[0] == "own"} == {
        ("own", m, chunks, True) for m in (64, 128) for chunks in (2, 4)}
    assert {row[0] for row in rows} == {"own", "torch", "chunked_pipeline"}
    own, torch = (next(work for work in works if isinstance(work, Primitive)
                       and work.implementation == name) for name in ("own", "torch"))
    assert own.choice().task == torch.choice().task
    assert (own.flops, own.size_bytes) == (torch.flops, torch.size_bytes)
    for case in planned.cases:
        assert case_from_json(case_to_json(case)) == case


MARK = "import hpcbench\n@hpcbench.benchmark({})\ndef f({}): pass\n"


@pytest.mark.parametrize(("text", "line", "names"), [
    ("import json\n", None, ["hpcbench.benchmark"]),
    ("import no_such_module\n", 1, ["ModuleNotFoundError", "no_such_module"]),
    ("def f(:\n", 1, ["SyntaxError"]),
    ("import sys\nsys.exit(3)\n", 2, ["SystemExit"]),
    (MARK.format("", ""), 2, ["f(ctx, ...)"]),
    (MARK.format("", "ctx, n"), 2, ["n=[...]"]),
    (MARK.format("m=[1]", "ctx, n=2"), 2, ["m", "n"]),
    (MARK.format("n=[]", "ctx, n"), 2, ["n"]),
    (MARK.format("n=[1, 1]", "ctx, n"), 2, ["n"]),
    (MARK.format("n=[[1]]", "ctx, n"), 2, ["[1]"]),
    (MARK.format("n=[{}]", "ctx, n"), 2, ["{}"]),
    (MARK.format("n=[((1,),)]", "ctx, n"), 2, ["(1,)"]),
    (MARK.format("n=[float('nan')]", "ctx, n"), 2, ["nan"]),
    (MARK.format("points=[{'n': 1}, {'m': 1}]", "ctx, n"), 2, ["points"]),
    (MARK.format("points=[{'n': 1}, {'n': 1}]", "ctx, n"), 2, ["points"]),
    (MARK.format("points=[{'n': 1}], n=[2]", "ctx, n"), 2, ["points", "n"]),
    (MARK.format("points=[{'dtype': 'fp32'}]", "ctx"), 2, ["points", "dtype"]),
    (MARK.format("points=[{'n': []}]", "ctx, n"), 2, ["[]"]),
    (MARK.format("points=5", "ctx"), 2, ["points"]),
    (MARK.format("compare='tp_columnwise', points=[{'m': 8, 'n': 8, 'k': 8}]", "ctx"), 2,
     ["points"]),
    (MARK.format("n=1", "ctx, n") * 2, 5, ["f", "2"]),
    (MARK.format("backend='gloop'", "ctx"), 2, ["gloop", "gloo"]),
    (MARK.format("", "ctx, backend"), 2, ["backend"]),
    (MARK.format("name='a b'", "ctx"), 2, ["a b"]),
    (MARK.format("arrival={'late': 'last', 'by': '2mz'}", "ctx"), 2, ["arrival", "2mz"]),
    (MARK.format("settings='m', n=1", "ctx, n"), 2, ["m", "n"]),
    (MARK.format("compare='tp_columnwise', m=8, n=8", "ctx"), 2, ["k"]),
    (MARK.format("compare='tp_columnwise', m=8, n=8, k=8, part=[0.5]", "ctx, part"), 2, ["part"]),
    (MARK.format("compare='tp_columwise', m=8", "ctx"), 2, ["tp_columnwise"]),
    (MARK.format("baseline='nope'", "ctx"), 2, ["nope"]),
    (MARK.format("settings=5", "ctx"), 2, ["settings"]),
    (MARK.format("compare='tp_columnwise', m=8, n=8, k=8, name='torch'", "ctx"), None, ["torch"]),
])
def test_what_is_wrong_with_a_file_is_one_line_with_its_place(
    text: str, line: int | None, names: list[str], tmp_path: Path,
) -> None:
    with pytest.raises(FileError if "no_such_module" in names else ConfigError) as raised:
        plan(tmp_path, text)
    (said,) = str(raised.value).splitlines()
    place = str(tmp_path / "my_ops.py")
    assert (f"{place}:{line}" if line else place) in said
    assert all(name in said for name in names), said


def test_an_error_of_5_mb_in_a_file_is_cut(tmp_path: Path) -> None:
    for text in ("raise ValueError('x' * 5_000_000)\n", "import hpcbench\n\n\n"
                 "@hpcbench.benchmark(name='x' * 5_000_000)\ndef own(ctx): pass\n"):
        with pytest.raises(ConfigError, match="xxx") as raised:
            plan(tmp_path, text)
        assert len(str(raised.value)) < 700


def test_a_file_that_ends_python_or_is_not_there_is_one_line(tmp_path: Path) -> None:
    for text, name in (("import os\nos._exit(4)\n", "4"), ("print('{}', end='')\nquit()\n", "2")):
        with pytest.raises(ConfigError, match=name):
            plan(tmp_path, text)
    (tmp_path / "sweep.json").write_text(
        '{"benchmarks": [{"kind": "function", "file": "none.py"}]}')
    with pytest.raises(FileError, match=r"none\.py"):
        make_plan(load_config(tmp_path / "sweep.json"), 2)


STARTS = """
import os, time
import hpcbench

@hpcbench.benchmark()
def own(ctx): return len

log = open(__file__ + ".log", "w")
if not (other := os.fork()):
    time.sleep(300)
print(os.getpid(), other, file=log, flush=True)
"""


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_ended(log: Path) -> None:
    pids, deadline = [*map(int, log.read_text().split())], time.monotonic() + 20
    while not all(map(has_ended, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.02)
    assert len(pids) == 2


def test_what_a_file_starts_ends_with_its_import_and_a_sleep_has_a_limit(tmp_path: Path) -> None:
    assert len(plan(tmp_path, STARTS).cases) == 1
    wait_until_ended(tmp_path / "my_ops.py.log")
    file = tmp_path / "my_ops.py"
    file.write_text(STARTS + "time.sleep(300)")
    with pytest.raises(ConfigError, match=r"within 2 s \(launch.init_timeout_s\)"):
        make_plan(load_config(file, [("launch.init_timeout_s", 2)]), 2)
    wait_until_ended(tmp_path / "my_ops.py.log")


def test_a_signal_ends_the_import_of_a_file(tmp_path: Path) -> None:
    file, log = tmp_path / "ops.py", tmp_path / "ops.py.log"
    file.write_text(STARTS.replace("os.fork()", "os.getpid()") + "time.sleep(300)")
    with subprocess.Popen([sys.executable, "-m", "hpcbench", "plan", str(file)]) as planner:
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_text()):
            assert time.monotonic() < deadline and planner.poll() is None
            time.sleep(0.02)
        planner.terminate()
        assert planner.wait(20) == -signal.SIGTERM
    wait_until_ended(log)


@pytest.mark.parametrize(("returned", "count"), [
    (None, 0), (True, 0), (0, 0), (0.0, 0), ("", 0), (np.bool_(True), 0), (np.int64(0), 0),
    (False, 1), (7, 7), (0.5, 1), (float("nan"), 1), ("too small", 1), (np.bool_(False), 1),
    (np.array([2]), 2), (-3, 1),
    (2**70, MOST_WRONG), (-0.5, 1), ("two\nlines", 1)])
def test_what_a_check_returns(returned: object, count: int) -> None:
    found, words = wrong_elements(returned)
    assert found == count and bool(words) == bool(count) and "\n" not in words


@pytest.mark.parametrize("returned", [np.array([1, 2]), [1], {}, 1j])
def test_what_a_check_must_not_return(returned: object) -> None:
    with pytest.raises(TypeError, match=type(returned).__name__):
        wrong_elements(returned)


def test_functions_behind_decorators_of_others_are_found(tmp_path: Path) -> None:
    text = ("import functools\nimport hpcbench\n\n\ndef other(f):\n    @functools.wraps(f)\n"
            "    def inner(*a, **k):\n        return f(*a, **k)\n    return inner\n\n\n"
            "@hpcbench.benchmark(size=[1, 2])\n@other\ndef own(ctx, size):\n    return len\n")
    (tmp_path / "my_ops.py").write_text(text.replace("def other", "def other", 1))
    assert {work.function for work in calls(plan(tmp_path, text))} == {"own"}


async def deferred() -> None:
    """Do nothing later."""


def test_a_file_is_imported_once_and_again_after_it_failed(tmp_path: Path) -> None:
    file = tmp_path / "once.py"
    file.write_text("import hpcbench, pathlib\nlog = pathlib.Path(__file__).with_suffix('.log')\n"
                    "seen = log.read_text() if log.exists() else ''\nlog.write_text(seen + 'x')\n"
                    "assert seen\n\n\n@hpcbench.benchmark()\ndef own(ctx):\n    return len\n")
    with pytest.raises(AssertionError):
        load_functions(str(file))
    for _ in range(3):
        assert [*load_functions(str(file))] == ["own"]
    assert (tmp_path / "once.log").read_text() == "xx"


@pytest.mark.parametrize("returned", [
    None, 3, TimedCall(None), TimedCall(len, check=3),  # type: ignore[arg-type]
    TimedCall(len, prepare="no"), TimedCall(len, bytes=-1),  # type: ignore[arg-type]
    *(TimedCall(len, flops=value) for value in (  # type: ignore[arg-type]
        10**400, 10**5000, -(10**5000), float("nan"), float("inf"), 1e308, True, "1", 0, -1.0, 1j,
        Fraction(10**400), Decimal(8), np.bool_(True), np.float64("nan"), np.array([1.0, 2.0]))),
    TimedCall(len, bytes=10**400), TimedCall(deferred),
    TimedCall(len, collective="allreduce", bytes=8), TimedCall(len, collective="all_reduce")])  # type: ignore[arg-type]
def test_what_a_function_must_not_return(returned: Any) -> None:
    with pytest.raises(CaseError, match="own") as raised:
        timed_call(returned, "own")
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("flops", [1, 2**60, 0.5, 1e24, np.float32(3), np.int64(3), Fraction(3)])
def test_numbers_of_a_call(flops: Any) -> None:
    assert timed_call(TimedCall(len, flops=flops, bytes=flops), "own").flops == flops


def test_what_a_check_says_at_length_is_cut_with_a_count() -> None:
    def fails() -> None:
        raise AssertionError("a" * 5_000_000)

    text = "a" * MOST_CHARACTERS + "... 4,999,700 more characters"
    assert wrong_elements("a" * 5_000_000) == (1, text)
    assert checked(fails) == WrongResult(1, text)


def test_the_line_of_an_error_is_the_innermost_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "deep.py"
    file.write_text("import hpcbench\n\n\ndef inner():\n    int('x')\n\n\n"
                    "@hpcbench.benchmark()\ndef outer(ctx):\n    inner()\n")
    with pytest.raises(ValueError, match="invalid literal") as raised:
        load_functions(str(file))["outer"](None)
    assert line_in(raised.value, str(file)) == 5


def test_importing_hpcbench_loads_neither_torch_nor_numpy() -> None:
    code = ("import sys, hpcbench; hpcbench.benchmark; "
            "print(sorted({'torch', 'numpy', 'h5py', 'pydantic'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
