"""Whatever is fed to the command line, paths and files: one clear complaint, code, end."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import pytest
import typer

from bad_input_process import LONGEST_LINE, complaint, hpcbench
from bad_inputs import places
from golden import RUNS
from hpcbench import limits
from hpcbench.cli import COMMANDS
from hpcbench.config import load
from hpcbench.config.load import find_config
from hpcbench.errors import ConfigError, FileError, TraceError
from hpcbench.interop.anonymize import copy_text
from hpcbench.interop.formats.reading import source
from hpcbench.interop.pseudonyms import Pseudonyms
from hpcbench.interop.traffic import calls
from hpcbench.interop.traffic.imported import import_traffic
from hpcbench.operations import traffic
from hpcbench.operations.traffic import read_traffic
from hpcbench.profiling.profiled_cases import read_rank_file
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.trace import container
from hpcbench.trace.columns import read_column
from hpcbench.trace.journal import Frame, Kind, journal_path, pack_frame, read_journal, scan
from hpcbench.trace.sealed import open_trace
from hpcbench.trace.source import UnreadableTrace, plan_from_text, plan_to_text
from hpcbench.units import parse_bytes
from launcher import ROOT
from synthetic import make_plan, write_synthetic_run


def test_the_attack_is_held() -> None:
    """What takes longer does so in tests/mpi/test_benchmarks.py."""
    kinds = ["sweeps", "lines", "results", "run", "records", "forged"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "attack.py"), "--seconds", "0", "--kinds",
         ",".join(kinds)], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert [line.split()[0] for line in done.stdout.splitlines()] == kinds


def test_the_peak_is_the_peak_of_the_process_itself() -> None:
    """``ru_maxrss`` is not: it is kept over execve (getrusage(2)), so it starts as the parent's."""
    held = b"1" * (400 << 20)
    done = subprocess.run(
        [sys.executable, "-c", "from hpcbench.measurement.process import KernelFiles;"
         "print(KernelFiles().process_bytes('VmHWM'))"], capture_output=True, text=True, check=True)
    assert 1 << 20 < int(done.stdout) < len(held) // 4


@pytest.mark.parametrize(("code", "err", "wrong"), [
    (0, "", None), (1, "", None), (3, "", None), (2, "hpcbench: x.json: is a folder", None),
    (4, "hpcbench: internal error", "exit code 4"), (2, "", "exit code 2 without a word"),
    (2, "Traceback (most recent call last)", "exit code 2"), (-1, "", "exit code -1"),
    (2, "hpcbench: " + "x" * LONGEST_LINE, f"a line of {LONGEST_LINE + 10} characters"),
    (2, "what?", "does not say who complains")])
def test_the_judge_itself(code: int, err: str, wrong: str | None) -> None:
    assert complaint(code, err) == wrong


def test_a_name_that_is_too_long_is_shown_in_short() -> None:
    with pytest.raises(FileError, match="^x{57}...: File name too long; give a JSON or YAML"):
        find_config(Path("x" * 5000))


def test_a_size_that_is_no_size_is_shown_in_short() -> None:
    with pytest.raises(ValueError) as caught:
        parse_bytes("x" * 100_000)
    assert len(str(caught.value)) < 150


def test_a_file_that_is_too_large_for_a_sweep_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    with path.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(FileError, match="has 1,099,511,627,776 bytes, more than the 4,194,304"):
        load.load_config(path)


def test_a_column_that_claims_more_than_its_bytes_hold_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "hollow.h5", "w") as file:
        file.create_dataset("notes", (2**37,), dtype="i8", chunks=(1024,))
        with pytest.raises(ValueError, match="notes claims 1099511627776 bytes"):
            read_column(file, "notes")


@pytest.mark.parametrize(("name", "value"), [
    ("pass_index", "0"), ("begin_ns", 2**70), ("status", 5), ("detail", []), ("blamed_rank", None)])
def test_a_record_of_other_types_is_damage_and_costs_itself_only(
    tmp_path: Path, name: str, value: object,
) -> None:
    traces = write_synthetic_run(tmp_path, make_plan(n_cases=2), sealed=False)
    path = journal_path(traces, 1)
    frames = [frame for frame in scan(path.read_bytes()) if isinstance(frame, Frame)]
    records = [frame for frame in frames if frame.kind == Kind.RECORD]
    changed = pack_frame(Kind.RECORD, {**records[0].json(), name: value},
                         records[0].samples().rows())
    data = path.read_bytes()
    path.write_bytes(data[:records[0].offset] + changed + data[records[0].end:])
    trace = read_journal(path)
    assert len(trace.case_ids) == 1 and len(trace.damage) == 1
    assert "cannot be understood" in trace.damage[0].what


