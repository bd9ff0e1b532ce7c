"""What ranks that divide a model exchange in a step: hidden states, and with them gradients.

Of tensor-parallel ranks Shoeybi et al., Megatron-LM (arXiv 1909.08053), section 3: each of the two
halves of a block sums its results in forward and the gradients of its input in backward.
Korthikanti et al. (arXiv 2205.05198), section 4.2.2: with sequence parallelism each sum is a
reduce-scatter, with an all-gather on the other side, of the same bytes on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.kinds.training.plan.any_model import AnyShape
from hpcbench.kinds.training.plan.resnet import ResNetShape, sent_elements
from hpcbench.kinds.training.plan.spec import Calls, calls
from hpcbench.kinds.training.plan.step import Stage, Step
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.operations.models import ModelShape

_GRADIENT = 4
_LOSS_SUMS = 3
"""Of a loss of divided logits: the largest logit, the sum of exponentials, the target's logit."""
_TABLES = {"gpt": 1, "llama": 0, "bert": 2}
"""Tables of positions and types, which are gathered under sequence parallelism."""


def tensor_calls(
    shape: ModelShape, stage: Stage, step: Step, recomputed: int,
) -> Iterator[Calls]:
    """Yield the calls of a step of a rank with these parts; ``recomputed`` counts its blocks."""
    kept, parts, bert = step.kept, step.parts, shape.family == "bert"
    hidden, halves = step.tokens * shape.hidden, 2 * len(stage.blocks)
    wide, narrow = hidden * kept.wide, hidden * kept.element
    # The embedding sums in forward, each half of a block in both. What is computed again sums
    # again, but for a last product whose result nothing needs. The head's sum is in backward.
    sums = [wide] * (stage.first + halves) + [narrow] * (halves + recomputed * (1 + bert))
    head = [narrow if bert else wide] * stage.last
    if not kept.by_tokens:
        yield calls("all_reduce", kept.tp, (sums + head) * parts)
    else:
        tables = [shape.seq_length * shape.hidden * kept.wide] * stage.first
        gathers = ([wide] * (stage.first + stage.last + halves + 2 * recomputed)
                   + [narrow] * halves + tables * _TABLES[shape.family])
        # BERT's head has a product of its own, before which it gathers all tokens
        yield calls("reduce_scatter", kept.tp, (sums if bert else sums + head) * parts)
        yield calls("all_gather", kept.tp, gathers * parts)
        yield calls("all_reduce", kept.tp,
                    [*_norms(shape, stage, step), *(head * bert * parts)])
    if stage.last and kept.by_words:
        yield calls("all_reduce", kept.tp, [step.tokens * _GRADIENT] * _LOSS_SUMS * parts)
    elif stage.last:
        padded = -(-shape.vocab // kept.tp) * kept.tp
        yield calls("all_gather", kept.tp, [step.tokens * padded * kept.element] * parts)


def _norms(shape: ModelShape, stage: Stage, step: Step) -> list[int]:
    """Return the sizes of the gradients of norms, of which each rank has seen some tokens.

    They are summed when gradients are exchanged: those of one micro-batch as they are, those of
    several in fp32, in which they were added up.
    """
    exchanges = step.layout.groups.exchanges if step.layout.groups else 1
    size = step.kept.wide if step.parts == exchanges else _GRADIENT
    named = [item for item in stage.tensors(shape) if "norm." in item.name]
    if shape.family == "bert":  # its head gathers tokens before it
        named = [item for item in named if not item.name.startswith("head.")]
    return [item.elements * size for item in named] * exchanges


def pipeline_calls(work: Training, shape: AnyShape, stage: Stage, step: Step) -> Calls:
    """Return what a rank sends: results of blocks ahead, gradients back, of each micro-batch.

    A tied weight has a copy on the first and on the last stage. These exchange their parts of its
    gradient once a step.
    """
    crossing = (*stage.ahead, *stage.behind)
    if isinstance(shape, ResNetShape):
        return calls("send_recv", 2, [
            step.samples * sent_elements(shape, number) * step.kept.element
            for number in crossing] * step.parts)
    hidden = step.kept.of_tokens(step.tokens * shape.hidden, step.kept.wide)
    sizes = [hidden] * len(crossing) * step.parts
    if shape.tied and stage.first != stage.last:
        of_tensor = -(-shape.vocab // work.tp)
        rows = -(-of_tensor // step.layout.shards)
        sizes.append(rows * shape.hidden * 4)
    return calls("send_recv", 2, sizes)
