"""The transformer that is trained: whole, or the part of it that one pipeline stage has.

Pure torch, built from a `ModelShape`. Every parameter has the same name in every layout, and no
dropout makes a step random.
"""

from __future__ import annotations

import re

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hpcbench.kinds.training.plan.activations import LOSS_CHUNKS
from hpcbench.kinds.training.run.models.blocks import Block, Rotation, make_norm
from hpcbench.kinds.training.run.models.model import Model, of_transformer
from hpcbench.operations.models import ModelShape

TIED = ("head.logits.weight", "embedding.tokens.weight")
"""The weight of the logits, and the one that it is where they are tied."""
_INTO_RESIDUAL = re.compile(r"blocks\.\d+\.(attention\.o|mlp\.down)\.weight")


def plain_name(shape: ModelShape, name: str) -> str:
    """Return what a stage's parameter is called in the whole model: tied ones have one name."""
    return TIED[1] if shape.tied and name == TIED[0] else name


class Embedding(nn.Module):  # type: ignore[misc]
    """Tokens, learned positions (not in llama), and in BERT the kind of sentence and a norm."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        learned, bert = shape.family != "llama", shape.family == "bert"
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.seq_length, shape.hidden) if learned else None
        self.types = nn.Embedding(2, shape.hidden) if bert else None
        self.norm = make_norm(shape) if bert else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return hidden states (samples, tokens, hidden) of tokens (samples, tokens)."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[-1], device=tokens.device))
        if self.types is not None:  # All are of the first kind: samples are one sentence.
            x = x + self.types(torch.zeros_like(tokens[0]))
        return x if self.norm is None else self.norm(x)


class Head(nn.Module):  # type: ignore[misc]
    """The last norm and the logits; in BERT a product and GELU before, and a bias of the logits."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        bert = shape.family == "bert"
        self.transform = nn.Linear(shape.hidden, shape.hidden) if bert else None
        self.norm = make_norm(shape)
        self.logits = nn.Linear(shape.hidden, shape.vocab, bias=bert)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (samples, tokens, vocab)."""
        return self.logits(self._normed(x))

    def chunked_loss(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy, fp32, of targets (samples, tokens).

        Logits are made of some of the tokens at a time, and again for backward: there are never
        more of them than of one part.
        """
        rows, wanted = self._normed(x).flatten(0, -2), targets.flatten()
        parts = min(LOSS_CHUNKS, len(wanted))
        sums = [checkpoint(self._loss_sum, *part, use_reentrant=False, preserve_rng_state=False)
                for part in zip(rows.tensor_split(parts), wanted.tensor_split(parts), strict=True)]
        return torch.stack(sums).sum() / len(wanted)

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        if self.transform is not None:
            x = F.gelu(self.transform(x))
        return self.norm(x)

    def _loss_sum(self, rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        logits = self.logits(rows)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(wide, wanted, reduction="sum")


class Transformer(Model):
    """A model, or the stage of it that has ``blocks``, numbered as in the whole model.

    The stage with block 0 has the embedding and takes tokens (samples, tokens) int64; others take
    hidden states (samples, tokens, hidden). The stage with the last block has the head and returns
    logits (samples, tokens, vocab); others return hidden states. Children are ``embedding``,
    ``blocks`` (a ModuleDict by the block's number) and ``head``; what a stage lacks is None.

    A tied weight is one parameter, ``embedding.tokens.weight``, where one stage has both ends. A
    last stage alone has its own, ``head.logits.weight``: its gradient is to be added to the first
    stage's, and its weight to be kept the same.
    """

    def __init__(self, shape: ModelShape, blocks: range | None = None) -> None:
        super().__init__()
        blocks = range(shape.layers) if blocks is None else blocks
        self.shape = shape
        self.embedding = Embedding(shape) if blocks.start == 0 else None
        self.blocks = nn.ModuleDict({str(number): Block(shape) for number in blocks})
        self.head = Head(shape) if blocks.stop == shape.layers else None
        self._tie()

    def complete(self, device: torch.device) -> None:
        """Let the logits use the token embedding's weight, if they do in this family."""
        self._tie()

    def _tie(self) -> None:
        if self.shape.tied and self.embedding is not None and self.head is not None:
            self.head.logits.weight = self.embedding.tokens.weight

    def initial(
        self, name: str, extents: tuple[int, ...], seed: int, device: torch.device,
    ) -> torch.Tensor:
        """Return the first value of a whole parameter: see `Model.initial`."""
        name = plain_name(self.shape, name)
        return of_transformer(name, extents, seed, device, self.shape.layers, _INTO_RESIDUAL)

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Return logits or hidden states of tokens or hidden states: see the class.

        With ``targets`` (samples, tokens) it is their mean loss, computed in parts.
        """
        rotation = (Rotation(self.shape.seq_length, self.shape.head_dim, self.shape.rotary_base,
                             x.device)
                    if self.shape.family == "llama" else None)
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x, rotation)
        if self.head is None:
            return x
        return self.head(x) if targets is None else self.head.chunked_loss(x, targets)
