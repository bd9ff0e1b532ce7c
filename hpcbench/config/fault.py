"""Faults that a sweep file asks for; apart, since workers need them and no other section."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hpcbench.config.section import FaultKind, Positive, Section, Text, key


class Fault(Section):
    """An error made on purpose, to test how a run deals with it. For testing only."""

    case: Text = key("*", "Shell pattern on a case's label or id.")
    rank: Annotated[int, Field(ge=0)] = Field(description="The rank it happens on.")
    kind: FaultKind = Field(description="What happens.")
    iteration: Annotated[int, Field(ge=0)] = key(
        0, "When: iterations counted from the first warm-up.")
    seconds: Positive = key(
        0.1, "How much later a slow rank starts; slow_samples: how much longer each sample of a "
        "training takes from then on.")
