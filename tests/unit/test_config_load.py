from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbench.config import load
from hpcbench.config.load import (
    check_config,
    find_config,
    load_config,
    parse_assignment,
)
from hpcbench.config.schema import Config, Hardware
from hpcbench.config.yaml_text import commented_yaml, from_yaml
from hpcbench.errors import ConfigError, FileError

BLOCK: dict[str, Any] = {"kind": "collective", "collective": "all_reduce"}
PRIMITIVE: dict[str, Any] = {"kind": "primitive", "primitive": "tp_mlp", "m": 8, "n": 8, "k": 8,
                             "implementations": {"torch": {}}}


def write(folder: Path, data: Any, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def complaint(raw: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check_config(raw, "c.json")
    return str(caught.value).split("\n")


def with_block(**options: Any) -> dict[str, Any]:
    return {"benchmarks": [BLOCK | options]}


def test_problems_of_a_long_list_are_counted() -> None:
    with pytest.raises(ConfigError) as raised:
        check_config(with_block(collective=["x" * 30] * 700), "a.json")
    *lines, last = str(raised.value).splitlines()
    assert len(lines) == 20 and "680 more" in last and len(str(raised.value)) < 6000


def test_a_minimal_file_gets_the_defaults() -> None:
    config = check_config({"benchmarks": [BLOCK]}, "c.json")
    assert config.measure.warmup == 5 and config.measure.iterations == "auto"
    assert config.measure.mode == "isolated" and config.benchmarks[0].mode is None
    assert config.launch.timeout_s == 60 and config.launch.port == (0, 0)
    assert config.benchmarks[0].backend == ("gloo",)
    assert config.benchmarks[0].world_size == ("all",)


@pytest.mark.parametrize(("device_type", "nodes", "visible", "build", "backend"), [
    (None, (), None, "2.8.0", "gloo"), (None, ("nvidia0", "nvidiactl"), None, "2.8.0", "nccl"),
    (None, ("nvidiactl",), None, "2.8.0", "gloo"), (None, ("kfd",), None, "2.8.0+rocm6", "nccl"),
    (None, ("nvidia0",), "", "2.8.0", "gloo"), (None, ("nvidia0",), "1", "2.8.0", "nccl"),
    (None, ("nvidia0",), None, "2.8.0+cpu", "gloo"), ("cuda", (), None, "2.8.0+cpu", "nccl"),
    ("cpu", ("nvidia0",), None, "2.8.0", "gloo")])
def test_the_machines_own_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device_type: Any, nodes: tuple[str, ...],
    visible: str | None, build: str, backend: str,
) -> None:
    monkeypatch.setattr(load, "version", lambda name: build)
    (tmp_path / "dev").mkdir()
    for name in nodes:
        (tmp_path / "dev" / name).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    hardware = Hardware(device_type=device_type)
    assert load.native_backend(hardware, environ, tmp_path) == backend


def test_blocks_without_a_backend_take_the_machines(tmp_path: Path) -> None:
    storage = {"kind": "hardware", "test": "storage"}
    blocks = [BLOCK, BLOCK | {"backend": "mpi"}, BLOCK | {"device": "cpu"}, PRIMITIVE, storage]
    file = write(tmp_path, {"benchmarks": blocks, "hardware": {"device_type": "cuda"}})
    config = load_config(file)
    assert [block.backend for block in config.benchmarks] == [
        ("nccl",), ("mpi",), ("gloo",), ("nccl",), ("gloo",)]
    again = check_config(json.loads(json.dumps(config.plain())), "c.json")
    assert again.benchmarks == config.benchmarks


def test_plain_values_are_json_and_load_to_the_same_configuration() -> None:
    raw = with_block(size=["8", {"from": 16, "to": "1KiB", "factor": 4}], env={"A": [1, "b"]},
                     validate=False, world_size=[1, "all"], dtype=["float", "half"])
    config = check_config(raw | {"launch": {"port": {"from": 5, "to": 9}}}, "c.json")
    again = check_config(json.loads(json.dumps(config.plain())), "c.json")
    assert again == config
    assert config.benchmarks[0].size == (8, 16, 64, 256, 1024)
    assert config.benchmarks[0].dtype == ("fp32", "fp16")
    assert config.benchmarks[0].env == {"A": ("1", "b")}
    assert config.launch.port == (5, 9)


@pytest.mark.parametrize(("raw", "where", "what"), [
    (with_block(dtypes="fp32"), "benchmarks[0].dtypes", 'unknown key; did you mean "dtype"?'),
    (with_block(dtype="float23"), "benchmarks[0].dtype", 'did you mean "float32"?'),
    (with_block(dtype=["fp32", "x9"]), "benchmarks[0].dtype[1]", '"x9" is not known; allow'),
    (with_block(backend="glo"), "benchmarks[0].backend", 'did you mean "gloo"?'),
    (with_block(collective="all_reduse"), "benchmarks[0].collective", '"all_reduce"'),
    (with_block(collective="allreduce2"), "benchmarks[0].collective", 'did you mean "all_reduce"?'),
    (with_block(iter=3), "benchmarks[0].iter", 'did you mean "iterations"?'),
    (with_block(op=[]), "benchmarks[0].op", "the list is empty"),
    (with_block(size=[]), "benchmarks[0].size", "the list is empty"),
    (with_block(size="12 parsecs"), "benchmarks[0].size", "is not a size"),
    (with_block(size="9" * 400), "benchmarks[0].size", "more than 16 TiB"),
    (with_block(size={"from": 1, "to": 9}), "benchmarks[0].size", 'one of "factor" and "step"'),
    (with_block(size={"from": 9, "to": 1, "step": 1}), "benchmarks[0].size", "is greater than"),
    (with_block(size={"from": 0, "to": 1, "factor": 2}), "benchmarks[0].size", "at least 1"),
    (with_block(size={"from": 1, "to": 8, "factor": 1}), "benchmarks[0].size", "from 2"),
    (with_block(size={"from": 0, "to": "1GiB", "step": 1}), "benchmarks[0].size", "1,073,741,825"),
    (with_block(size={"from": 0, "to": 1, "stop": 1}), "benchmarks[0].size", '"step"'),
    (with_block(world_size=0), "benchmarks[0].world_size",
     'write a number from 1 to 131072, or "all"'),
    (with_block(in_place="yes"), "benchmarks[0].in_place", "must be true or false"),
    (with_block(iterations=[5, 0]), "benchmarks[0].iterations[1]",
     "0 is not a number of iterations"),
    (with_block(iterations="many"), "benchmarks[0].iterations", '1 to 1000000, or "auto"'),
    (with_block(mode="isolate"), "benchmarks[0].mode", 'did you mean "isolated"?'),
    (with_block() | {"measure": {"precision": 1}}, "measure.precision", "less than 1"),
    (with_block() | {"measure": {"min_iterations": 9, "max_iterations": 8}}, "measure",
     "min_iterations 9 is more than max_iterations 8"),
    (with_block() | {"measure": {"order": "random"}}, "measure.order", "shuffled, planned"),
    (with_block(timeout_s=[1, 2]), "benchmarks[0].timeout_s", "must be a number"),
    (with_block(env={"RANK": 1}), "benchmarks[0].env", "belongs to the launcher"),
    (with_block(env={"HF_TOKEN": "x"}), "benchmarks[0].env", "looks like a secret"),
    (with_block(env={"NCCL_X": "http://me:pw@host"}), "benchmarks[0].env", "launch.pass_env"),
    (with_block(env={"A": True}), "benchmarks[0].env", "is not text"),
    (with_block(env={"A": []}), "benchmarks[0].env", "the list is empty"),
    (with_block(env={"a b": 1}), "benchmarks[0].env", "is not the name"),
    (with_block() | {"measure": {"warmup": 2.5}}, "measure.warmup", "must be a whole number"),
    (with_block() | {"measure": {"iterations": "5"}}, "measure.iterations",
     '"5" is not a number of iterations'),
    (with_block() | {"warmup": 3}, "warmup", "it belongs to measure or benchmarks"),
    (with_block() | {"launch": {"timeout_s": 0}}, "launch.timeout_s", "greater than 0"),
    (with_block() | {"launch": {"port": 70000}}, "launch.port", "is not a port"),
    (with_block() | {"launch": {"port": [5]}}, "launch.port", "is not a port"),
    (with_block() | {"launch": {"port": {"from": 9, "to": 5}}}, "launch.port", "is greater"),
    (with_block() | {"launch": 3}, "launch", "must be a mapping"),
    (with_block() | {"notes": "see http://me:pw@host"}, "notes", '"see http://***@host" holds a'),
    (with_block() | {"launch": {"address": "token=abcd"}}, "launch.address", '"token=***" holds a'),
    (with_block() | {"name": "../x"}, "name", "letters, digits"),
    (with_block() | {"hardware": {"peak_flops": {"fp31": 1}}}, "hardware.peak_flops.fp31", "fp32"),
    (with_block() | {"fault": [{"rank": 0, "kind": "kil"}]}, "fault[0].kind", '"kill"'),
    (with_block() | {"fault": {}}, "fault", "must be a list"),
    (with_block() | {"limits": [{}]}, "limits[0].metric", "the key is missing; it holds column"),
    (with_block() | {"limits": [{"metric": "n", "mini": 1}]}, "limits[0].mini", '"min"'),
    (with_block() | {"benchmarks": [PRIMITIVE | {"kind": "Primitive"}]}, "benchmarks[0].kind",
     'did you mean "primitive"?'),
    (with_block() | {"benchmarks": [PRIMITIVE | {"op": "sum"}]}, "benchmarks[0].op",
     "unknown key; it belongs to blocks of kind collective; allowed: kind, "),
    (with_block(m=4), "benchmarks[0].m", "it belongs to blocks of kind primitive; allowed: kind, "),
    ({"benchmarks": []}, "benchmarks", "the list is empty"),
    ({}, "benchmarks", "missing"),
])
def test_one_error_states_where_what_and_how(raw: Any, where: str, what: str) -> None:
    lines = complaint(raw)
    assert len(lines) == 1
    assert lines[0].startswith(f"c.json: {where}: ")
    assert what in lines[0]


def test_a_text_with_the_value_of_a_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "tok_Planted1")
    monkeypatch.setenv("MY_KEY", "sum")
    (line,) = complaint(with_block(op="sum") | {"title": "as tok_Planted1"})
    assert line.startswith('c.json: title: "as ***" holds a secret')


