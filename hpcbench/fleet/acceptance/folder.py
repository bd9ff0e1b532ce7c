"""The folder of an acceptance test: a sweep for each step with its limits, a job script, and the
page to sign.

Steps are in ``steps.json``, where ``$name`` stands for what the machine's preset has. Limits are
shares of declared peaks only: what nobody has published is for the contract to say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcbench.config.load import check_config
from hpcbench.config.presets.preset import Preset, load_preset
from hpcbench.errors import FileError, UsageError, command_line, shell_line
from hpcbench.gen_config import Sweep, as_yaml
from hpcbench.plan.expand import make_plan
from hpcbench.plan.order import plan_estimate_s
from hpcbench.texts import as_field
from hpcbench.trace.container import whole_file
from hpcbench.units import plural, rough_time

OF_PEAK, OF_LINK = 0.6, 0.5
"""Shares to begin with: of a data sheet's FLOP/s in products, of declared links in all_reduce."""
USUAL_RANKS = 8
_WHY = "a share to begin with; agree on it with the vendor"
_OF_NODE, _SOAK = "node", "soak"


def write_acceptance(
    hardware: str | None, output: Path | None, *, force: bool, **others: object,
) -> str:
    """Write the folder; return a line about it. Raises UsageError, FileError before it is made."""
    if others:
        raise UsageError("--ranks and --from are not for acceptance")
    if hardware is None or output is None:
        raise UsageError("gen-config acceptance: give --hardware NAME and -o DIR")
    preset = load_preset(hardware)
    files = dict(_files(preset))
    if output.exists() and not output.is_dir():
        raise FileError(f"{output}: is a file; -o names a folder")
    there = [name for name in files if (output / name).exists()]
    if there and not force:
        raise FileError(f"{output / there[0]}: there already; --force writes over it")
    for name, text in files.items():
        with whole_file(output / name, make_folder=True) as part:
            part.write_text(text, encoding="utf-8")
    return as_field(f"{output}: {', '.join(files)}; read sign.md, then: "
                    f"{shell_line('bash', output / 'job.sh')}; "
                    f"{command_line('plan', output / 'node.yaml', '--world-size', _ranks(preset))} "
                    "shows the cases of a step")


def _ranks(preset: Preset) -> int:
    return int(preset.content["hardware"].get("num_devices", USUAL_RANKS))


def _files(preset: Preset) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file, each sweep as checked as one of a user."""
    folder, rows = Path(__file__).parent, []
    for name, step in json.loads((folder / "steps.json").read_text(encoding="utf-8")).items():
        content = step_content(preset, name, step)
        plan = make_plan(check_config(content, name), _ranks(preset))
        able = sum(case.skip is None for case in plan.cases)
        cost = (f"{plural(able, 'case')} on {plural(_ranks(preset), 'rank')}, about "
                f"{rough_time(plan_estimate_s(plan))}" + " a cycle" * (name == _SOAK))
        yield f"{name}.yaml", as_yaml(Sweep(content, (step["about"], f"{cost} by assumed rates.")))
        rows.append((name, step["about"], cost, [*_criteria(content)]))
    job = (folder / "job.sh").read_text(encoding="utf-8")
    yield "job.sh", job.replace("@RANKS@", str(_ranks(preset)))
    yield "sign.md", "\n".join(_sign(preset, rows)) + "\n"


def step_content(preset: Preset, name: str, step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sweep of a step. Raises UsageError for a machine without collectives."""
    ranks = [n for n in (1, 2, 4, 8) if n <= _ranks(preset)]
    known = {"$ranks": ranks, "$several": ranks[1:], "$most": _most(preset)}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        if isinstance(value, list):
            items = [filled(item) for item in value]
            return [item for item in items if not _is_of_no_rank(item)]
        if isinstance(value, str) and value.startswith("$"):
            return known[value] if value in known else _of_preset(preset, *value[1:].split("."))
        return value

    kept = {key: preset.content[key] for key in ("hardware", "required_backends")
            if key in preset.content}
    blocks = filled(step["benchmarks"])
    limits = [*_limits(preset, blocks[0]["dtype"])] if name == _OF_NODE else []
    return {"name": name, **kept, "measure": step["measure"],
            **({"limits": limits} if limits else {}), "benchmarks": blocks}


def _most(preset: Preset) -> str:
    return "4MiB" if preset.content["hardware"]["device_type"] == "cpu" else "256MiB"


def _of_preset(preset: Preset, kind: str, key: str = "", place: str = "") -> Any:
    """Return the first block of a kind, or a key of it, of a list the value at a ``place``."""
    block = next((block for block in preset.content["benchmarks"] if block["kind"] == kind), None)
    if block is None:
        raise UsageError(f"--hardware {preset.name}: has no {kind} to accept; take the sweep of "
                         "gen-config --hardware")
    value = block.get(key, preset.content["hardware"]["device_type"]) if key else block
    return value[int(place)] if place and isinstance(value, list) else value


def _is_of_no_rank(block: Any) -> bool:
    return isinstance(block, dict) and block.get("world_size") == []


def _limits(preset: Preset, dtype: str) -> Iterator[dict[str, Any]]:
    hardware = preset.content["hardware"]
    if peak := hardware.get("peak_flops", {}).get(dtype):
        yield {"metric": "rank_flops_per_s", "select": {"test": "gemm", "dtype": dtype},
               "min": round(OF_PEAK * peak / 1e12, 1), "unit": "TFLOP/s",
               "why": f"{OF_PEAK:.0%} of the declared peak: {_WHY}"}
    if hardware.get("link_peaks") and _ranks(preset) > 1:
        yield {"metric": "of_link", "min": OF_LINK, "select": {
            "label": f"all_reduce * {256 * 2**20}B *", "world_size": _ranks(preset)},
            "why": f"{OF_LINK:.0%} of the declared links: {_WHY}"}


def _criteria(content: Mapping[str, Any]) -> Iterator[str]:
    for limit in content.get("limits", ()):
        yield f"{limit['metric']} >= {limit['min']:g} {limit.get('unit', '')}".rstrip()


def _sign(preset: Preset, rows: list[tuple[str, str, str, list[str]]]) -> Iterator[str]:
    """Yield the lines of ``sign.md``."""
    yield f"# Acceptance of {preset.name}"
    yield ""
    yield "Machine, serial numbers, nodes: ____________________  hpcbench and commit: ____________"
    yield ""
    yield ("Agree on each criterion first; add limits of the contract to section `limits` of a "
           "sweep. Then run `job.sh`; it writes `verdicts.txt` and `results/`.")
    yield ""
    yield "| step | what | cost | passes if | measured | pass |"
    yield "|---|---|---|---|---|---|"
    for name, about, cost, criteria in rows:
        wanted = ["SOUND for the agreed time"] if name == _SOAK else [
            "no case wrong, failed or timed out", *criteria]
        yield f"| {name} | {about} | {cost} | exit code 0: {'; '.join(wanted)} | | |"
    yield ""
    yield "A step with exit code 3 is incomplete: start `job.sh` again. 1 and 2 do not pass."
    yield ""
    for who in ("Vendor", "Operator"):
        yield f"{who}: ____________________  Date: ____________  Signature: ____________________"
        yield ""
