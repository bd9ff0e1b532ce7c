"""What the pages say is true: checks, faults, keys, tables, commands, files, each with its test."""

from __future__ import annotations

import ast
import csv
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.config.axes import FAULTS
from hpcbench.config.load import PACKAGED, check_config, json_schema, load_config
from hpcbench.config.schema import keys_of
from hpcbench.errors import how_to_install
from hpcbench.interop.compat.from_command import OPERATIONS
from hpcbench.interop.compat.osu import OPTIONS
from hpcbench.interop.dialects.candle import CandleFile
from hpcbench.interop.dialects.ddlb import DdlbFile
from hpcbench.interop.dialects.torchscale import TorchScaleFile
from hpcbench.interop.dialects.traffic import TrafficFile
from hpcbench.kinds.primitive.plan.implementations import load_registry
from hpcbench.kinds.primitive.plan.spec import LAYERS
from hpcbench.kinds.primitive.present import cells, reasons
from hpcbench.kinds.training.plan.any_model import RESNETS
from hpcbench.kinds.training.plan.models import DEFINITIONS
from hpcbench.kinds.training.plan.spec import SCHEDULE_NAMES, StrategySpec, strategies
from hpcbench.measurement.runner import Runner
from hpcbench.operations.models import MODELS
from hpcbench.plan.case import STATUSES, Planner
from hpcbench.plan.expand import make_plan
from hpcbench.plan.workload import Workload
from hpcbench.reduce.kind_facts import Deriver
from hpcbench.registry import DialectSpec, offered
from hpcbench.units import parse_bytes
from hpcbench.views.presenter import Presenter
from hpcbench.views.table import Show, WithInterval, cell_text, like_median, time_texts

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
MADE = TEXT.partition("## Not made here")[0]
TESTS = Path(__file__).with_name("fault_tests.yaml")


@cache
def made() -> dict[str, list[str]]:
    """Return the tests of each fault, as paths and names below tests/."""
    found: dict[str, list[str]] = yaml.safe_load(TESTS.read_text(encoding="utf-8"))
    return found


def rows() -> dict[str, list[str]]:
    """Return the cells of each row of the page by its fault, without kinds in brackets."""
    found = [line[2:-2].split(" | ") for line in MADE.splitlines()
             if line.startswith("| ") and not line.startswith("| fault")]
    return {re.sub(r" \(`.*", "", cells[0]): cells for cells in found}


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_each_row_has_its_cells_and_tests() -> None:
    assert list(rows()) == list(made())
    assert all(len(cells) > 1 and all(map(str.strip, cells)) for cells in rows().values())


def test_every_test_that_is_named_exists() -> None:
    for fault, tests in made().items():
        assert tests, fault
        for test in tests:
            path, name = test.split("::")
            assert name in functions_of(ROOT / "tests" / path), (fault, name)


def test_every_kind_status_and_code_of_a_fault_is_there() -> None:
    first_cells = "".join(cells[0] for cells in rows().values())
    kinds = set(re.findall(r"`(\w+)`", first_cells))
    assert kinds == set(FAULTS)
    assert {status for status in STATUSES if f"`{status}`" in TEXT} == set(STATUSES)
    named = set(re.findall(r"HB\d{3}", TEXT))
    costly = {code for code, scopes in checks() if scopes != {"warning"}}
    assert costly <= named <= {code for code, _ in checks()}, costly - named


ROW = re.compile(r"\| (HB\d{3}) \| (.+) \| ([a-z, ]+) \|")
SCOPES = {"run", "rank", "case", "warning"}


def checks() -> list[tuple[str, set[str]]]:
    """Return the code and the scopes of each row of the table."""
    text = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    found = [ROW.fullmatch(line) for line in text.splitlines() if line.startswith("| HB")]
    assert all(found)
    return [(row[1], set(row[3].split(", "))) for row in found if row]


def named(folder: str, pattern: str, names: str) -> set[str]:
    """Return all that a pattern finds in the files of a folder."""
    return {code.upper() for file in (ROOT / folder).rglob(names)
            for code in re.findall(pattern, file.read_text(encoding="utf-8"))}


def test_the_table_has_every_code_of_the_source_once() -> None:
    codes = [code for code, _ in checks()]
    assert codes == sorted(set(codes))
    assert set(codes) == named("hpcbench", r"\"(HB\d{3})\"", "*.py")
    assert all(scopes <= SCOPES for _, scopes in checks())