def test_all_errors_are_listed_together() -> None:
    raw = {"nam": "x", "measure": {"warmup": -1}, "benchmarks": [BLOCK | {
        "op": "mean", "size": [8, "3Q", {"from": 9, "to": 1, "step": 1}, -1]}, {}]}
    lines = complaint(raw)
    assert [line.split(": ")[1] for line in lines] == [
        "measure.warmup", "benchmarks[0].op", *(f"benchmarks[0].size[{at}]" for at in (1, 2, 3)),
        "benchmarks[1].kind", "benchmarks[1].collective", "nam"]


def test_names_that_only_a_plan_knows_are_refused_with_the_rest() -> None:
    """A user had to start three times to read of all that was wrong with one file."""
    training = {"kind": "training", "model": "gpt3", "strategies": {"ddp": {}}}
    lines = complaint({"measure": {"mod": "isolated"}, "benchmarks": [
        training | {"dtype": "fp99"}, training | {"kind": "memory"},
        PRIMITIVE | {"primitive": "tp_mpl", "implementations": {"torhc": {}}},
        {"kind": "hardware", "test": "gemm", "model": "gpt2"}, BLOCK | {"size": "3Q"}]})
    wrong = ("measure.mod", "fp99", "training-1: model: \"gpt3\"", "training-1: strategies.ddp",
             "memory-2: model: \"gpt3\"", "memory-2: strategies.ddp", "tp_mpl", "torhc",
             "needs tokens", "3Q")
    assert len(lines) == len(wrong)
    assert all(sum(word in line for line in lines) == 1 for word in wrong), lines


