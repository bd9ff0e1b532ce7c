"""gen-config: what it writes is a sweep with the same cases, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bad_input_process import hpcbench as in_this_process
from hpcbench.config.load import (
    check_config,
    dialect_of,
    load_config,
    read_config,
)
from hpcbench.config.presets import HARDWARE
from hpcbench.config.presets.preset import load_preset
from hpcbench.config.schema import Config, Hardware
from hpcbench.config.yaml_text import commented_yaml
from hpcbench.errors import ConfigError, FileError, UsageError
from hpcbench.gen_config import Sweep, generate, generate_here, sweep_here, write_sweep
from hpcbench.interop.dialects.traffic import TrafficFile
from hpcbench.plan.expand import make_plan
from hpcbench.plan.order import plan_estimate_s
from hpcbench.registry import DialectSpec, offered
from launcher import ROOT

DDLB = ROOT / "tests/data/ddlb.json"


def files_of_other_tools() -> Iterator[Path]:
    """Yield the sweep files of other tools among the tests' data."""
    for path in sorted((ROOT / "tests/data").iterdir()):
        with contextlib.suppress(UsageError):
            if path.name != "models.json" and path.suffix in (".json", ".yaml") and dialect_of(
                    read_config(path)):
                yield path


SWEEPS = [ROOT / "config.json", *files_of_other_tools(), *sorted((ROOT / "jobs").glob("*.yaml")),
          *sorted((ROOT / "slurm").glob("*.json")),
          *sorted((ROOT / "tests/data/golden/configs").glob("*.json"))]