def test_every_code_has_a_test() -> None:
    tested = named("tests/unit", r"(?:def test_|\")(hb\d{3}|HB\d{3})[_\"]", "test_checks_*.py")
    tested |= named("tests/unit", r"\"(HB160)\"", "test_imported.py")
    assert tested == {code for code, _ in checks()}


DOC = (ROOT / "docs/config.md").read_text()


def test_the_packaged_file_is_the_shipped_one() -> None:
    assert PACKAGED.read_bytes() == (ROOT / "config.json").read_bytes()


def test_the_shipped_file_loads_and_asks_for_every_kind_of_backend() -> None:
    backends = {name for block in load_config(PACKAGED).benchmarks for name in block.backend}
    assert backends == {"gloo", "nccl", "ucc", "mpi"}


def test_the_schema_in_docs_is_the_generated_one() -> None:
    written = json.loads((ROOT / "docs/config.schema.json").read_text())
    assert written == json.loads(json_schema())


def test_every_whole_example_loads() -> None:
    examples = re.findall(r"```json\n(.*?)```", DOC, re.DOTALL)
    assert len(examples) == 2
    for text in examples:
        check_config(json.loads(text), "docs/config.md")


FIXES = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
COLUMNS = ["symptom", "cause: check", "remedy"]
AREAS = ("Launchers", "Slurm", "Kubernetes and containers", "Network", "GPUs, NCCL and UCC",
         "Memory", "Cores, clocks and odd times", "Disks")
PROGRAMS = {"mpirun", "srun", "taskset"}
DATA = (ROOT / "tests/data/troubleshooting.txt").read_text(encoding="utf-8")
BASES = dict(line.split("\t") for line in DATA.splitlines() if not line.startswith("#"))
"""Symptom -> what the row rests on: a test, a command, or an official page."""


def lines() -> list[list[str]]:
    found = [re.split(r" (?<!\\)\| ", line[2:-2]) for line in FIXES.splitlines()
             if line.startswith("| ")]
    return [cells for cells in found if cells != COLUMNS]


def test_every_area_has_rows_and_every_row_all_cells() -> None:
    assert re.findall(r"^## (.*)$", FIXES, re.MULTILINE) == list(AREAS)
    assert {cells[0] for cells in lines()} == set(BASES) and len(BASES) >= 25
    for row in lines():
        assert len(row) == len(COLUMNS) and all(cell.strip() for cell in row), row


@pytest.mark.parametrize("basis", BASES.values())
def test_every_row_is_reproduced_or_has_a_source(basis: str) -> None:
    if basis.startswith("source: "):
        assert re.fullmatch(r'source: "[^"]+", .+ (documentation|source code)', basis)
        return
    assert basis.startswith("reproduced: `")
    named = re.findall(r"`([^`]+)`", basis)[0]
    if "::" in named:
        path, name = named.split("::")
        assert name in functions_of(ROOT / "tests" / path)
    else:
        assert named.split()[0].rpartition("/")[2] in PROGRAMS


def test_a_symptom_is_listed_once() -> None:
    symptoms = [cells[0] for cells in lines()]
    assert len(symptoms) == len(set(symptoms))


TRAINING = (ROOT / "docs/training.md").read_text()


