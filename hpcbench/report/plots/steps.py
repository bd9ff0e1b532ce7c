"""One model trained in several ways: the time of a step, and the phases that it is made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hpcbench.kinds.training.derive.exposed import UNPAIRED, Exposure, exposures
from hpcbench.kinds.training.derive.problems import shown_definition
from hpcbench.kinds.training.derive.record import NOTHING_KNOWN
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.kinds.training.present.options import telling_options
from hpcbench.kinds.training.present.result_table import SHORT
from hpcbench.kinds.training.present.words import degrees_text, model_text
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.report.plots.style import (
    COLOURS,
    GREY,
    SMALL,
    dress,
    footer,
    new_figure,
    timing_text,
)
from hpcbench.views.cell_text import MISSING, format_number
from hpcbench.views.timing import mode_text
from hpcbench.views.words import device_type, env_text, options_text, plural

MOST_ROWS = 30
"""More trainings than this are split over several figures."""
ROW_INCHES, ABOVE_INCHES, BELOW_INCHES = 0.27, 1.35, 1.45
RIGHT = 0.675
"""Where the bars end, in shares of the figure's width as all that is horizontal."""
VALUES = ((0.745, "step (ms)"), (0.835, "tokens/s"), (0.9, "MFU %"), (0.985, "memory (MiB)"))
"""Where the columns beside the bars end, and their titles."""
CHARACTER = 0.0069
"""A character of a label."""
LONGEST_LABEL = 55
"""Longer labels are broken into lines."""
PHASE_COLOURS = dict(zip(SHORT, (COLOURS[at] for at in (6, 4, 0, 1, 3, 2, 5)), strict=True))
_VARIED = ("batch_size", "accumulation", "optimizer")
"""What a label names, beside what is unusual, where it is not the same in the whole figure."""
OTHER = "other"
OTHER_COLOUR = "#bbbbbb"
CAPTION = (
    "Bar: median time of one optimizer step over the samples of all passes; whisker: from the "
    "least to the greatest median of a pass. Parts: each phase's share of the time of all steps of "
    "all ranks; other: in no phase. data: waiting for the batch. exchange: waiting for the "
    "gradients of others when the own ones are there; where there is no such part, the others hold "
    "the wait for the slowest rank. Tokens count once, however many ranks see them. Memory: the "
    "most that any rank used.")
WITHOUT = (
    "Dashed: the same step without communication; what is right of it is exposed. Line below a "
    "bar: the communication of a step alone, drawn so that both end together; what of it is left "
    "of the dashes passes under the computation.")


@dataclass(frozen=True, slots=True)
class StepChart:
    """One figure: trainings of the same model on the same ranks.

    ``exposures`` are those of all trainings of the run, by case id.
    """

    title: str
    subtitle: str
    file_stem: str
    rows: tuple[tuple[str, CaseResult], ...]
    exposures: Mapping[str, Exposure]

    @property
    def items(self) -> list[CaseResult]:
        """Return all cases."""
        return [item for _, item in self.rows]

    def exposure(self, item: CaseResult) -> Exposure:
        """Return what is known of a case's communication."""
        return self.exposures.get(item.case.case_id, UNPAIRED)


def step_charts(items: Sequence[CaseResult]) -> list[StepChart]:
    """Return the figures of the trainings that have statistics, and train."""
    groups: dict[tuple[str, ...], list[CaseResult]] = defaultdict(list)
    for item in items:
        if item.case.kind == "training" and item.statistics is not None and (
                training_of(item.case).trains):
            groups[_key(item)].append(item)
    known = exposures(items)
    return [chart for key, found in groups.items() for chart in _charts(key, found, known)]


def _key(item: CaseResult) -> tuple[str, ...]:
    case, work = item.case, training_of(item.case)
    return (work.model, model_text(work), work.dtype, case.backend, device_type(item),
            plural(case.world_size, "rank"), mode_text(item), env_text(case))


def _charts(
    key: tuple[str, ...], items: Sequence[CaseResult], known: Mapping[str, Exposure],
) -> Iterator[StepChart]:
    works = [training_of(item.case) for item in items]
    options = telling_options(works)
    rows = [(_label(work, works, options[work]), item)
            for work, item in zip(works, items, strict=True)]
    parts = [rows[first:first + MOST_ROWS] for first in range(0, len(rows), MOST_ROWS)]
    for number, part in enumerate(parts, start=1):
        stem = "-".join(word for word in ("training", *key) if word)
        yield StepChart(
            title=f"{key[0]}: time of a training step by strategy",
            subtitle=", ".join(word for word in key[1:] if word),
            file_stem=_file_name(f"{stem}-{number}" if len(parts) > 1 else stem),
            rows=tuple(part), exposures=known)


def _label(work: Training, works: Sequence[Training], options: str) -> str:
    """Return what is done, and what else is not the same for all of them."""
    values = [*((name, getattr(work, name)) for name in _VARIED), *work.unusual()]
    varied = [(name, value) for name, value in values
              if len({getattr(other, name) for other in works}) > 1]
    degrees = degrees_text(work)
    words = (work.strategy, degrees, options,
             options_text(varied))
    return " ".join(word for word in words if word)


