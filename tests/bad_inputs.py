"""Input that nobody should give: mutated sweep files, command lines and files of a run.

Everything is drawn from a ``random.Random``, so that a seed and a number name an input for ever.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import shutil
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import yaml

from hpcbench.reduce.results import SCHEMA_VERSION as RESULTS_VERSION
from hpcbench.reduce.results_file import FORMAT as RESULTS
from hpcbench.trace.container import SEAL_BYTES
from hpcbench.trace.journal import Frame, Kind, pack_frame, scan
from hpcbench.trace.sealed import FORMAT as TRACE
from launcher import ROOT
from synthetic import make_plan, write_synthetic_run

Chance = random.Random
HDF5_VALUES: tuple[Any, ...] = (
    None, 5, "text", "{}", "[]", "null", b"\xff", [1.5] * 3, [[1, 2]], "[" * 3000)
SWEEPS = (ROOT / "config.json", ROOT / "tests/data/ddlb.json",
          ROOT / "tests/data/torchscale.yaml", ROOT / "tests/data/candle.json",
          *sorted((ROOT / "slurm").glob("*.json")), *sorted((ROOT / "jobs").glob("*.yaml")))
NASTY: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**12, 10**400, -10**30, 0.5, 1e300, -1e-300,
    "", " ", "1e300", "1e999", "NaN", "inf", "1TiB", "99999999999GiB", "\u00e9\u202e\x00",
    "a.b[0]", "x" * 20_000, "../" * 50, "all", "auto", "gloo", "nccl", "all_reduce",
    [], {}, [[]], [None], {"": 0}, {"a": {"a": {"a": 1}}},
    {"from": 0, "to": 10**12, "step": 1}, {"from": 1, "to": "16TiB", "factor": 2},
    {"from": "1KiB"}, list(range(100)), [8] * 99, ["gloo"] * 300,
    {f"K{n}": [1, 2, 3] for n in range(30)})
PIECES = (
    *b"{}[],:\"\\\n\t\x00-|", b"\xff\xfe", b"\xef\xbb\xbf", b"NaN", b"Infinity", b"1e400",
    b"9" * 5000, b"*a", b"&a ", b"<<: *a\n", b"!!python/object:os.system x", b"%YAML 9.9\n",
    b"---\n", b"- - - -", b"? ", b"\xed\xa0\x80", b'"a": 1, "a": 2', b"[" * 3000)


def sweep_file(chance: Chance, folder: Path) -> Path:
    """Write a bad (or by chance still good) sweep file and return its path."""
    source = chance.choice(SWEEPS)
    make = chance.choice((_changed_tree, _changed_tree, _changed_tree, _changed_text, _bomb))
    path = folder / f"sweep{chance.choice([source.suffix, '.json', '.yaml'])}"
    path.write_bytes(make(chance, source, path.suffix))
    return path


def _changed_tree(chance: Chance, source: Path, suffix: str) -> bytes:
    """Return a sweep in which some values, keys or items are other ones."""
    tree = yaml.safe_load(source.read_text())
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice([*places(tree)])
        action = chance.randrange(5)
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, dict):
            holder[_near(chance, str(key))] = holder[key]
        elif action == 2 and isinstance(holder, list):
            holder.append(holder[key])
        else:
            holder[key] = copy.deepcopy(chance.choice(NASTY))  # the next draw may change it
        if not tree:
            break
    if suffix == ".json":
        return json.dumps(tree, ensure_ascii=chance.random() < 0.5).encode("utf-8", "replace")
    return yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "replace")


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (mapping or list, key or position) of everything in a tree."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(pairs):
        yield tree, key
        if isinstance(value, (dict, list)) and value:
            yield from places(value)


def _changed_text(chance: Chance, source: Path, suffix: str) -> bytes:
    return changed_bytes(chance, source.read_bytes())


def changed_bytes(chance: Chance, data: bytes) -> bytes:
    """Return bytes with flips, cuts, copies and pieces that mean something to parsers."""
    for _ in range(chance.randint(1, 4)):
        at, to = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        data = (data[:at], data[:at] + data[to:], data[:at] + _piece(chance) + data[at:],
                data[:at] + bytes([chance.randrange(256)]) + data[at + 1:],
                data[:to] + data[at:to] + data[to:])[chance.randrange(5)]
    return data


def _piece(chance: Chance) -> bytes:
    piece = chance.choice(PIECES)
    return piece if isinstance(piece, bytes) else bytes([piece])


def _bomb(chance: Chance, source: Path, suffix: str) -> bytes:
    """Return little text that means much: aliases of aliases, depth, a cycle."""
    depth = chance.choice((20, 500, 100_000))
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return chance.choice((
        "\n".join([*lines, "benchmarks: *a11"]), "\n".join([*lines, "name: x"]),
        "benchmarks: &a [*a]", "a: &a {b: *a}\nbenchmarks: []",
        "[" * depth, '{"a":' * depth, "- " * depth, "a: " + "[" * depth + "]" * depth,
        '{"benchmarks": ' + "[" * depth + "]" * depth + "}", "? " * depth, "{" * depth,
        "benchmarks: [" + "{kind: collective, collective: all_reduce}, " * 500 + "]",
        '{"benchmarks": [' + ", ".join(['{"kind": "collective"}'] * 1000) + "]}",
        "&a " * depth, "x" * 100_000, "\n" * 30_000, "#" * 5_000_000,
        "name: !!binary " + "A" * 9999, "name: 0x" + "f" * 5000, "1" * 20_000,
        "benchmarks: !!timestamp 2001-99-99", "name: &a a\nb: *c",
    )).encode()


def _near(chance: Chance, word: str) -> str:
    """Return a word that differs in one letter."""
    at = chance.randrange(len(word) + 1)
    return chance.choice((word[:at] + word[at + 1:], word[:at] + "x" + word[at:], word.upper()))


FOREIGN = ROOT / "tests" / "data" / "foreign"
RECORDS = tuple(sorted(path for path in FOREIGN.iterdir() if path.suffix in (".json", ".jsonl")))
NUMBERS: tuple[Any, ...] = (
    -1, 0, 2, 10**9, 10**12, 2**63, 10**400, -10**18, 0.5, 1e300, float("nan"), float("inf"),
    float("-inf"), None, True, "7", "x" * 2000, "a\nb\u202e\x1b[2J", [], [-1], [10**12], {})


def record_file(chance: Chance, folder: Path) -> list[str]:
    """Return words that read another program's records, of which some values are other ones."""
    source = chance.choice(RECORDS)
    is_lines = source.suffix == ".jsonl"
    text = source.read_text()
    trees = [json.loads(part) for part in (text.splitlines() if is_lines else [text])]
    for _ in range(chance.randint(1, 2)):
        holder, key = chance.choice([*places(chance.choice(trees))])
        if chance.random() < 0.15:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(chance.choice(NUMBERS))
    path = folder / f"rank0{source.suffix}"
    path.write_text("\n".join(map(json.dumps, trees)))
    output = folder / chance.choice(("out.json", "out.h5"))
    output.unlink(missing_ok=True)
    words = [["import", str(path), "-o", str(output)], ["lint", str(path)]]
    if source.name == "traffic.json":
        words = [["plan", str(path)]]
    return chance.choice(words)


