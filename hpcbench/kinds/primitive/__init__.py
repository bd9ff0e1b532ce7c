"""Kind ``primitive``: matrix products with the communication that belongs to them."""

from hpcbench.kinds.registry import KindSpec

_ROOM = "hpcbench.kinds.primitive"
SPEC = KindSpec(
    name="primitive", block=f"{_ROOM}.block:PrimitiveBlock",
    planner_path=f"{_ROOM}.plan.planner:PrimitivePlanner",
    runner_path=f"{_ROOM}.run.implementations.base:PrimitiveRunner",
    deriver_path=f"{_ROOM}.derive:PrimitiveDeriver",
    presenter_path=f"{_ROOM}.present:PrimitivePresenter",
    catalogue_path=f"{_ROOM}.plan.planner:catalogue",
    host_path=f"{_ROOM}.plan.planner:PrimitiveHost",
    aliases=("primitives",), order=20)