def test_a_frame_that_is_nested_too_deeply_is_no_json() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        Frame(0, Kind.NOTE, b"[" * 100_000, b"").json()


@pytest.mark.parametrize(("words", "said"), [
    (["show", "x" * 5000], "File name too long"), (["reduce", "x" * 5000], "File name too long"),
    (["plot", "x" * 5000], "File name too long"), ([], "Usage: "),
    (["show", "/proc/self/mem"], "/proc/self/mem: cannot be read: Input/output error")])
def test_a_word_that_is_no_file_name_and_no_word_at_all(words: list[str], said: str) -> None:
    done = hpcbench(*words)
    assert done.returncode == 2, done.stderr
    assert said in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_a_plan_of_other_types_is_no_plan(tmp_path: Path) -> None:
    text = plan_to_text(make_plan(n_cases=1))
    assert plan_from_text(text, tmp_path).cases
    with pytest.raises(TraceError, match="the plan in it cannot be read"):
        plan_from_text(text.replace('"groups":1', '"groups":1.5'), tmp_path)


def test_a_bomb_of_aliases_is_refused_before_it_is_written_out(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join([*lines, "benchmarks: *a29"]))
    with pytest.raises(ConfigError, match="aliases .* stand for more than 33,554,432 characters"):
        load.load_config(path)


@pytest.mark.parametrize("block", [{"world_size": 10**12, "uneven": "linear"}, {"k" * 5000: 1}])
def test_absurd_values_are_refused_in_a_short_line(block: dict[str, object]) -> None:
    raw = {"benchmarks": [{"kind": "collective", "collective": "all_gather", **block}]}
    with pytest.raises(ConfigError) as caught:
        load.check_config(raw, "c.json")
    assert len(str(caught.value)) < 800