def packed_file(chance: Chance, folder: Path) -> list[str]:
    """Return words that read a small file of much text."""
    head, item, tail = chance.choice((
        (b'{"traceEvents": [', b'{"ph": "X", "name": "a"},', b'{}]}'),
        (b'{"x": "', b"y" * 100, b'", "traceEvents": []}'),
        (b'{"traceEvents": [], "x": [', b"1,", b"1]}"), (b'{"traceEvents": [', b"1,", b"1]}"),
        (b'{"version": "2.4", "entries": [', b"{},", b"{}]}"), (b"", b"[", b""),
        (b"# OSU MPI Allreduce Latency Test v7.3\n", b"1 2\n", b""), (b"# nccl\n", b"\n", b""),
        (b'{"schema": "1.1.1", "nodes": [', b"{},", b"{}]}"), (b'{"header": 1}\n', b"{}\n", b"")))
    path = folder / "rank0.json.gz"
    mib = chance.choice((1, 20, 150))
    with gzip.open(path, "wb", 1) as stream:
        stream.write(head)
        for _ in range(mib):
            stream.write(item * (2**20 // len(item)))
        stream.write(tail)
    output = folder / chance.choice(("out.json", "out.h5"))
    output.unlink(missing_ok=True)
    return chance.choice((["import", str(path), "-o", str(output)], ["lint", str(path)]))


COMMANDS = ("plan", "show", "plot", "reduce", "run", "validate", "list", "gen-config",
            "gen-data", "schema", "compare", "")
FLAGS = (
    "-c", "--config", "--world-size", "--probe", "--dry-run", "--benchmark", "--warmup",
    "--iters", "--mode", "--passes", "--launches", "--only", "--model", "--strategy", "--set",
    "--require", "--inline", "--resume", "--force", "-o", "--output-dir", "--format",
    "--allow-mixed", "--json", "--timeout", "--tokens", "--vocab", "--seed", "--no-probe",
    "--hardware", "--from",
    "--help", "--version", "--", "-")
VALUES = (
    "", "0", "-1", "1", "4", "1e300", "NaN", "9" * 400, "x" * 5000, "gloo", "training",
    "pipelined", "auto", "tp_*", "[", "measure.iterations=50", "measure.iterations=", "=1",
    "a.b.c=1", "name=[[", "benchmarks.0.size=[8]", "benchmarks.9.size=8", "benchmarks.x=1",
    "measure=1", "name.a=1", "measure.iterations=" + "[" * 3000, "benchmarks=" + "9" * 5000,
    "benchmarks.0.world_size=10000000000", "launch.port=-1", "gpt2", "/dev/null",
    "/proc/self/mem", "/nonexistent/x", ".", "\udcff", "png", "cpu",
    "/nonexistent/x.yaml")


def command_line(chance: Chance, folder: Path) -> list[str]:
    """Return words that do not start a run: what would has an end that cannot be parsed."""
    command = chance.choice(COMMANDS)
    words = [_near(chance, command) if command and chance.random() < 0.1 else command]
    for _ in range(chance.randint(0, 4)):
        word = chance.choice((*FLAGS, *VALUES))
        words.append(_near(chance, word) if word and chance.random() < 0.2 else word)
    starts = ("run", "validate", "list", "gen-data", "--probe", "--dry-run")
    if any(word in starts for word in words):
        words += ["--no-such-flag"] * 2  # one may become the value of the option before it
    return [word for word in words if word or chance.random() < 0.9]


class RunFiles:
    """A small finished run, sealed and not, and its results; each draw spoils a copy."""

    def __init__(self, folder: Path) -> None:
        """Make them in ``folder``."""
        from hpcbench.reduce.reduce import reduce_folder

        self._folder = folder
        write_synthetic_run(folder / "sealed", make_plan(n_cases=2))
        write_synthetic_run(folder / "journals", make_plan(n_cases=2), sealed=False)
        reduce_folder(folder / "sealed")

    def results(self, chance: Chance, folder: Path) -> list[str]:
        """Return words that read a spoilt results file."""
        path = folder / "results.h5"
        shutil.copy(self._folder / "sealed" / "results.h5", path)
        _corrupt(chance, path, RESULTS)
        return ["show", str(path)]

    def forged(self, chance: Chance, folder: Path) -> list[str]:
        """Return words that read results with a right check sum and numbers that no run has."""
        path = folder / "results.h5"
        shutil.copy(self._folder / "sealed" / "results.h5", path)
        with h5py.File(path, "a") as file:
            names: list[str] = []
            file.visit(names.append)
            names = [name for name in names if isinstance(file[name], h5py.Dataset)]
            for name in chance.sample(names, chance.randint(1, 2)):
                _forge(chance, file, name)
        resealed(path, RESULTS, RESULTS_VERSION)
        (folder / "out").unlink(missing_ok=True)
        return chance.choice((
            ["show", str(path)], ["advise", str(path)], ["show", "--json", str(path)],
            ["check", str(path), "--baseline", str(self._folder / "sealed")],
            ["compare", str(path), str(self._folder / "sealed")],
            ["export", str(path), "--to", "nccl-tests", "-o", str(folder / "out")]))

    def run(self, chance: Chance, folder: Path) -> list[str]:
        """Return words that reduce a run of which one file is spoilt."""
        copy = folder / "run"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._folder / chance.choice(("sealed", "journals")), copy)
        path = chance.choice([path for path in sorted(copy.rglob("*")) if path.is_file()
                              and path.name != "results.h5"])
        if path.suffix == ".journal" and chance.random() < 0.6:
            path.write_bytes(mangled_journal(chance, path.read_bytes()))
        else:
            _corrupt(chance, path, TRACE)
        return ["reduce", str(copy)]


def _corrupt(chance: Chance, path: Path, file_format: str) -> None:
    data = path.read_bytes()
    if path.suffix == ".h5" and chance.random() < 0.5:
        if chance.random() < 0.2:  # HDF5 of somebody else
            path.unlink()
        _change_content(chance, path)
        resealed(path, file_format, chance.choice((RESULTS_VERSION, RESULTS_VERSION, 1, 0, 99)))
    else:
        path.write_bytes(changed_bytes(chance, data))


def _forge(chance: Chance, file: h5py.File, name: str) -> None:
    """Change a value of a column or of a line of JSON, or a column's length."""
    values = file[name][()]
    if values.dtype.kind == "S" and values.shape == (1,):
        lines = values[0].decode().split("\n")
        at = chance.randrange(len(lines))
        with suppress(ValueError, IndexError, TypeError):
            tree = json.loads(lines[at])
            holder, key = chance.choice([*places(tree)])
            holder[key] = copy.deepcopy(chance.choice(NUMBERS))
            lines[at] = json.dumps(tree)
        values = ["\n".join(lines).encode()]
    elif len(values) and chance.random() < 0.7:
        number = chance.choice((-2**63, -1, 0, 10**12, 2**63 - 1, float("nan"), float("inf")))
        with suppress(ValueError, OverflowError):
            values[chance.randrange(len(values))] = number
    else:
        values = values[:chance.randrange(len(values) + 1)]
    attributes = dict(file[name].attrs)
    del file[name]
    file.create_dataset(name, data=values).attrs.update(attributes)


def _change_content(chance: Chance, path: Path) -> None:
    """Drop, rename, retype or enlarge what an HDF5 file holds."""
    with h5py.File(path, "a") as file:
        names: list[str] = []
        file.visit(names.append)
        for _ in range(chance.randint(1, 2)):
            name = chance.choice(names or ["plan"])
            if name in file:
                del file[name]
            value = chance.choice(HDF5_VALUES)
            if value is not None:
                with suppress(OSError, ValueError):  # below something that is no group now
                    file[name] = value
            elif chance.random() < 0.3:  # says it is a terabyte, holds nothing
                file.create_dataset(name, (2**37,), dtype="i8", chunks=(1024,))
        if chance.random() < 0.3 and list(file.attrs):
            file.attrs[chance.choice(list(file.attrs))] = chance.choice((0, -1, 2**40, "x", 1.5))


def resealed(path: Path, file_format: str, version: int) -> None:
    """Make a sealed file of any HDF5: where its seal stands, else by a user block."""
    image = path.read_bytes()
    at = image.find(f"format {file_format}\n".encode())
    before, after = (image[:at], image[at + SEAL_BYTES:]) if at >= 0 else (b"", image)
    payload = before + after
    text = (f"format {file_format}\nschema_version {version}\n"
            f"payload_bytes {len(payload)}\n").encode()
    crc = zlib.crc32(payload, zlib.crc32(text))
    seal = (text + f"crc32 {crc:08x}\n".encode()).ljust(SEAL_BYTES, b"\n")
    path.write_bytes(before + seal + after)


def mangled_journal(chance: Chance, data: bytes) -> bytes:
    """Return a journal with frames whose checksums are right and whose content is not."""
    frames = [frame for frame in scan(data) if isinstance(frame, Frame)]
    pieces = [data[frame.offset:frame.end] for frame in frames]
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(pieces))
        pieces[at] = _other_piece(chance, pieces[at], frames[at], pieces)
    return b"".join(pieces)


def _other_piece(chance: Chance, piece: bytes, frame: Frame, pieces: list[bytes]) -> bytes:
    return (b"", piece * 2, _other_meta(chance, frame), _giant(chance, piece),
            changed_bytes(chance, piece), chance.choice(pieces))[chance.randrange(6)]


def _other_meta(chance: Chance, frame: Frame) -> bytes:
    meta = frame.json()
    if isinstance(meta, dict) and meta and frame.kind != Kind.PLAN:
        holder, key = chance.choice([*places(meta)])
        if chance.random() < 0.3:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(chance.choice(NASTY))
    kind = chance.choice((*(kind for kind in Kind if kind != Kind.PLAN), frame.kind, frame.kind))
    return pack_frame(Kind(kind), meta)


def _giant(chance: Chance, piece: bytes) -> bytes:
    """Return a frame whose head, with a right checksum, promises up to 2**32 bytes or rows."""
    head = bytearray(piece[:24])
    if len(head) < 24:
        return piece
    place = chance.choice((12, 16))
    head[place:place + 4] = chance.choice((2**32 - 1, 2**31, 10**6)).to_bytes(4, "little")
    return bytes(head) + zlib.crc32(bytes(head)).to_bytes(4, "little") + piece[28:]

