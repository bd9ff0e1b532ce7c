"""What the strategies need of a model, whoever's it is."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from hpcbench.plan.training.models import ModelShape


class Model(nn.Module):  # type: ignore[misc]
    """A model from tokens (samples, tokens) int64 to logits (samples, tokens, vocab)."""

    shape: ModelShape

    def blocks_by_name(self) -> dict[str, nn.Module]:
        """Return the blocks, each by what the names of its parameters begin with."""
        raise NotImplementedError

    def ends_by_name(self) -> dict[str, nn.Module]:
        """Return what else has parameters, in the same way."""
        raise NotImplementedError

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield all of these."""
        yield from self.blocks_by_name().items()
        yield from self.ends_by_name().items()

    def complete(self) -> None:
        """Let tied weights be one, and fill in what is no parameter.

        To be called when parameters were replaced (to_empty, parallelize_module).
        """
        raise NotImplementedError
