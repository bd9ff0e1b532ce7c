"""What a case of a primitive takes of memory, and what its check takes: upper estimates.

They follow the inputs, the implementations and `kinds.primitive.run.expected`, which hold the
tensors that are counted here. Of a plug-in's primitive only m, n, k are known, so it counts as one
product of whole matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.config.names import DTYPE_BYTES
from hpcbench.kinds.primitive.plan.exactness import Sizes, mlp_sizes, product_sizes
from hpcbench.kinds.primitive.plan.workload import Primitive

_EXACT_BYTES, _BOUNDED_BYTES, _ACTIVATED_BYTES = 24, 40, 60
"""Of an element of a reference while it is made: exact, with a bound, and through gelu."""
_KEPT_BYTES = 12  # of an element with its bound


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements that one rank holds: on its device the first three, on the host the others.

    Attributes:
        operands: the rank's own operands.
        between: what lies between operands and result.
        result: the result.
        drawn: whole operands, as they are drawn.
        factors: the factors of one product of the reference.
        checked: the result of the reference.
        inner: what enters the second product of an MLP.
    """

    operands: int
    between: int
    result: int
    drawn: int
    factors: int
    checked: int
    inner: int = 0


def sizes_of(work: Primitive, ranks: int) -> Sizes | None:
    """Return the sizes of integer operands; None where operands are normal numbers.

    Of a plug-in's primitive it is taken that its sums are over k.
    """
    columns = work.n
    if work.primitive == "tp_mlp":
        activation = str(dict(work.options).get("activation"))
        columns, sizes = work.k, mlp_sizes(work.dtype, work.k, work.n, ranks, activation)
    elif work.primitive == "dp_allreduce":
        columns, sizes = work.k, product_sizes(work.dtype, work.m, ranks)
    else:
        sizes = product_sizes(work.dtype, work.k, ranks if work.primitive == "tp_rowwise" else 1)
    return sizes if sizes and sizes.stride <= columns else None


def is_exact(work: Primitive, ranks: int) -> bool:
    """Return whether there are operands whose results the dtype holds exactly."""
    sizes = sizes_of(work, ranks)
    return sizes is not None and sizes.exact


def device_bytes(work: Primitive, ranks: int) -> int:
    """Return the bytes of operands and buffers; a result that is returned is there twice.

    So is, in messages of chunks, what lies between: as it is sent, and as it arrives.
    """
    held = _elements(work, ranks)
    between = held.between * (2 if work.implementation == "chunked_pipeline" else 1)
    return DTYPE_BYTES[work.dtype] * (held.operands + between + 2 * held.result)


def host_bytes(work: Primitive, ranks: int, *, validate: bool) -> int:
    """Return the bytes of whole operands on the host, and of the reference while it is made."""
    held = _elements(work, ranks)
    element = _EXACT_BYTES if is_exact(work, ranks) else _BOUNDED_BYTES
    reference = 16 * held.factors + element * held.checked
    if held.inner:
        reference += _KEPT_BYTES * held.inner + _ACTIVATED_BYTES * held.inner // ranks
    drawing = 4 * held.drawn  # they are drawn as fp32, or as int8 and put in order as int16
    return DTYPE_BYTES[work.dtype] * held.drawn + max(drawing, reference if validate else 0)


