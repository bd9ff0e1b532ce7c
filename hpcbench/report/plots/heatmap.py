"""Rank x iteration: how long each rank was in the call, for one case."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.present.words import form_text
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.present.words import problem_text
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.present.words import model_text
from hpcbench.plan.workload import Workload
from hpcbench.reduce.results import CaseResult, CaseSamples, Results
from hpcbench.report.plots.style import (
    GREY,
    SMALL,
    TEXT,
    dress,
    footer,
    new_figure,
    plain,
    size_label,
    timing_text,
)
from hpcbench.trace.schema import UNTIMED, Flag
from hpcbench.views.words import device_type, env_text, options_text, plural

Matrix = npt.NDArray[np.float64]
MOST_COLUMNS = 1000
"""More samples than this share columns: a picture has about as many pixels."""
_KINDS = ("collective", "primitive", "training")
_LEAVES_EARLY = ("broadcast", "reduce", "gather", "scatter", "send_recv")


def most_telling(items: Iterable[CaseResult]) -> CaseResult | None:
    """Return the ok case to map: all_reduce if there is one, most ranks, largest size, first.

    A primitive is mapped only where no collective is ok, a training only where neither is.

    A case whose samples are single calls goes before one with several calls a sample.
    """
    found = [item for item in items if item.statistics is not None]
    return max(found, default=None, key=lambda item: (
        -_KINDS.index(item.case.kind), item.case.workload.name == "all_reduce",
        not isinstance(item.case.workload, Training) or item.case.workload.trains,
        item.case.world_size, _size(item.case.workload), item.case.batch == 1,
        -item.case.index))


def _size(work: Workload) -> int:
    """Return what makes a case the larger one of its kind: bytes, or tokens or images of a step."""
    if isinstance(work, Training):
        return work.global_batch if work.tokens is None else work.tokens
    return work.size_bytes if isinstance(work, (Collective, Primitive)) else 0


def draw_heatmap(item: CaseResult, samples: CaseSamples, results: Results) -> Figure:
    """Return the figure of one case. ``samples`` has at least one iteration."""
    case, work = item.case, item.case.workload
    what = _words(work)
    parts = (case.backend, device_type(item), plural(case.world_size, "rank"), _form(work),
             work.dtype, *what[1:], env_text(case))
    figure = new_figure(f"{what[0]}: time in the call, by rank and iteration",
                        ", ".join(part for part in parts if part))
    axes = figure.add_axes((0.075, 0.22, 0.8, 0.6))
    _draw_matrix(figure, axes, samples)
    _mark_untimed(axes, samples)
    _mark_passes(axes, samples)
    footer(figure, results, caption=_caption(item, samples), timing=timing_text(results, [item]))
    return figure


def _form(work: Workload) -> str:
    return form_text(work) if isinstance(work, Collective) else ""


def _words(work: Workload) -> list[str]:
    if isinstance(work, Training):
        return _training_words(work)
    if isinstance(work, Primitive):
        return _primitive_words(work)
    return _collective_words(work) if isinstance(work, Collective) else [work.name]


def _training_words(work: Training) -> list[str]:
    """Return what is trained, and how."""
    return [f"Step of {work.model} by {work.strategy}", options_text(work.options),
            model_text(work), f"batch {work.batch_size}"]


def _collective_words(work: Collective) -> list[str]:
    """Return what is called, and how."""
    size = "" if work.collective == "barrier" else f" of {size_label(work.size_bytes)}"
    return [f"{work.collective}{size}", work.op or "", "in place" if work.in_place else ""]


def _primitive_words(work: Primitive) -> list[str]:
    """Return what is called, and how."""
    return [f"{work.primitive} by {work.implementation}", work.order, options_text(work.options),
            problem_text(work)]


def _caption(item: CaseResult, samples: CaseSamples) -> str:
    calls = f" of a sample of {item.case.batch} calls" if item.case.batch > 1 else ""
    text = f"Each cell: end - start{calls} on that rank's own clock."
    if item.case.kind == "collective" and item.case.workload.name not in _LEAVES_EARLY:
        group = " of its group" if item.case.workload.groups > 1 else ""
        text += (f" No rank can finish before all{group} have arrived, so a row that is shorter "
                 "than the others is a rank that arrives late and is waited for.")
    if _pass_ends(samples).size:
        text += " Dashed line: the next pass begins; other cases ran between."
    if (step := _step(samples.start_ns.shape[1])) > 1:
        text += f" Each column: the longest of {step} samples."
    return text


def _step(columns: int) -> int:
    """Return how many samples one column of the picture stands for."""
    return -(-columns // MOST_COLUMNS)


def _draw_matrix(figure: Figure, axes: Axes, samples: CaseSamples) -> None:
    micros: Matrix = (samples.end_ns - samples.start_ns) / 1e3
    timed = micros[:, ~_is_untimed(samples)]
    scale = timed if timed.size else micros
    rows, columns = micros.shape
    starts = np.arange(0, columns, _step(columns))
    shown_micros = np.maximum.reduceat(micros, starts, axis=1)
    low, high = float(scale.min()), float(scale.max())
    wide = 0 < 8 * low < high
    norm = LogNorm(low, high) if wide else Normalize(low, high)
    image = axes.imshow(
        shown_micros, aspect="auto", cmap="viridis", interpolation="nearest", norm=norm,
        extent=(-0.5, len(starts) * _step(columns) - 0.5, rows - 0.5, -0.5),
    )
    axes.set_xlim(-0.5, columns - 0.5)
    dress(axes, x_label="iteration, in the order they ran", y_label="rank")
    axes.grid(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    shown = range(0, rows, -(-rows // 16))
    axes.set_yticks(list(shown), [str(samples.ranks[row]) for row in shown])
    bar = figure.colorbar(image, cax=figure.add_axes((0.895, 0.22, 0.018, 0.6)),
                          extend=_extend(micros, low, high),
                          format=FuncFormatter(lambda value, _: plain(value)))
    bar.set_label(f"time in the call (us{', log scale' if wide else ''})", fontsize=TEXT)
    bar.ax.tick_params(which="both", labelsize=SMALL + 1)
    bar.ax.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: _minor_label(value)))


def _minor_label(value: float) -> str:
    """Return the number where its first digit is 2 or 5: more labels would not fit."""
    text = plain(value)
    return text if text.lstrip("0.")[:1] in ("2", "5") else ""


def _extend(micros: Matrix, low: float, high: float) -> str:
    """Return which ends of the colour bar get an arrow: warm-ups may lie outside the scale."""
    below, above = bool(micros.min() < low), bool(micros.max() > high)
    return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[below, above]


def _is_untimed(samples: CaseSamples) -> npt.NDArray[np.bool_]:
    flagged: npt.NDArray[np.bool_] = np.any(samples.flags & UNTIMED, axis=0)
    return flagged


def _mark_untimed(axes: Axes, samples: CaseSamples) -> None:
    untimed = _is_untimed(samples)
    if not untimed.any():
        return
    edges = np.flatnonzero(np.diff(np.concatenate(([0], untimed.astype(int), [0]))))
    top = axes.get_xaxis_transform()
    for begin, end in edges.reshape(-1, 2):
        axes.plot([begin - 0.5, end - 0.5], [1.02, 1.02], color=GREY, linewidth=4,
                  transform=top, clip_on=False, solid_capstyle="butt")
        axes.axvline(end - 0.5, color="white", linewidth=2)
    singles = " or a single checked call" if np.any(samples.flags & Flag.SINGLE) else ""
    axes.text(edges[0] - 0.5, 1.04, f"warm-up{singles}, not in the statistics", transform=top,
              fontsize=SMALL, color=GREY, va="bottom")


def _pass_ends(samples: CaseSamples) -> npt.NDArray[np.intp]:
    """Return the columns after which another pass, or another launch, begins."""
    return np.flatnonzero(np.diff(samples.pass_index) | np.diff(samples.launch))


def _mark_passes(axes: Axes, samples: CaseSamples) -> None:
    for column in _pass_ends(samples):
        axes.axvline(column + 0.5, color="white", linewidth=2, linestyle="--")