@pytest.mark.parametrize(("name", "meant"), [
    ("ddp", "data"), ("DDP", "data"), ("dp", "data"), ("dat", "data"), ("zero", "zero1"),
    ("zero3", "fsdp"), ("fsdp2", "fsdp"), ("fspd", "fsdp"), ("hybrid_shard", "hsdp"),
    ("tp", "tensor"), ("pp", "pipeline"), ("mp", "model"), ("3d", "hybrid")])
def test_a_strategy_by_the_name_that_others_give_it_leads_to_ours(name: str, meant: str) -> None:
    (line,) = complaint({"launch": 1, "benchmarks": [
        {"kind": "training", "model": "gpt2", "strategies": name}]})[1:]
    assert f'did you mean "{meant}"?' in line


def test_on_and_off_are_taken_as_yaml_reads_them(tmp_path: Path) -> None:
    block = "{kind: training, model: transformer-tiny, strategies: data, communication: %s}"
    for written, read in (("on", ("on",)), ("[on, off, only]", ("on", "off", "only")),
                          ("false", ("off",)), ('"on"', ("on",))):
        text = f"benchmarks: [{block % written}]"
        (found,) = load_config(write(tmp_path, text, "c.yaml")).benchmarks
        assert found.model_dump()["communication"] == read


@pytest.mark.parametrize("text", [
    "benchmarks: [{kind: collective, collective: all_reduce, env: {NAME: on}}]",
    "benchmarks: [{kind: training, model: gpt2, strategies: data, checkpointing: off}]",
    "name: yes\nbenchmarks: [{kind: collective, collective: all_reduce}]"])