JOBS = ("validate", "run", "suite", "profile", "soak", "hunt")
"""Commands that meet in MPI, which only words refused before they start can be tried on here."""
LINES = f"""
plan @sweep.json
plan -c @sweep.json
show @run
report @run -o @new.html
report @run -f pdf -o @new.pdf
report @run -f md -o @new.md
report -s @runs -o @new.html
plot @run -o @new --only nothing
compare @run @run --plot @new.png
check @run --limits @limits.yaml
check @run --baseline @run
check --learn @run @run -o @limits2.yaml
advise @run
advise @run --to nccl -o @new.csv
advise @run --traffic @traffic.json --prove @prove.json
reduce @empty
history @runs -o @new.html --index @new.parquet
anonymize @run -o @copy --mapping @names
record -o @rec -- true
export @run --to csv -o @new.csv
import {ROOT}/tests/data/foreign/all_reduce_8.txt -o @new.h5
import @traffic.json -o @new.json
lint @traffic.json
from-command "mpirun -np 2 osu_bcast" -o @new.yaml
gen-config --from @sweep.json -o @new.yaml
gen-config --from @sweep.json --for-prediction 8 -o @new.yaml
predict @run --world-size 8 --next @new.yaml --plot @new.png
predict @run --world-size 8 --sweep @sweep.json --traffic @traffic.json
gen-config here --ranks 2 -o @new.yaml
gen-data @new.bin --tokens 10 --vocab 7
validate -o @new
validate @sweep.json
validate -c @sweep.json
run @sweep.json -o @new
run -c @sweep.json
run --resume @run
suite @sweep.json -o @new --summary @summary.json
suite -c @sweep.json
suite --resume @run
profile @sweep.json -o @new
profile -c @sweep.json
soak @sweep.json --for 1h -o @new
soak -c @sweep.json --for 1h --resume @run
hunt --expected @sweep.json --minimum @kept --reference @kept -o @new
""".strip().splitlines()
"""Lines with a @ before each word that is a path."""
NO_WORDS = ("", "a\0b")
KEPT = ("run", "sweep.json", "kept", "folder")
BAD = (*NO_WORDS, ".", "folder", "kept/x", "x" * 300, "kept")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, a sweep, a file and a folder, which all commands are to keep."""
    home = tmp_path_factory.mktemp("home")
    write_synthetic_run(home / "run", make_plan(n_cases=2))
    reduce_folder(home / "run")
    (home / "sweep.json").write_text('{"name": "a", "benchmarks": [{"kind": "collective", '
                                     '"collective": "all_reduce", "size": [8]}]}')
    (home / "kept").write_text("kept")
    (home / "folder").mkdir()
    (home / "folder" / "kept").write_text("kept")
    return home


def contents(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes()
            for path in sorted(home.rglob("*")) if path.is_file()}


def with_bad_words() -> Iterator[tuple[str, list[str]]]:
    """Yield each line with each of its paths replaced by each bad one, and what stands there."""
    for line in LINES:
        words = shlex.split(line)
        for path in words:
            if path.startswith("@"):
                for bad in NO_WORDS if words[0] in JOBS else BAD:
                    yield bad, [bad if word is path else word.removeprefix("@") for word in words]


def test_the_lines_have_every_path() -> None:
    """Of the commands as they are declared."""
    for name, command in COMMANDS.items():
        lines = [shlex.split(line)[1:] for line in LINES if line.split()[0] == name]
        before = {before if before.startswith("-") else "" for words in lines
                  for before, word in zip(["", *words], words, strict=False)
                  if word.startswith("@")}
        for key, hint in typing.get_type_hints(command, include_extras=True).items():
            declared, *about = typing.get_args(hint) or (hint,)
            if "Path" in str(declared) and about:
                is_option = isinstance(about[0], typer.models.OptionInfo)
                flags = {f"--{key}", about[0].default, *(about[0].param_decls or ())}
                assert before & (flags if is_option else {""}), (name, key)


def test_a_path_that_is_none_costs_a_line_and_nothing_else(
    home: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(home)
    before, wrong = contents(home), []
    for bad, words in with_bad_words():
        with mock.patch.object(os, "execvpe", side_effect=SystemExit(0)):
            done = hpcbench(*words)
        after = contents(home)
        why = complaint(done.returncode, done.stderr, done.stdout)
        if bad in NO_WORDS and (done.returncode, done.stderr.count("\n")) != (2, 1):
            why = "not refused in a line"
        if any(after.get(name) != text for name, text in before.items()):
            why = "wrote over a file"
        if done.returncode == 2 and after != before:
            why = "left files"
        if why:
            wrong.append((why, words, done.stderr))
        for path in home.iterdir():
            if path.name not in KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not wrong, "\n".join(map(str, wrong))


FOREIGN = ROOT / "tests" / "data" / "foreign"


def refused_and_read(*words: object, named: Path | None = None) -> None:
    """The command names limit and remedy and ends with 2, and with the limits raised does it."""
    done = hpcbench(*map(str, words))
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert f"{limits.VARIABLE}=2 " in done.stderr and str(named or words[1]) in done.stderr
    done = hpcbench(*map(str, words), **{limits.VARIABLE: "1e6"})
    assert done.returncode == 0, done.stderr


def test_a_packed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SMALL_BYTES", 1000)
    path = tmp_path / "table.txt.gz"
    path.write_bytes(gzip.compress((FOREIGN / "all_reduce_8.txt").read_bytes() + b"\n" * 10**6))
    assert path.stat().st_size * limits.PACKED < 10**6
    refused_and_read("lint", path)


def test_short_lines_of_a_packed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank lines of 64 MiB take a reader 20 seconds."""
    path = tmp_path / "blank.txt.gz"
    path.write_bytes(gzip.compress(b"# nThread 1\n" + b"\n" * 200_000))
    taken = []
    with pytest.raises(FileError, match=limits.VARIABLE):
        monkeypatch.setattr(limits, "SMALL_BYTES", 2**20)
        taken.extend(line.number for line in source.ForeignFile(path).lines())
        pytest.fail(f"{len(taken)} lines were read")


