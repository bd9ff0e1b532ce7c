"""What the ranks of a pipeline send each other in a step."""

from __future__ import annotations

from hpcbench.kinds.training.plan.any_model import AnyShape
from hpcbench.kinds.training.plan.resnet import ResNetShape
from hpcbench.kinds.training.plan.resnet_parts import sent_elements
from hpcbench.kinds.training.plan.stages import Stage
from hpcbench.kinds.training.plan.step import Step
from hpcbench.kinds.training.plan.traffic import Calls, calls
from hpcbench.kinds.training.plan.workload import Training


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