def test_what_yaml_made_of_a_text_is_explained(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="YAML reads on and yes as true") as caught:
        load_config(write(tmp_path, text, "c.yaml"))
    assert "quotes" in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [
    ("989e12", 989e12), ("1e9", 1e9), ("1.5e3", 1.5e3), ("1e-3", 1e-3), ("-2E+2", -200.0),
    ("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("1_000", 1000), ("0x10", 16), ("0", 0), ("-7", -7),
    ("1:30", "1:30"), ("12:30:45", "12:30:45"), ("4:70", "4:70"), ("1:30.5", "1:30.5"),
    ("010", "010"), ("1e", "1e"), ("e3", "e3"), ("'1e3'", "1e3"), ("~", None), ("on", True)])
def test_numbers_of_yaml(text: str, value: object) -> None:
    assert from_yaml(f"a: {text}") == {"a": value}
    assert from_yaml(commented_yaml({"a": value}, (), {})) == {"a": value}
    assert type(from_yaml(text)) is type(value)


@pytest.mark.parametrize("size", ["1:30", "4:70", "1:30:00", "1:30.5"])
def test_base_60_is_no_size(tmp_path: Path, size: str) -> None:
    text = f"benchmarks: [{{kind: collective, collective: all_reduce, size: {size}}}]"
    with pytest.raises(ConfigError, match=f"{size}' is not a size"):
        load_config(write(tmp_path, text, "c.yaml"))


def test_keys_with_x_hold_anchors(tmp_path: Path) -> None:
    text = """
x-common: &common {kind: collective, backend: gloo, size: 1MiB}
benchmarks:
  - {<<: *common, collective: all_reduce}
  - {<<: *common, collective: broadcast, size: 2MiB}
"""
    blocks = load_config(write(tmp_path, text, "c.yaml")).benchmarks
    assert [block.model_dump()["size"] for block in blocks] == [(2**20,), (2**21,)]
    with pytest.raises(ConfigError, match="x-common"):
        load_config(write(tmp_path, {"x-common": 1, "benchmarks": [BLOCK]}))


def test_home_and_variables_of_paths_are_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    file = write(tmp_path, {
        "name": "a", "output": {"folder": "$SCRATCH/results"}, "benchmarks": [
            {"kind": "function", "file": "~/ops.py"}, {"kind": "function", "file": "own.py"},
            {"kind": "hardware", "test": "storage", "folder": "${SCRATCH}/io", "size": 8},
            {"kind": "training", "model": "gpt2", "strategies": "data",
             "data": ["synthetic", "~/corpus.bin"]}]})
    config = load_config(file, [("output.folder", "~/out")])
    home, own, storage, training = (block.model_dump() for block in config.benchmarks)
    assert config.output.folder == str(tmp_path / "home/out")
    assert load_config(file).output.folder == "/scratch/me/results"
    assert (home["file"], own["file"]) == (str(tmp_path / "home/ops.py"), str(tmp_path / "own.py"))
    assert storage["folder"] == "/scratch/me/io"
    assert training["data"] == ("synthetic", str(tmp_path / "home/corpus.bin"))
    for path in ("$NOT_SET_HERE/x", "${NOT_SET_HERE}", "~no_such_user_here/x"):
        with pytest.raises(ConfigError, match="output.folder") as caught:
            load_config(file, [("output.folder", path)])
        assert "\n" not in str(caught.value)


def test_two_blocks_cannot_share_a_name() -> None:
    lines = complaint({"benchmarks": [BLOCK | {"name": "a"}, BLOCK | {"name": "a"}]})
    assert lines == ['c.json: benchmarks: two blocks have the name "a"; names must differ']