def test_packed_files_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of a rank is no profile; anonymize leaves such a file out, and names it."""
    monkeypatch.setattr(limits, "SMALL_BYTES", 1000)
    path = tmp_path / "log.json.gz"
    path.write_bytes(gzip.compress(b'{"a": "' + b"a" * 10**6 + b'"}'))
    with pytest.raises(TraceError, match=limits.VARIABLE):
        read_rank_file(path)
    with pytest.raises(ValueError, match=limits.VARIABLE):
        copy_text(path, tmp_path / "copy.json.gz", Pseudonyms({}, {}))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(("place", "limit"), [(limits, "PACKED"), (container, "MOST_TEXT")])
def test_what_hdf5_unpacks(monkeypatch: pytest.MonkeyPatch, place: object, limit: str) -> None:
    """Reduction leaves such a trace out, as any that cannot be read."""
    monkeypatch.setattr(limits, "SMALL_BYTES", 500)
    monkeypatch.setattr(place, limit, 1)
    refused_and_read("show", RUNS["collective"] / "results.h5")
    with pytest.raises(UnreadableTrace, match=limits.VARIABLE):
        open_trace(RUNS["primitive"] / "traces" / "rank00000.h5")


@pytest.mark.parametrize(("place", "limit", "most", "name"), [
    (source, "MOST_JSON_BYTES", 1, "flight_rank0.json"),
    (calls, "MOST_CALLS", 0.5, "kineto_rank0.json"),
    (calls, "MOST_CALLS", 0.5, "execution_rank0.json")])
def test_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object, limit: str, most: float,
    name: str,
) -> None:
    monkeypatch.setattr(place, limit, most)
    refused_and_read("import", FOREIGN / name, "-o", tmp_path / "traffic.json")


def test_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"# OSU MPI Latency Test v7.3\n" + b"x" * (source.MOST_LINE_BYTES + 1))
    done = hpcbench("lint", str(path))
    assert done.returncode == 2 and "1 MiB" in done.stderr and str(path) in done.stderr


def test_traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps({"benchmarks": [
        {"kind": "replay", "traffic": str(FOREIGN / "traffic.json")}]}))
    monkeypatch.setattr(traffic, "MOST_BYTES", 100)
    refused_and_read("plan", sweep, named=FOREIGN / "traffic.json")


@pytest.mark.parametrize("text", ["", "0.5", "-1", "nan", "inf", "many"])
def test_a_factor_that_is_none(text: str) -> None:
    done = hpcbench("show", str(RUNS["collective"]), **{limits.VARIABLE: text})
    assert done.returncode == 2 and limits.VARIABLE in done.stderr, done.stderr


@pytest.mark.parametrize("of_group", [
    {"size": -1}, {"size": 10**12}, {"ranks": (0, -1)}, {"ranks": (0, 10**12)}, {"ranks": (1, 1)}])
def test_a_group_that_no_job_has(of_group: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="group"):
        calls.KnownGroup(**of_group)


OF_CALLS = {"In msg nelems", "Out msg nelems", "Src Rank", "Dst Rank", "dur", "rank",
            "world_size", "n_ranks", "coll_sn", "coll_msg_size_bytes", "p2p_peer",
            "coll_exec_time_us", "p2p_exec_time_us", "p2p_msg_size_bytes",
            "duration_ms", "in_msg_nelems", "out_msg_nelems", "record_id"}
"""Numbers that every call has."""


@pytest.mark.parametrize("name", [
    "kineto_rank0.json", "execution_rank0.json", "flight_rank0.json", "inspector.jsonl"])
@pytest.mark.parametrize("value", [-1, pytest.param(10**400, id="400 digits"), 1e300])
def test_a_number_that_no_record_has(tmp_path: Path, name: str, value: float) -> None:
    """It is refused with the file, or its call is left out, counted; what is written is sound."""
    text = (FOREIGN / name).read_text()
    parts = text.splitlines() if name.endswith("l") else [text]
    for at, part in enumerate(parts):
        for number, (holder, key) in enumerate(places(json.loads(part))):
            tree = json.loads(part)
            holder, key = [*places(tree)][number]
            if isinstance(holder[key], bool) or not isinstance(holder[key], (int, float)):
                continue
            holder[key] = value
            path, out = tmp_path / name, tmp_path / f"{number}.json"
            path.write_text("\n".join([*parts[:at], json.dumps(tree), *parts[at + 1:]]))
            try:
                notes = "\n".join(import_traffic([path], out)[1])
            except FileError as error:
                assert str(path) in str(error) or path.name in str(error)
            else:
                read_traffic(out)
                what = key if key != "value" else holder["name"]
                unread = what == "dur" and holder["cat"] != "kernel"
                assert what not in OF_CALLS or unread or "left out" in notes, (key, notes)
            out.unlink(missing_ok=True)
