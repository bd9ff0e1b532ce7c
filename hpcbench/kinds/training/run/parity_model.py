"""What parity is tried on: the model itself, or a small one of the same kind where it is large."""

from __future__ import annotations

import math
from dataclasses import replace

from hpcbench.kinds.training.plan.adapters import NF4_BLOCK
from hpcbench.kinds.training.plan.build_workload import counted
from hpcbench.kinds.training.plan.registry import adapters_of, strategy
from hpcbench.kinds.training.plan.resnet import RESNETS, resnet_of
from hpcbench.kinds.training.plan.step import step_of
from hpcbench.kinds.training.plan.untimed import is_tried_itself
from hpcbench.kinds.training.plan.validity import why_not
from hpcbench.kinds.training.plan.workload import SYNTHETIC, Training

_HEAD_DIM = 8
_TOKENS = 16
_VOCAB = 128
_CLASSES = 128
_WIDTH = 8
_VALUES = 16
"""Values of a channel that each batch norm of a small model has at least: of very few, statistics
are noise."""
_HALVINGS = 32
"""Pixels of an image for each behind the last block."""


def parity_training(spec: Training) -> Training:
    """Return the training that parity is tried on, ``spec`` itself if it is small enough."""
    if spec.of_images:
        return _parity_images(spec)
    assert spec.tokens is not None  # noqa: S101  (it has no images)
    return spec if is_tried_itself(spec.parameters, spec.tokens) else small_training(spec)


def small_training(spec: Training) -> Training:
    """Return a training that takes the same steps on a small model of the same kind.

    It has all that makes the layout: degrees, options, batch and accumulation. Its extents are
    divisible as the model's are. Its layers are the fewest that the strategy takes.
    """
    if spec.of_images:
        return counted(_small_images(spec))
    kv_heads = spec.tp * min(2, spec.kv_heads // spec.tp)
    heads = kv_heads * min(2, spec.heads // spec.kv_heads)
    adapters = adapters_of(spec)
    hidden = NF4_BLOCK if adapters and adapters.packed else _HEAD_DIM * heads
    small = replace(
        spec, data=SYNTHETIC, changed=True, hidden=hidden, heads=heads, kv_heads=kv_heads,
        inner=2 * hidden, vocab=min(spec.vocab, _VOCAB * spec.tp),
        seq_length=min(spec.seq_length, spec.tp * -(-_TOKENS // spec.tp)))
    return counted(_shallow(small, least=2 * spec.pp))


def parity_words(spec: Training) -> str:
    """Return what a small model is, for people."""
    layers = "1 layer" if spec.layers == 1 else f"{spec.layers} layers"
    if spec.of_images:
        return f"a small model of {layers}, width {spec.width}, images of {spec.image_size} pixels"
    return (f"a small model of {layers}, hidden {spec.hidden}, {spec.heads} heads, "
            f"{spec.seq_length} tokens")


def _parity_images(spec: Training) -> Training:
    """Return what a ResNet is tried on: itself if it is small and narrow.

    Errors grow with the layers, and a wide one's ReLUs cut half of all values (`bounds`).
    """
    small = _small_images(spec)
    fits = (spec.classes <= _CLASSES and resnet_of(spec).is_narrow and spec.layers == small.layers
            and small.image_size <= spec.image_size <= 2 * small.image_size)
    return spec if fits else counted(small)


def _small_images(spec: Training) -> Training:
    pixels = math.isqrt(-(-_VALUES // step_of(spec).samples) - 1) + 1
    return _shallow(replace(spec, changed=True, width=min(spec.width, _WIDTH),
                            classes=min(spec.classes, _CLASSES), image_size=_HALVINGS * pixels),
                    least=len(RESNETS[spec.model].blocks))


def _shallow(small: Training, least: int) -> Training:
    """Return the training with the fewest layers that its strategy takes, from ``least`` on."""
    known = strategy(small.strategy)
    layers = least
    while known and layers < small.layers:
        shallow = replace(small, layers=layers)
        if why_not(shallow, known) is None:
            return shallow
        layers *= 2
    return small