@pytest.mark.parametrize(("text", "name", "what"), [
    ('{"name": 1,}', "c.json", "line 1, column"),
    ('{"name": "a", "name": "b"}', "c.json", 'key "name" is given twice'),
    ("name: a\nname: b\n", "c.yaml", 'key "name" is given twice'),
    ("name: [a\n", "c.yml", "line 2, column 1: not YAML: expected ',' or ']'"),
    ("[1, 2]", "c.json", "must be a mapping"),
    ('{"a": NaN}', "c.json", "NaN is not a JSON number"),
    ("[" * 100_000, "c.json", "c.json"),
    ("", "c.yaml", "must be a mapping"),
    ("benchmarks: &a [*a]", "c.yaml", "cannot be written as JSON"),
    ("launch: {2020-01-01: 1}", "c.yaml", "cannot be written as JSON"),
    ("name: 2020-99-99", "c.yaml", "c.yaml: "),
])
def test_a_file_that_cannot_be_parsed(tmp_path: Path, text: str, name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=r"c\.(json|yaml|yml): ") as caught:
        load_config(write(tmp_path, text, name))
    assert what in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        load_config(tmp_path / "none.json")
    with pytest.raises(FileError, match="is a folder"):
        load_config(tmp_path)
    (tmp_path / "c.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(FileError, match="UTF-8"):
        load_config(tmp_path / "c.json")


def test_yaml_is_the_same_as_json(tmp_path: Path) -> None:
    text = "benchmarks:\n- kind: comm\n  collective: [all_reduce]\n  size: 64KiB\n"
    from_yaml = load_config(write(tmp_path, text, "c.yaml"))
    assert from_yaml == load_config(write(tmp_path, with_block(size="64KiB")))


def test_without_a_path_the_file_here_comes_before_the_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(None) == load.PACKAGED
    write(tmp_path, with_block() | {"name": "here"})
    assert load_config(None).name == "here"


@pytest.mark.parametrize(("text", "value"), [
    ("a.b=3", 3), ("a.b=[1, \"x\"]", [1, "x"]), ("a.b=text", "text"), ("a.b=", ""),
    ("a.b=null", None), ("a.b=x=y", "x=y"), ("a.b=NaN", "NaN"),
])
def test_assignments(text: str, value: object) -> None:
    assert parse_assignment(text) == ("a.b", value)


@pytest.mark.parametrize("text", ["a", "=3", "a..b=3", ".=1"])
def test_what_is_no_assignment(text: str) -> None:
    with pytest.raises(ConfigError, match="write key=value"):
        parse_assignment(text)


def test_the_command_line_wins_and_holds_for_every_block(tmp_path: Path) -> None:
    raw = {"measure": {"warmup": 1}, "benchmarks": [BLOCK | {"warmup": 7}, BLOCK | {"size": 8}]}
    path = write(tmp_path, raw)
    assert load_config(path).benchmarks[0].warmup == (7,)
    config = load_config(path, [("measure.warmup", 3), ("benchmarks.1.size", ["8", "1KiB"])])
    assert config.measure.warmup == 3
    assert config.benchmarks[0].warmup is None
    assert config.benchmarks[1].size == (8, 1024)
    later = load_config(path, [("measure.warmup", 3), ("benchmarks.0.warmup", 9)])
    assert later.benchmarks[0].warmup == (9,)


@pytest.mark.parametrize(("key", "what"), [
    ("benchmarks.5.size", "it has 1, counted from 0"), ("benchmarks.x", "it has 1"),
    ("name.x", "name: has no keys"), ("measure.itrations", 'did you mean "iterations"'),
    ("measure.warmup", "must be a whole number"), ("mesure.warmup", "mesure: unknown key"),
    ("benchmarks.0.optoins.x", "benchmarks[0].optoins: unknown key"),
])
def test_a_wrong_override_states_that_it_came_from_the_command_line(
    tmp_path: Path, key: str, what: str
) -> None:
    with pytest.raises(ConfigError, match="^command line: ") as caught:
        load_config(write(tmp_path, with_block() | {"name": "a"}), [(key, "text")])
    assert what in str(caught.value)


def test_an_override_may_name_a_section_the_file_lacks(tmp_path: Path) -> None:
    overrides = [("hardware.peak_flops.bf16", 1e12)]
    config = load_config(write(tmp_path, with_block()), overrides)
    assert config.hardware.peak_flops == {"bf16": 1e12}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
KEYS = [*Config.model_fields, "hardware", "launch", "measure", "benchmarks", "fault"]


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_json_is_accepted_or_refused_in_lines(raw: dict[str, Any]) -> None:
    try:
        check_config(raw, "c.json")
    except ConfigError as error:
        assert all(line.startswith("c.json") for line in str(error).split("\n"))


@settings(deadline=None)
@given(st.dictionaries(
    st.sampled_from(["size", "env", "world_size", "dtype", "root", "warmup", "timeout_s"]), JSON))
def test_any_option_is_accepted_or_refused_in_lines(options: dict[str, Any]) -> None:
    try:
        check_config(with_block(**options), "c.json")
    except ConfigError as error:
        assert all(line.startswith("c.json: benchmarks[0].") for line in str(error).split("\n"))
