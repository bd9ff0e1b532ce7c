"""Whatever is fed to the command line: one clear complaint, an exit code, an end, little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from bad_input_process import LONGEST_LINE, complaint, hpcbench
from hpcbench.config import load
from hpcbench.config.load import find_config
from hpcbench.errors import ConfigError, FileError, TraceError
from hpcbench.trace.columns import read_column
from hpcbench.trace.journal import Frame, Kind, journal_path, pack_frame, read_journal, scan
from hpcbench.trace.source import plan_from_text, plan_to_text
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