def draw_steps(chart: StepChart, results: Results) -> Figure:
    """Return the figure of one model."""
    inside = ROW_INCHES * (len(chart.rows) + 0.6)
    height = ABOVE_INCHES + inside + BELOW_INCHES
    figure = new_figure(chart.title, chart.subtitle, height)
    longest = max(len(label) for label, _ in chart.rows)
    left = 0.03 + CHARACTER * max(16, min(longest, LONGEST_LABEL))
    axes = figure.add_axes((left, BELOW_INCHES / height, RIGHT - left, inside / height))
    axes.set_ylim(len(chart.rows) - 0.4, -0.7)
    drawn: set[str] = set()
    for at, (label, item) in enumerate(chart.rows):
        drawn |= _draw_bar(axes, item, at)
        _draw_exposure(axes, item, chart.exposure(item), at)
        _write_row(axes, label, _cells(item, results), at)
    dress(axes, x_label="time of one step (ms)", y_label="")
    axes.grid(False, axis="y")
    axes.set_yticks([])
    axes.set_xlim(left=0)
    for end, title in _columns(chart):
        figure.text(end, 1 - (ABOVE_INCHES - 0.08) / height, title, fontsize=SMALL, color=GREY,
                    ha="right", va="bottom")
    _legend(figure, drawn, 1 - 0.72 / height)
    footer(figure, results, caption=_caption(chart), timing=timing_text(results, chart.items))
    return figure


def _columns(chart: StepChart) -> list[tuple[float, str]]:
    """Return the columns beside the bars: images have no tokens, so samples are told."""
    of_images = training_of(chart.rows[0][1].case).of_images
    return [(end, "images/s" if of_images and title == "tokens/s" else title)
            for end, title in VALUES]


def _caption(chart: StepChart) -> str:
    names = dict.fromkeys(filter(None, (
        shown_definition(training_of(item.case)) for item in chart.items)))
    parts = [CAPTION]
    parts += [WITHOUT] if any(chart.exposure(item).off_s for item in chart.items) else []
    parts += [f"MFU: FLOPs as {', '.join(names)} counts them."] if names else []
    return " ".join(parts)


def parts_ms(item: CaseResult) -> dict[str, float]:
    """Return the length of each part of a bar in ms, ``other`` last; all of it without phases."""
    whole = item.statistics.median_s * 1e3 if item.statistics else 0.0
    steps = item.timing.steps if item.timing else None
    phases = {} if steps is None else {
        phase.name: whole * phase.share for phase in steps.phases}
    return {**phases, OTHER: whole * (steps.other_share if steps else 1.0)}


def _draw_bar(axes: Axes, item: CaseResult, at: int) -> set[str]:
    """Draw a stacked bar and its whisker; return the parts it has."""
    parts, begin = parts_ms(item), 0.0
    for name, length in parts.items():
        axes.barh(at, length, left=begin, height=0.62, linewidth=0,
                  color=PHASE_COLOURS.get(name, OTHER_COLOUR))
        begin += length
    medians = [1e3 * time_s for time_s in item.timing.pass_medians_s if time_s is not None
               ] if item.timing else []
    if len(medians) > 1:
        axes.hlines(at, min(medians), max(medians), color="black", linewidth=1.2)
        axes.vlines([min(medians), max(medians)], at - 0.16, at + 0.16, color="black",
                    linewidth=1.2)
    return set(parts)


def _draw_exposure(axes: Axes, item: CaseResult, told: Exposure, at: int) -> None:
    """Draw where the step would end without communication, and how long that takes alone."""
    if told.off_s is not None:
        axes.vlines(1e3 * told.off_s, at - 0.4, at + 0.46, color="black", linewidth=1.2,
                    linestyles=(0, (2, 1)))
    if told.only_s is not None and item.statistics is not None:
        end_ms = 1e3 * item.statistics.median_s
        axes.hlines(at + 0.4, end_ms - 1e3 * told.only_s, end_ms, color="black", linewidth=2)


def _write_row(axes: Axes, label: str, cells: Iterable[str], at: int) -> None:
    across, left = axes.get_yaxis_transform(), axes.get_position().x0
    axes.text(-0.01, at, fill(label, LONGEST_LABEL), transform=across, ha="right", va="center",
              fontsize=SMALL + 1)
    for (end, _), text in zip(VALUES, cells, strict=True):
        axes.text((end - left) / (RIGHT - left), at, text, transform=across, ha="right",
                  va="center", fontsize=SMALL + 1)


def _cells(item: CaseResult, results: Results) -> Iterator[str]:
    """Yield the values beside a bar, one for each of VALUES."""
    record = results.record_of(item) or NOTHING_KNOWN
    rate = record.samples_per_s if training_of(item.case).of_images else record.tokens_per_s
    for value, factor in ((record.step_s, 1e3), (rate, 1), (record.mfu, 100),
                          (record.held_bytes.get("peak"), 2**-20)):
        yield MISSING if value is None else format_number(factor * value)


def _legend(figure: Figure, drawn: set[str], height: float) -> None:
    handles = [Patch(color=PHASE_COLOURS[name], label=title) for name, title in SHORT.items()
               if name in drawn]
    figure.legend(handles=[*handles, Patch(color=OTHER_COLOUR, label=OTHER)], loc="upper left",
                  bbox_to_anchor=(0.013, height), ncols=len(handles) + 1, fontsize=SMALL + 1,
                  frameon=False)


def _file_name(text: str) -> str:
    return "".join(char if char.isalnum() or char in "-_.=" else "_" for char in text)
