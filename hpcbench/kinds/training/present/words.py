"""Short words for trainings, the same in tables and on figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hpcbench.kinds.training.derive.deriver import TrainingRecord
from hpcbench.kinds.training.derive.fingerprints import Counterpart
from hpcbench.kinds.training.plan.registry import strategy
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.options import Option
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural
from hpcbench.views.words import distinct, options_text, span_text

SHORT = {"data": "data", "forward": "forward", "backward": "backward", "exchange": "exchange",
         "forward_backward": "fwd+bwd", "optimizer": "optimizer", "balance": "balance"}
"""Phase -> the title of its column."""
_SPOKEN = {"kv_heads": "key-value heads"}


def model_text(work: Training) -> str:
    """Return ``2 layers, hidden 64, sequence 32``: the shape in which a model was trained.

    Of images ``16 layers, width 64, images of 224 pixels``. Then follow other extents that it was
    given, and whether it is smaller than the published model, or another.
    """
    wide = f"width {work.width}" if work.of_images else f"hidden {work.hidden}"
    sample = (f"images of {work.image_size} pixels" if work.of_images else
              f"sequence {work.seq_length}")
    others = [f"{_SPOKEN.get(name, name)} {extent}" for name, extent in work.named_extents]
    word = ["shrunk"] if work.shrunk else ["changed"] if work.changed else []
    return ", ".join([plural(work.layers, "layer"), wide, sample, *others, *word])


def strategy_text(work: Training) -> str:
    """Return ``data``, or ``data (communication off)`` of what trains nothing."""
    return work.strategy if work.trains else f"{work.strategy} (communication {work.communication})"


def degrees_text(work: Training) -> str:
    """Return ``dp=2 tp=2``: the degrees above 1; nothing where there is none."""
    return options_text(work.degrees())


def span_words(works: Sequence[Training]) -> Iterator[str]:
    """Yield the models, and how much of each step."""
    yield distinct(work.model for work in works)
    if tokens := [work.seq_length for work in works if not work.of_images]:
        yield f"seq={span_text(tokens)}"
    if images := [work.image_size for work in works if work.of_images]:
        yield f"image={span_text(images)}"
    yield f"batch={span_text(work.batch_size for work in works)}"


def telling_options(works: Iterable[Training]) -> Mapping[Training, str]:
    """Return for each training, as text, the options that tell it from others of these.

    Left out is what has its default in all of them with the same strategy.
    """
    of_strategy = grouped((work.strategy, work) for work in works)
    return {work: options_text([option for option in work.options if not _is_usual(option, same)])
            for same in of_strategy.values() for work in same}


def _is_usual(option: tuple[str, Option], same: Sequence[Training]) -> bool:
    name, value = option
    spec = strategy(same[0].strategy)
    usual = spec.options.get(name) if spec else None
    return usual is not None and value == usual.default and all(
        dict(work.options).get(name, value) == value for work in same)


def parity_text(item: CaseResult, record: TrainingRecord) -> str | None:
    """Return the largest error in % of what is allowed, beside a single process, or why none.

    None if the case did not get to it.
    """
    work = training_of(item.case)
    if not work.trains:
        return "n/a: no communication" if work.communication == "off" else "n/a: communication only"
    if item.n_wrong is None:
        return None if item.case.validate else "unchecked"
    if item.n_wrong:
        return f"{item.n_wrong} wrong"
    return "ok" if record.parity_share is None else f"{100 * record.parity_share:.3g}%"


def counterpart_text(found: Counterpart) -> str:
    """Return which case a large model was compared with, or why with none."""
    if found.missing:
        return f"compared with no other strategy: {found.missing}"
    if found.on_ranks:
        return "copies on the ranks differ (HB158)"
    if found.n_wrong:
        return f"differs from that of {found.words} (HB158)"
    return f"compared with that of {found.words}, by weights, gradients and the first update"