def training_rows(title: str) -> dict[str, list[str]]:
    """Return the cells of a section's table by each name in the first of them."""
    section = TRAINING.split(f"\n## {title}\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in section.splitlines() if line.startswith("| `")]
    return {name: found for found in cells for name in re.findall(r"`([^`]+)`", found[0])}


def test_every_model_is_named() -> None:
    section = TRAINING.split("\n## Models\n")[1].split("\n## ")[0]
    assert not [name for name in (*MODELS, *RESNETS) if f"`{name}`" not in section]


@pytest.mark.parametrize("spec", strategies(), ids=lambda spec: spec.name)
def test_every_strategy_is_listed_with_its_options(spec: StrategySpec) -> None:
    table = training_rows("Strategies")
    assert set(table) == {each.name for each in strategies()}
    told = table[spec.name][2]
    inherited = {"hybrid": ("tensor", "pipeline", "context", "moe"),
                 "qlora": ("lora",)}.get(spec.name, ())
    own = {option: values for option, values in spec.options.items()
           if not any(option in other.options for other in strategies() if other.name in inherited)}
    for option, values in own.items():
        assert f"`{option}`" in told
        if not values.allowed and spec.name not in ("zero1", "hsdp"):
            assert f"`{option}` ({values.default})" in told
    for name in SCHEDULE_NAMES if spec.name == "pipeline" else ():
        assert f"`{name}`" in told
    assert all(f"`{name}`" in table["data"][2] for name in ("none", "bf16", "fp16", "powersgd"))


def test_definitions_are_named_and_examples_plan() -> None:
    assert all(f"`{name}`" in TRAINING for name in DEFINITIONS)
    (example,) = re.findall(r"```json\n(.*?)```", TRAINING, re.DOTALL)
    plan = make_plan(check_config(json.loads(example), "docs/training.md"), 4)
    assert plan.cases
    assert not [case.skip for case in plan.cases if case.skip]


PRIMITIVES = (ROOT / "docs/primitives.md").read_text()
PLUGINS = (ROOT / "docs/plugins.md").read_text()
KIND = ROOT / "tests/data/kind_plugin"
REGISTRY = load_registry()
OUR_OWN = {"implementer", "name", "record", "to_json"}
"""What kinds do not answer: it follows from hooks or fields; or it is a class, no hook."""
OURS = [name for name in cells(REGISTRY) if name in REGISTRY.implementations]


def test_every_empty_cell_has_a_reason_of_its_own() -> None:
    assert all(reason and "nobody" not in reason for (name, _), reason in reasons(REGISTRY).items()
               if name in OURS)


def test_every_primitive_order_option_and_implementation_is_described() -> None:
    rows = [line.split(" | ") for line in PRIMITIVES.splitlines() if line.startswith("|")]
    for name, spec in REGISTRY.primitives.items():
        at = next(i for i, row in enumerate(rows) if row[0] == f"| `{name}`")
        own = [row[1] for row in rows[at:at + len(spec.orders)]]
        assert own == [f"`{order}`" for order in spec.orders]
        for option, values in spec.options.items():
            described(rows, option, [str(item) for item in values.allowed])
    for name in OURS:
        assert any(row[0].startswith(f"| `{name}`") for row in rows)
        for spec_of in REGISTRY.implementations[name]:
            for option, values in spec_of.options.items():
                described(rows, option, [str(item) for item in values.allowed])


def described(rows: list[list[str]], option: str, allowed: list[str]) -> None:
    found = [row for row in rows if row[0] == f"| `{option}`" and len(row) == 3]
    assert found and all(f"`{value}`" in found[0][2] for value in allowed), option


def test_layers_are_described() -> None:
    for layer in LAYERS:
        row = next(line for line in PRIMITIVES.splitlines() if line.startswith(f"| `{layer}` |"))
        takers = [name for name, spec in REGISTRY.primitives.items() if layer in spec.layers]
        assert re.findall(r"`(\w+)`", row.split(" | ")[-1]) == takers


def test_examples_load() -> None:
    texts = re.findall(r"```json\n(.*?)```", PRIMITIVES + PLUGINS, re.DOTALL)
    assert texts
    for text in texts:
        check_config(json.loads(text), "docs")


def test_the_page_on_plug_ins_has_every_file_of_a_kind() -> None:
    shown = set(re.findall(r"`(\w+\.(?:py|toml))`", PLUGINS))
    assert {path.name for path in KIND.rglob("*.*") if path.suffix != ".pyc"} == shown


SIDES = (Workload, Planner, Runner, Deriver, Presenter)
MOST_HOOKS = 26
"""Of a kind: it stays small."""


def hooks_of(side: type) -> set[str]:
    return {name for name, value in vars(side).items() if not name.startswith("_")
            and (callable(value) or isinstance(value, property))} - OUR_OWN


def test_a_kind_has_few_hooks() -> None:
    assert sum(len(hooks_of(side)) for side in SIDES) <= MOST_HOOKS


@pytest.mark.parametrize("side", SIDES)
def test_the_page_on_plug_ins_has_every_hook_of_a_kind(side: type) -> None:
    (row,) = re.findall(rf"^\| \[`{side.__name__}`\]\(\.\./(\S+)\) \|(.*)\|(.*)\|$",
                        PLUGINS, re.M)
    needed, others = (re.findall(r"`(\w+)`", cell) for cell in row[1:])
    assert sorted(needed + others) == sorted(hooks_of(side))
    assert set(needed) == getattr(side, "__abstractmethods__", frozenset())
    assert f"class {side.__name__}(" in (ROOT / row[0]).read_text(encoding="utf-8")
    assert all(getattr(side, name).__doc__ for name in hooks_of(side))


README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLE = README.partition("<!-- table -->")[2].partition("<!-- end of table -->")[0]
ROWS = [line for line in TABLE.splitlines() if " us" in line or " ms" in line]
BACKENDS = ("gloo", "mpi")


def row_cells() -> dict[tuple[str, str], list[str]]:
    """Return the cells of README's table by collective, which stands once, and size."""
    cells, name = {}, ""
    for line in ROWS:
        words = line.split()
        name = words.pop(0) if not words[0].isdigit() else name
        cells[name, "".join(words[:2])] = words[2:]
    return cells


@pytest.mark.parametrize(("name", "size"), row_cells())
def test_a_row_of_the_first_page_is_that_of_the_stored_run(name: str, size: str) -> None:
    with (ROOT / "plots/readme/summary.csv").open(encoding="utf-8", newline="") as file:
        found = {one["backend"]: one for one in csv.DictReader(file)
                 if (one["block"], one["collective"]) == ("collectives", name)
                 and one["size_bytes"] == str(parse_bytes(size))}
    expected = []
    first: tuple[float, ...] = ()
    for row in map(found.__getitem__, BACKENDS):
        low, median, high = (float(row[f"{end}_s"]) for end in ("ci_low", "median", "ci_high"))
        busbw = like_median(1e9 * float(row["busbw_gb_per_s"]), WithInterval(median, low, high))
        speedup = [cell_text(WithInterval(first[1] / median, first[0] / high, first[2] / low),
                             Show.NUMBER)] if first else []
        first = low, median, high
        expected += [*" ".join(time_texts(median, low, high)).split(), *speedup,
                     cell_text(busbw, Show.GB_PER_S)]
        assert (row["status"], row["quality"], row["n_wrong"]) == ("ok", "", "0")
    assert row_cells()[name, size] == expected


def test_the_figure_of_the_first_page_is_of_the_same_run() -> None:
    caption = (ROOT / "plots/readme/all_reduce.txt").read_text(encoding="utf-8")
    assert "plots/readme/all_reduce.png" in README and 0 < len(ROWS) <= 8
    assert caption.splitlines()[-1].startswith("default, run 20261124-040257-e4f1f6, ")


SENDS_ELSEWHERE = re.compile(
    r"""pip3? (?:install|download)(?: -\S+)* ["']?hpcbench(?![-\w])(?!\[[^\]]*\] @|["']? @)""")
FOLDERS = ("hpcbench", "docs", "jobs", "slurm", "plugins", "scripts", "benchmarks")
TEXTS = {".py", ".md", ".sh", ".sbatch", ".yaml", ".yml", ".json", ".toml", ".cfg", ".txt", ""}


def texts() -> Iterator[tuple[Path, str]]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in TEXTS and path.is_file()]
    for path in (*paths, ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        yield path, path.read_text("utf-8")


@pytest.mark.parametrize(("text", "wrong"), [
    ("pip install hpcbench", True), ("pip install 'hpcbench[run]'", True),
    ("pip install -U hpcbench==1", True), ("python -m pip install hpcbench[run]", True),
    ("pip install '.[run]'", False), ("pip install ./plugins/hpcbench-jax", False),
    ("pip install 'hpcbench[run] @ git+https://host/hpcbench'", False),
    ("pip install hpcbench-jax", False)])
def test_the_pattern_distinguishes_them(text: str, wrong: bool) -> None:
    assert bool(SENDS_ELSEWHERE.search(text)) == wrong


def test_nothing_sends_a_user_to_the_other_package() -> None:
    found = {path.relative_to(ROOT).as_posix(): match.group()
             for path, text in texts() if (match := SENDS_ELSEWHERE.search(text))}
    assert found == {}


def test_extras_are_only_named_where_the_command_is_right() -> None:
    """Without pip beside it, too: ``hpcbench[run]`` reads as a name to install."""
    spelled = re.compile(r"hpcbench\[\w[\w,]*\](?! @)")
    found = {path.relative_to(ROOT).as_posix() for path, text in texts() if spelled.search(text)}
    assert found == set()


def test_the_hint_names_the_checkout() -> None:
    assert how_to_install("run,mpich") == "pip install '.[run,mpich]' in a checkout of hpcbench"


COMING_FROM = (ROOT / "docs/coming-from.md").read_text(encoding="utf-8")


def commands() -> Iterator[tuple[str, ...]]:
    """Yield the words behind ``hpcbench`` of every command of ours on the page."""
    spans = [*re.findall(r"`([^`\n]+)`", COMING_FROM),
             *re.findall(r"^ {4}(\S.*)$", COMING_FROM, re.MULTILINE)]
    for span in dict.fromkeys(spans):
        found = re.fullmatch(
            r"(?:mpirun -np \d+ )?(?:python -m )?hpcbench ([a-z-]+(?: .*)?)", span)
        if found:
            yield tuple(shlex.split(found[1].replace("FILE", "candle.json")))


ALL = [pytest.param(words, id=" ".join(words)) for words in commands()]


def test_the_page_has_the_commands_that_users_of_others_expect() -> None:
    assert {words[0] for words in commands()} == {
        "run", "plan", "list", "show", "validate", "gen-config", "suite", "profile",
        "from-command"}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where the files lie that the page names."""
    for name in ("ddlb.json", "torchscale.yaml", "candle.json"):
        shutil.copy(ROOT / "tests/data" / name, tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", ALL)
def test_its_flags_are_those_of_the_command(words: tuple[str, ...], files: None) -> None:
    name, *rest = words
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    with command.make_context(name, rest):
        pass  # it fails where a flag is unknown or has no such value


@pytest.mark.parametrize("words", [one for one in ALL if one.values[0][0] == "run"])
def test_what_a_run_would_do_can_be_planned(words: tuple[str, ...], files: None) -> None:
    of_a_run = {"-o", "./results", "DIR", "--inline", "--verbose"}
    done = CliRunner().invoke(app, ["plan", *(word for word in words[1:] if word not in of_a_run)])
    assert done.exit_code == 0, done.output


def sections(root: type[BaseModel]) -> Iterator[str]:
    for key, field in zip(keys_of(root), root.model_fields.values(), strict=True):
        yield key
        inner: Any = field.annotation
        for one in (inner, *getattr(inner, "__args__", ())):
            if isinstance(one, type) and issubclass(one, BaseModel):
                yield from sections(one)


NOTED = {"input_shape", "output_shape", "learning_rate", "num_epochs", "warmup_steps",
         "checkpoint_interval", "gradient_sync_freq", "memory_profiling", "power_profiling",
         "communication_profiling", "output_detailed_logs", "optimization", "monitoring"}
SAME = {"heads", "model_type", "hardware", "model", "training", "benchmark", "parallelization"}
"""Sections, and keys that are another's spelling or have one value."""


def test_every_key_of_a_file_is_documented() -> None:
    assert {DdlbFile, TorchScaleFile, CandleFile, TrafficFile} == {
        one.load() for one in offered(DialectSpec).values()}
    told = set(re.findall(r"[a-z_]+", COMING_FROM))
    assert set(sections(TorchScaleFile)) <= told
    assert set(sections(CandleFile)) - NOTED - SAME <= told
    primitives = (ROOT / "docs/primitives.md").read_text(encoding="utf-8")
    assert set(sections(DdlbFile)) <= set(re.findall(r"[a-z_]+", primitives))


def test_each_tool_has_a_section() -> None:
    found = re.findall(r"^## (.*)$", COMING_FROM, re.MULTILINE)
    assert found[:5] == ["A command line", "nccl-tests", "OSU micro-benchmarks", "PARAM",
                         "ds_bench"] and len(found) == 9


def section(title: str) -> str:
    return COMING_FROM.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_tables_name_the_options_that_command_lines_are_translated_by() -> None:
    of_osu = {f"-{one.letter}" for one in OPTIONS if not one.lost} - {"-h", "-v"}
    assert set(re.findall(r"-[A-Za-z]\b", section("OSU micro-benchmarks"))) == of_osu
    of_ds_bench = {f"--{name.replace('_', '-')}" for name in OPERATIONS} - {"--reduce-scatter"}
    assert of_ds_bench <= set(re.findall(r"--[a-z0-9-]+", section("ds_bench")))


def test_the_page_shows_what_is_printed_of_a_command_line() -> None:
    text = section("A command line")
    (words,) = [words for words in commands() if words[0] == "from-command"]
    done = CliRunner().invoke(app, words)
    assert done.stdout == text.partition("```yaml\n")[2].partition("```")[0]
