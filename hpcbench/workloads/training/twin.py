"""What parity is tried on: the model itself, or a small one of the same kind where it is large."""

from __future__ import annotations

from dataclasses import replace

from hpcbench.plan.training.models import parameters, shape_of
from hpcbench.plan.training.strategies import strategy
from hpcbench.plan.training.validity import why_not
from hpcbench.plan.workload import SYNTHETIC, Training

MOST_PARAMETERS = 20_000_000
"""Of a model that is tried itself: the reference takes 16 bytes for each, in fp64."""
MOST_FLOPS = 2e10
"""Of its reference, 6 for a parameter and token: seconds of one core in fp64."""
_HEAD_DIM = 8
_TOKENS = 16
_VOCAB = 128


def tried(spec: Training) -> Training:
    """Return the training that parity is tried on, ``spec`` itself if it is small enough.

    A twin has all that makes the layout: degrees, options, batch and accumulation, and extents
    that are divisible as the model's are. Its layers are the fewest that the strategy takes.
    """
    if (spec.parameters <= MOST_PARAMETERS
            and 6.0 * spec.parameters * spec.tokens <= MOST_FLOPS):
        return spec
    kv_heads = spec.tp * min(2, spec.kv_heads // spec.tp)
    heads = kv_heads * min(2, spec.heads // spec.kv_heads)
    hidden = _HEAD_DIM * heads
    twin = replace(
        spec, data=SYNTHETIC, shrunk=True, hidden=hidden, heads=heads, kv_heads=kv_heads,
        inner=2 * hidden, vocab=min(spec.vocab, _VOCAB * spec.tp),
        seq_length=min(spec.seq_length, spec.tp * -(-_TOKENS // spec.tp)))
    return _counted(_shallow(twin))


def twin_words(spec: Training) -> str:
    """Return what a twin is, for people."""
    layers = "1 layer" if spec.layers == 1 else f"{spec.layers} layers"
    return (f"a twin of {layers}, hidden {spec.hidden}, {spec.heads} heads, "
            f"{spec.seq_length} tokens")


def _shallow(twin: Training) -> Training:
    """Return the twin with the fewest layers, from two a stage, that its strategy takes."""
    known = strategy(twin.strategy)
    layers = 2 * twin.pp
    while known and layers < twin.layers:
        shallow = replace(twin, layers=layers)
        if why_not(shallow, known) is None:
            return shallow
        layers *= 2
    return twin


def _counted(twin: Training) -> Training:
    return replace(twin, parameters=parameters(shape_of(twin)).total)