def hpcbench(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return in_this_process(*map(str, words))


def case_ids(config: Config) -> list[str]:
    return [case.case_id for case in make_plan(config, 2).cases]


def written(path: Path, hardware: str | None = None, source: Path | None = None) -> Config:
    generate(hardware, source, path, force=False)
    return load_config(path)


@pytest.mark.parametrize("name", HARDWARE)
def test_a_machines_sweep_is_the_shipped_one(tmp_path: Path, name: str) -> None:
    preset = load_preset(name)
    config = written(tmp_path / "a.yaml", name)
    assert (tmp_path / "a.yaml").read_text() == generate(name, None, None, force=False)
    assert written(tmp_path / "a.yml", name) == config
    in_json = written(tmp_path / "a.json", name)
    assert {**in_json.plain(), "notes": []} == config.plain()
    plain = json.loads((tmp_path / "a.json").read_text())
    assert plain["$schema"] == "config.schema.json"
    assert plain["notes"] == [preset.about, *(
        f"hardware.{key}: {text}" for key, text in preset.sources.items())]


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
@pytest.mark.parametrize("source", SWEEPS, ids=lambda path: path.name)
def test_the_canonical_form_means_the_same(tmp_path: Path, source: Path, suffix: str) -> None:
    before, after = load_config(source), written(tmp_path / f"a{suffix}", None, source)
    told = {"notes": []} if dialect_of(read_config(source)) else {}
    assert {**after.plain(), **told} == {**before.plain(), **told}
    assert case_ids(after) == case_ids(before)


def test_files_of_every_tool_are_among_them() -> None:
    """Recorded communication is none of a tool's: its sweep is made of it (test_causes.py)."""
    assert {dialect_of(read_config(path)) for path in SWEEPS} == {
        None, *(one.load() for one in offered(DialectSpec).values())} - {TrafficFile}


def test_a_canonical_file_stays_as_it_is(tmp_path: Path) -> None:
    first = generate(None, ROOT / "jobs/transformer_large_v100.yaml", None, force=False)
    (tmp_path / "a.yaml").write_text(first)
    assert generate(None, tmp_path / "a.yaml", None, force=False) == first


def test_notes_of_a_translation_become_comments(tmp_path: Path) -> None:
    benchmark = json.loads(DDLB.read_text())["benchmark"] | {
        "output_csv": "a\u2028b\nbenchmarks: []"}
    source = tmp_path / "theirs.json"
    source.write_text(json.dumps({"benchmark": benchmark}))
    notes = load_config(source).notes
    in_json, in_yaml = written(tmp_path / "a.json", None, source), written(
        tmp_path / "a.yaml", None, source)
    assert in_json.notes == ("Translated from theirs.json, a file of DDLB.", *notes)
    assert in_yaml.notes == ()
    assert in_yaml.benchmarks == load_config(source).benchmarks
    text = (tmp_path / "a.yaml").read_text()
    assert r"# output_csv a\u2028b\nbenchmarks: []: not written;" in text


def test_own_notes_stay(tmp_path: Path) -> None:
    source = sweep(tmp_path, notes="after the update")
    assert written(tmp_path / "a.yaml", None, source).notes == ("after the update",)


def test_the_configuration_of_a_run_becomes_short(tmp_path: Path) -> None:
    source = tmp_path / "config.json"
    shutil.copy(ROOT / "tests/data/golden/configs/mixed.json", source)
    plain = load_config(source).plain() | {"notes": ["A note of several words.", "And one more."]}
    source.write_text(json.dumps(plain))
    config = written(tmp_path / "a.yaml", None, source)
    text = (tmp_path / "a.yaml").read_text()
    assert config.plain() == plain and "null" not in text
    assert "  - A note of several words.\n  - And one more.\n" in text


def test_names_that_replace_others_do_so_once(tmp_path: Path) -> None:
    source = sweep(tmp_path, model="gpt2", benchmarks=[
        {"kind": "training", "model": "transformer-tiny", "layers": 2, "strategies": "single"}])
    config = written(tmp_path / "a.yaml", None, source)
    assert len(config.notes) == 1 and config.plain() == load_config(source).plain()


def sweep(folder: Path, **keys: Any) -> Path:
    path = folder / "mine.json"
    block = {"kind": "collective", "collective": "all_reduce", "backend": "gloo"}
    path.write_text(json.dumps({"benchmarks": [block], **keys}))
    return path


def test_a_machine_is_put_into_a_file_whose_own_values_win(tmp_path: Path) -> None:
    source = sweep(tmp_path, name="x", hardware={
        "memory_per_device_gb": 32, "peak_flops": {"fp16": 112e12, "fp32": 15.7e12},
        "network_bandwidth_gbps": 25, "device_type": None})
    known = Hardware.model_validate_json(json.dumps(
        load_preset("v100-nvlink").content["hardware"]))
    config = written(tmp_path / "a.yaml", "v100-nvlink", source)
    assert config.hardware == known.model_copy(update={
        "memory_per_device_gb": 32, "network_bandwidth_gbps": 25,
        "peak_flops": {**known.peak_flops, "fp16": 112e12}})
    assert case_ids(config) == case_ids(load_config(source))
    text = (tmp_path / "a.yaml").read_text()
    assert ("Section hardware is that of v100-nvlink, but memory_per_device_gb, "
            "network_bandwidth_gbps, peak_flops.fp16 of mine.json.") in text.replace("\n# ", " ")
    assert "NVIDIA V100 Tensor Core GPU data sheet" in text
    assert "16 and 32 GB" not in text and "is left out" not in text
    notes = written(tmp_path / "a.json", "v100-nvlink", source).notes
    assert notes[0].endswith(
        "peak_flops.fp16 of mine.json. Blocks keep the backends and devices that they name.")
    assert notes[1].startswith("hardware.peak_flops: NVIDIA V100")


def test_a_file_can_be_replaced_by_its_own_canonical_form(tmp_path: Path) -> None:
    source = sweep(tmp_path, hardware={"memory_per_device_gb": 8})
    before = load_config(source).plain()
    generate(None, source, source, force=True)
    assert load_config(source).plain() == before


def test_a_file_for_another_device_takes_no_machine(tmp_path: Path) -> None:
    source = sweep(tmp_path, hardware={"device_type": "metal"})
    with pytest.raises(ConfigError, match="hardware.device_type is mps, but v100-nvlink has cuda"):
        generate("v100-nvlink", source, None, force=False)
    assert "device_type: mps" in generate("m4-metal", source, None, force=False)


@pytest.mark.parametrize(("sweep", "ranks"), [
    (Sweep({"hardware": {"num_devices": 8}}), "8"), (Sweep({}, ranks=2), "2"),
    (Sweep({"hardware": {"device_type": "cpu"}}), None),
    (Sweep({"hardware": {"num_devices": 1}}), None),
])
def test_the_printed_command_plans_for_the_ranks_of_the_file(
    tmp_path: Path, sweep: Sweep, ranks: str | None,
) -> None:
    words = write_sweep(sweep, tmp_path / "a.json", force=False).split()
    assert ("--world-size" in words) == (ranks is not None)
    assert ranks is None or words[words.index("--world-size") + 1] == ranks


def test_nothing_is_written_over_without_force(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("mine")
    done = hpcbench("gen-config", "--hardware", "cpu", "-o", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"hpcbench: {path}: there already; --force writes over it\n"
    assert path.read_text() == "mine"
    done = hpcbench("gen-config", "--hardware", "cpu", "-o", path, "--force")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{path}: written; hpcbench plan {path} shows its cases\n"
    assert path.read_text() == load_preset("cpu").text
    assert [item.name for item in tmp_path.iterdir()] == ["a.yaml"]


@pytest.mark.parametrize(("words", "message"), [
    ([], "give --hardware, --from or both"),
    (["--hardware", "h100-nvlnk"], 'did you mean "h100-nvlink"?'),
    (["--hardware", "cpu", "-o", "FOLDER/a.txt"], "end the name in .json, .yaml or .yml"),
    (["--hardware", "cpu", "-o", "FOLDER/no/a.json"], "there is no folder FOLDER/no; make it"),
    (["--hardware", "cpu", "-o", "FOLDER/there.yaml"], "is a folder"),
    (["--hardware", "cpu", "-o", f"FOLDER/{'x' * 300}.yaml"], "too long"),
    (["--from", "FOLDER/no.json"], "does not exist"),
    (["--from", "FOLDER/bad.json"], "bad.json: benchmarks: the key is missing"),
    (["--from", "FOLDER/bad.json", "-o", "FOLDER/a.json"],
     "bad.json: benchmarks: the key is missing"),
])
def test_what_is_refused_is_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "there.yaml").mkdir()
    (tmp_path / "bad.json").write_text("{}")
    before = sorted(tmp_path.iterdir())
    given_words = [word.replace("FOLDER", str(tmp_path)) for word in words]
    with pytest.raises((UsageError, FileError, ConfigError)) as caught:
        options = dict(zip(given_words[::2], given_words[1::2], strict=True))
        paths = [Path(options[name]) if name in options else None for name in ("--from", "-o")]
        generate(options.get("--hardware"), *paths, force=False)
    assert message.replace("FOLDER", str(tmp_path)) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert sorted(tmp_path.iterdir()) == before


def test_yaml_is_printed_and_can_be_planned(tmp_path: Path) -> None:
    done = hpcbench("gen-config", "--from", DDLB)
    (tmp_path / "a.yaml").write_text(done.stdout)
    assert done.returncode == 0
    planned = hpcbench("plan", tmp_path / "a.yaml", "--world-size", "2")
    assert (planned.returncode, planned.stderr) == (0, "")


plain = st.one_of(st.text(), st.booleans(), st.none(), st.integers(),
                  st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(plain, lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8)
contents = st.dictionaries(st.text(max_size=8), values, max_size=4)


@given(contents, st.lists(st.text()), st.text())
def test_comments_and_values_never_mix(
    content: dict[str, Any], remarks: list[str], comment: str,
) -> None:
    section = {**content, "hardware": {"one": 989.4e12, "two": content}}
    text = commented_yaml(section, remarks, {"hardware": {"one": comment, "two": comment}})
    assert yaml.safe_load(text) == section


def machine(*gpu_memory_bytes: int, **absent: str) -> dict[str, Any]:
    """Return what a probe says of a machine on which these backends are absent."""
    names = ("gloo", "nccl", "mpi", "ucc")
    return {"backends": {name: absent.get(name) for name in names},
            "device_names": ["a GPU"] * len(gpu_memory_bytes),
            "gpu_memory_bytes": list(gpu_memory_bytes), "links": [[None, "NV4"], ["NV4", None]]}


@pytest.mark.parametrize(("found", "ranks", "backends"), [
    (machine(80 * 10**9, 80 * 10**9, ucc="no"), 2, {"nccl"}),
    (machine(2 * 10**9, ucc="no", nccl="no"), 1, {"gloo"}),
    (machine(nccl="needs a GPU", ucc="no"), None, {"gloo", "mpi"}),
    (machine(nccl="needs a GPU", ucc="no", mpi="no"), None, {"gloo"})])
def test_a_sweep_for_this_machine_has_its_backends_and_fits(
    found: dict[str, Any], ranks: int | None, backends: set[str],
) -> None:
    sweep = sweep_here(found, None)
    config = check_config(dict(sweep.content), "here")
    assert {name for block in config.benchmarks for name in block.backend} == backends
    words = sweep.remarks[1].split()
    count = int(words[words.index("-np") + 1])
    assert ranks in (None, count)
    plan = make_plan(config, count)
    memory = min(found["gpu_memory_bytes"], default=psutil.virtual_memory().available // count)
    assert max(case.memory_bytes for case in plan.cases) < memory
    assert not [case.skip for case in plan.cases if case.skip]
    (about,) = [line for line in sweep.remarks if " min by " in line]
    minutes = plan_estimate_s(plan) / 60
    assert abs(int(about.split(" min ")[0].split()[-1]) - max(minutes, 1)) <= 0.5


def test_a_sweep_for_this_machine_replaces_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hpcbench.launch.probe.probe_here",
                        lambda: machine(ucc="no", nccl="no"))
    path = tmp_path / "here.yaml"
    path.write_text("mine")
    with pytest.raises(FileError) as caught:
        generate_here(None, path, force=False)
    assert caught.value.exit_code == 2 and path.read_text() == "mine"
    generate_here(None, path, force=True)
    assert read_config(path)["name"] == "here"
