"""The formats by name, and results files that become one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

from hpcbench.errors import UsageError
from hpcbench.interop.formats.export import cases, tables
from hpcbench.interop.formats.export.cost_tables import as_aiconfigurator, as_torch_estimates
from hpcbench.interop.formats.export.nccl_tests import as_json, as_text
from hpcbench.interop.formats.export.prometheus import as_prometheus
from hpcbench.interop.formats.export.timeline import as_perfetto, as_tensorboard
from hpcbench.records import dataclass
from hpcbench.reduce.results_file import each_once, open_results
from hpcbench.reduce.suite_file import refuse_suite
from hpcbench.trace.container import whole_file

Writer = Callable[[Sequence[cases.ExportedRun], cases.ExportRequest], cases.Exported]


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A format's writer; ``many``: it holds several runs. ``is_binary``: not for a terminal."""

    write: Writer
    many: bool = False
    is_binary: bool = False


FORMATS: Mapping[str, ExportFormat] = MappingProxyType({
    "nccl-tests": ExportFormat(as_text), "nccl-tests-json": ExportFormat(as_json),
    "prometheus": ExportFormat(as_prometheus),
    "bencher": ExportFormat(tables.as_bencher, many=True),
    "github-benchmark": ExportFormat(tables.as_github_benchmark, many=True),
    "otava": ExportFormat(tables.as_otava, many=True),
    "superbench": ExportFormat(tables.as_superbench, many=True),
    "fom": ExportFormat(tables.as_fom), "csv": ExportFormat(tables.as_csv, many=True),
    "parquet": ExportFormat(tables.as_parquet, many=True, is_binary=True),
    "tensorboard": ExportFormat(as_tensorboard, is_binary=True),
    "perfetto": ExportFormat(as_perfetto), "torch-estimates": ExportFormat(as_torch_estimates),
    "aiconfigurator": ExportFormat(as_aiconfigurator)})


def chosen_export(name: str, n_runs: int) -> ExportFormat:
    """Return the format. Raises UsageError for another name, or for more runs than it holds."""
    if name not in FORMATS:
        raise UsageError(f"--to {name}: allowed are {', '.join(FORMATS)}")
    format_ = FORMATS[name]
    if n_runs > 1 and not format_.many:
        several = ", ".join(name for name, one in FORMATS.items() if one.many)
        raise UsageError(f"--to {name}: holds one run, and {n_runs} were given; {several} hold "
                         "several")
    return format_


def export_files(
    paths: Sequence[Path], name: str, request: cases.ExportRequest, only: Sequence[str] = (),
) -> tuple[cases.Exported, Sequence[str]]:
    """Return the content in a format, and lines on what it lacks.

    Raises UsageError for unknown names, a file that is given twice, and where the format can hold
    nothing of the runs; FileError or TraceError for files that are no results."""
    paths = each_once(paths)
    chosen = chosen_export(name, len(paths))
    for path in paths:
        refuse_suite(path)
    runs = []
    with ExitStack() as stack:
        for path in paths:
            stack.close()  # of many runs no file stays open: formats of one run read its samples
            runs.append(cases.exported_run(stack.enter_context(open_results(path)), only))
        _check_metrics(runs, request)
        exported = chosen.write(runs, request)
    lines = [*exported.notes, *_warnings(runs), *cases.left_out_lines(exported.left_out)]
    if not exported.content:
        why = (exported.notes or [*cases.left_out_lines(exported.left_out)]
               or ["there is no case"])[-1]
        raise UsageError(f"--to {name}: nothing that this format holds: {why}")
    return exported, lines


def _check_metrics(runs: Sequence[cases.ExportedRun], request: cases.ExportRequest) -> None:
    names = dict.fromkeys(one for run in runs for one in cases.metric_names(run))
    for name in request.metrics:
        if name not in names:
            raise UsageError(f"--metric {name}: these results have "
                             f"{', '.join(names) or 'no measured case'}")


def _warnings(runs: Sequence[cases.ExportedRun]) -> Iterator[str]:
    """Yield warnings about the numbers of a run as a whole."""
    for run in runs:
        about = f"run {run.results.run.run_id}"
        if injected := run.results.run.injected:
            yield f"{about}: {injected}"
        if programs := run.results.run.imported:
            yield f"{about}: imported: times that {' and '.join(programs)} printed"
        yield from (f"{about}: {finding.code}: {finding.message}" for finding in run.against)
        yield from (f"{about}: incomplete: {gap}" for gap in run.gaps)


def write_target(path: Path, exported: cases.Exported) -> None:
    """Write the file, whole or not at all. Raises FileError."""
    with whole_file(path) as part:
        part.write_bytes(exported.content)
