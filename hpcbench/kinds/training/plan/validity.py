"""What can be trained how: one pure function with the reason why not, known without a machine."""

from __future__ import annotations

from hpcbench.kinds.training.plan.registry import adapters_of, layout_of, strategies
from hpcbench.kinds.training.plan.resnet import bottlenecks, resnet_of
from hpcbench.kinds.training.plan.shares import is_dynamic
from hpcbench.kinds.training.plan.spec import StrategySpec
from hpcbench.kinds.training.plan.step import step_of
from hpcbench.kinds.training.plan.workload import CHUNKED, SYNTHETIC, Training
from hpcbench.operations.models import OWN_LIBRARY


def why_not(work: Training, spec: StrategySpec) -> str | None:
    """Return why a model, its sizes and a strategy do not go together, or None."""
    if work.of_images:
        return (_undivided_images(work) or _indivisible(work) or spec.unfit(work)
                or _too_few_values(work) or _no_communication(work))
    return (_of_library(work) or _uncompiled(work) or _not_chunked(work)
            or _indivisible(work) or spec.unfit(work) or _no_communication(work))


def _uncompiled(work: Training) -> str | None:
    """Return why torch does not compile this, or None; seen with torch 2.13."""
    layout = layout_of(work)
    if not work.compile:
        return None
    if work.tp > 1 and work.checkpointing in ("selective", "full"):
        return (f"torch compiles no block that is divided among ranks and, with checkpointing "
                f"{work.checkpointing}, computed again whole; operators it does")
    if is_dynamic(work):
        return ("compile: balance=dynamic changes how many samples a rank has, and torch would "
                "compile again within the steps that are timed")
    if layout.adapters and layout.adapters.packed and layout.groups:
        return ("compile: bitsandbytes exchanges the data of gathered 4 bits within a block, of "
                "which torch makes no graph; over single and data it does")
    return None


def _not_chunked(work: Training) -> str | None:
    """Return why the loss cannot be computed of a part of the tokens after another, or None."""
    if work.loss != CHUNKED:
        return None
    if work.pp > 1:
        return f"loss {CHUNKED}: torch's pipelines compute the loss of what the last stage returns"
    if work.tp > 1:
        return f"loss {CHUNKED}: ranks that divide the words have loss_parallel instead"
    if work.library != OWN_LIBRARY:
        return f"loss {CHUNKED}: models of library {work.library} return all logits at once"
    if work.compile:
        return f"loss {CHUNKED}: compile is of the loss of all logits; leave one of the two out"
    return None


def _of_library(work: Training) -> str | None:
    """Return why the model of another library cannot be trained so, or None."""
    adapters = adapters_of(work)
    if work.library == OWN_LIBRARY:
        return None
    if work.tp * work.pp > 1:
        *names, last = [spec.name for spec in strategies() if not spec.divides_model]
        return (f"{work.strategy} divides hpcbench's own model, which has the exact shape: the one "
                f"of library {work.library} is trained whole, by {', '.join(names)} and {last}")
    if work.kv_heads != work.heads and work.family != "llama":
        return (f"library {work.library} has no {work.model} whose queries share keys and values: "
                f"give kv_heads {work.heads}, or take library {OWN_LIBRARY}")
    if adapters and adapters.packed and work.family == "gpt":
        return (f"library {work.library} has weights of {work.model} as (inputs, outputs), which "
                "bitsandbytes has no 4 bits for; library hpcbench has them the other way round")
    return None


def _no_communication(work: Training) -> str | None:
    """Return why there is no communication to leave out or to do alone, or None."""
    if work.communication == "off" and is_dynamic(work):
        return ("communication off: with balance=dynamic ranks that hear nothing of one another "
                "would keep even shares, and so take other steps")
    if work.trains or work.dp * work.tp * work.pp > 1:
        return None
    return f"communication {work.communication}: one rank has none to talk to"


def _undivided_images(work: Training) -> str | None:
    """Return what is done to transformers only, or None."""
    if work.tp > 1:
        return (f"{work.model} is made of convolutions, for which no strategy here has a plan to "
                "divide them among ranks (tp)")
    if work.data != SYNTHETIC:
        return f"data={work.data}: files hold tokens, {work.model} takes images"
    if is_dynamic(work):
        return "balance=dynamic would have batch norms see other samples whenever shares change"
    if adapters_of(work):
        return f"{work.model} has no products of attention and MLP that adapters stand beside"
    if work.library != OWN_LIBRARY:
        return f"{work.model} is hpcbench's own: library {work.library} has transformers here"
    if work.loss == CHUNKED:
        return f"loss {CHUNKED} divides tokens; {work.model} takes images, of few logits"
    if work.compile:
        return (f"compile is for blocks that are all alike; those of {work.model} have other "
                "extents from stage to stage, each a graph of its own")
    if work.checkpointing != "none":
        return (f"checkpointing would count each batch of {work.model} twice in the running "
                "statistics of its batch norms")
    return None


def _too_few_values(work: Training) -> str | None:
    """Return why the last batch norm has no statistics: they are of one micro-batch, or None."""
    samples, extent = step_of(work).samples, bottlenecks(resnet_of(work))[-1].extent_behind
    if samples * extent**2 > 1:
        return None
    return ("a batch norm of one pixel of one image has nothing to norm: give more samples for "
            "each part of a batch, or image_size above 32")


def _indivisible(work: Training) -> str | None:
    """Return what would have to be divided evenly and cannot be, or None."""
    shared = (
        (work.batch_size, "samples (batch_size)", work.accumulation, "equal parts (accumulation)"),
        (work.layers, "layers", work.pp, "stages (pp)"),
    )
    extents = shared if work.of_images else (
        (work.hidden, "hidden", work.heads, "attention heads"),
        (work.heads, "attention heads", work.kv_heads, "key-value heads"),
        shared[0],
        (work.heads, "attention heads", work.tp, "ranks (tp)"),
        (work.kv_heads, "key-value heads", work.tp, "ranks (tp)"),
        (work.inner, "columns of the MLP", work.tp, "ranks (tp)"),
        shared[1],
    )
    return next((f"{extent} {what} cannot be divided evenly among {count} {parts}"
                 for extent, what, count, parts in extents if extent % count), None)