def product_bytes(work: Primitive, ranks: int) -> int | None:
    """Return the least bytes that the products of the busiest rank move; None of a plug-in's.

    Of each product both operands are read once, and the result is written once.
    """
    d = 1 if dict(work.options).get("size") == "unsharded" else ranks
    m, n, k = work.m, work.n, work.k
    products: tuple[tuple[int, int, int], ...] = ()
    if work.primitive == "tp_columnwise" and work.order == "AG_before":
        products = ((m, n if dict(work.options).get("weight") == "replicated" else n // d, k),)
    elif work.primitive == "tp_columnwise":
        products = ((m // d, n, k),)
    elif work.primitive == "tp_rowwise":
        products = ((m, n, k // d),)
    elif work.primitive == "tp_mlp":
        products = ((m, n // d, k), (m, k, n // d))
    elif work.primitive == "dp_allreduce":
        products = ((n, k, m // d),) * int(dict(work.options).get("layers", 1))
    elif work.primitive == "ep_all_to_all" and d > 1:
        products = ((work.flops // (2 * n * k), n, k),)
    elements = sum(rows * inner + inner * columns + rows * columns
                   for rows, columns, inner in products)
    return DTYPE_BYTES[work.dtype] * elements or None


def reference_flops(work: Primitive, ranks: int) -> float:
    """Return the fp64 flops of a rank's reference; with a bound one fp32 product is added, or two.

    `comm_only` needs the reference of the product, too, but for a gathering before it.
    """
    products = 2 if work.primitive == "tp_mlp" else 1
    whole = 2 * work.m * work.n * work.k * products * int(dict(work.options).get("layers", 1))
    if work.size_bytes == 0:
        flops = work.flops
    elif work.flops == 0 and work.order == "AG_before":
        return 0.0
    else:
        flops = whole // ranks if _is_divided(work) else whole
    return flops * (1.0 if is_exact(work, ranks) else 2.0)


def _is_divided(work: Primitive) -> bool:
    """Return whether a rank ends with its part of the result."""
    if work.primitive == "tp_columnwise":
        return work.order == "AG_before" and dict(work.options).get("weight") == "sharded"
    return work.order in ("RS_after", "sequence_parallel", "dispatch_combine")


def _elements(work: Primitive, ranks: int) -> Elements:
    m, n, k, d = work.m, work.n, work.k, ranks
    share = d if _is_divided(work) else 1
    alone = work.size_bytes == 0  # a product alone ends with other parts
    whole = alone and dict(work.options).get("size") == "unsharded"
    if work.primitive == "tp_columnwise":
        width = n if whole else n // share
        return Elements(m * k // d + k * width, m * max(k, width), m * width,
                        (m + n) * k, (m + width) * k, m * width)
    if work.primitive == "tp_rowwise":
        parts, result = 1 if whole else d, m * n // (1 if alone else share)
        return Elements((m + n) * k // parts, m * n, result, (m + n) * k,
                        (m + n) * k // parts, result)
    if work.primitive == "tp_mlp":
        parts, rows = 1 if whole else d, m // (1 if alone else share)
        gathered = m * k if share > 1 and not alone else 0
        return Elements(rows * k + 2 * k * n // parts, 2 * m * k + m * n // parts, rows * k,
                        (m + 2 * n) * k, (rows + n) * max(k, n) // parts + rows * k,
                        rows * k + gathered, rows * n)
    if work.primitive == "dp_allreduce":
        layers, parts = int(dict(work.options).get("layers", 1)), 1 if whole else d
        tokens = m // parts * (k + layers * n)
        return Elements(tokens, layers * n * k, layers * n * k, m * (k + layers * n), tokens,
                        layers * n * k)
    if work.primitive == "ep_all_to_all":
        return _experts(work, ranks, whole=whole, alone=alone)
    return Elements((m + n) * k, m * (k + n), m * n, (m + n) * k, (m + n) * k, m * n)


def _experts(work: Primitive, ranks: int, *, whole: bool, alone: bool) -> Elements:
    """Every rank draws all experts, and may have to hold the tokens of all ranks."""
    m, n, k = work.m, work.n, work.k
    heaviest = m if whole else work.flops // (2 * n * k) if work.flops else m
    own = m // ranks
    held = k * n * (ranks if whole else 1)
    ended = heaviest * n if alone else own * n
    checked = ended if work.flops else ended + heaviest * k  # comm_only ends with tokens, too
    return Elements(own * k + held, heaviest * (k + n), ended, m * k + ranks * k * n,
                    heaviest * k + k * n, 2 * checked)
