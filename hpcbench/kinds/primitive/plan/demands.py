"""How large integer operands may be to be exact, and the memory of a case and its check.

Most terms of a long sum cancel in groups, and the few others (signals) make the result. So no
result grows with the extent that is summed over. In units of the least term these must fit:

- a result, and any sum of ranks' results: into the significand of the dtype,
- all terms of one product together, in any order: into that of fp32, in which torch adds.

Where even ones of all ranks do not fit, only every ``stride``-th rank has signals in a column of
the result, and each rank in every ``stride``-th column.

Memory is estimated from above, by the tensors of inputs, implementations and reference
(`kinds.primitive.run.operands`). Only m, n, k of a plug-in's primitive are known, so it counts as
one product of whole matrices."""

from __future__ import annotations

from types import MappingProxyType

from hpcbench.config.axes import DTYPE_BYTES
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.records import dataclass

SIGNIFICAND_BITS = MappingProxyType({"fp64": 53, "fp32": 24, "fp16": 11, "bf16": 8})
"""IEEE 754 binary64, 32, 16 and bfloat16, with the hidden bit."""
GELU_INPUT = MappingProxyType({"bf16": 203 / 2**8, "fp16": 1627 / 2**11})
"""gelu of this number is rounded to 5/8 in the dtype, and gelu of twice as much to 12/8: both are
further than 2 % of a step from where rounding would change. Found by trying all numbers."""
_BUDGET = 2**22
"""In units of the least term: a quarter of what fp32 holds."""
_SIGNALS = (8, 4, 2, 1)
_CANCELLING = (32, 16, 8, 4, 2, 1)
_GELU_STEPS = 12
"""The largest result of `GELU_INPUT`, in eighths."""
_MANY = 8
"""Signals of a part that are preferred to larger numbers: a short sum then has no other terms."""
_MOST = 64
"""Signals of a part at most: each is drawn by itself, and more of them show no other faults."""
_LOUD = 128
"""Size of signals behind gelu in fp32 and fp64: results are far above what sums may lose."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The largest magnitudes of integer operands, and how many make the result.

    Attributes:
        signals: how many terms of each part do not cancel.
        left: of signals of the left operand, all positive.
        right: of signals of the right operand; in an MLP of W2, and of W1 with relu.
        cancelling: of all other terms; in an MLP, of its first product.
        inner: of all other terms of an MLP's second product.
        stride: each part of a sum has signals in every ``stride``-th column only.
        exact: whether results are exact, too; otherwise their errors are bounded."""

    signals: int
    left: int
    right: int
    cancelling: int
    inner: int = 0
    stride: int = 1
    exact: bool = True


def product_sizes(dtype: str, extent: int, parts: int) -> Sizes | None:
    """Return the sizes for sums over ``extent`` terms, ``parts`` ranks together, or None."""
    cancelling = _largest_cancelling(2 * extent)
    stride = _stride(dtype, parts, _left(1))
    size, count = _signals(extent // parts, _limit(dtype) // -(-parts // stride), power=1)
    if not size or not cancelling:
        return None
    return Sizes(count, _left(size), size, cancelling, stride=stride)


def _stride(dtype: str, parts: int, least: int) -> int:
    """Return between how many columns a part has signals once; ``least``: the least of its sums."""
    together = _limit(dtype) // least
    return -(-parts // together) if together else 1


def _signals(terms: int, limit: int, power: int) -> tuple[int, int]:
    """Return size and number of signals of so many terms; (0, 0) if there are none.

    ``limit`` is the largest result of a part, ``power`` how many right operands make it. Ones alone
    would hide an exchange of ranks' parts, so they are taken only where there is nothing else."""
    counts = {size: count for size in _SIGNALS
              if (count := _count(terms, limit // (_left(size) * size**power)))}
    size = next((size for size, count in counts.items() if count >= min(terms, _MANY) and size > 1),
                2 if 2 in counts else max(counts, default=0))
    return size, counts.get(size, 0)


def _count(terms: int, most: int) -> int:
    """Return how many signals there may be: all terms, or two or more are left to cancel."""
    count = min(terms, most, _MOST)
    return max(count - 1, 0) if terms - count == 1 else count


def _limit(dtype: str) -> int:
    return min(1 << SIGNIFICAND_BITS.get(dtype, 0), _BUDGET)


def mlp_sizes(dtype: str, k: int, n: int, parts: int, activation: str) -> Sizes | None:
    """Return the sizes for act(X W1) W2 with W1 (k, n), n divided into ``parts``; or None."""
    if activation == "gelu":
        return _gelu_sizes(dtype, k, n, parts)
    outer = _largest_cancelling(2 * k)
    stride = _stride(dtype, parts, _left(1))
    size, count = _signals(
        k, min(_limit(dtype) // -(-parts // stride), _BUDGET // n), power=2)
    inner = _largest(n * count * _left(size) * size)
    if not size or not outer or not inner:
        return None
    return Sizes(count, _left(size), size, outer, inner, stride)


def _gelu_sizes(dtype: str, k: int, n: int, parts: int) -> Sizes | None:
    """Return sizes for gelu: exact in short dtypes, where its results are few eighths."""
    outer, inner = _largest_cancelling(2 * k), _largest(n * _GELU_STEPS)
    if k == 2 or not outer or not inner:
        return None
    if dtype not in GELU_INPUT:
        return Sizes(1, 2, _LOUD, outer, 1, exact=False)
    stride = _stride(dtype, parts, _GELU_STEPS)
    size = next(size for size in _SIGNALS
                if -(-parts // stride) * _GELU_STEPS * size <= _limit(dtype))
    return Sizes(1, 2, size, outer, inner, stride)


def _left(size: int) -> int:
    """Return 2 where the size is 1: operands of ones would hide an exchange of their parts."""
    return max(size, 2)


def _largest_cancelling(terms: int) -> int:
    """Return the largest size of both factors of so many terms, 0 if there is none."""
    return next((size for size in _CANCELLING if terms * size**2 <= _BUDGET), 0)


def _largest(terms: int) -> int:
    """Return the largest size of one factor of so many units, 0 if there is none."""
    return next((size for size in _CANCELLING if terms * size <= _BUDGET), 0)


_EXACT_BYTES, _BOUNDED_BYTES, _ACTIVATED_BYTES = 24, 40, 60
"""Bytes of an element of a reference while it is made: exact, with a bound, and through gelu."""
_KEPT_BYTES = 12  # of an element with its bound


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements that one rank holds: on its device the first three, on the host the others.

    Attributes:
        operands: the rank's own operands.
        between: values between operands and result.
        result: the result.
        drawn: whole operands, as they are drawn.
        factors: the factors of one product of the reference.
        checked: the result of the reference.
        inner: the input of the second product of an MLP."""

    operands: int
    between: int
    result: int
    drawn: int
    factors: int
    checked: int
    inner: int = 0


def sizes_of(work: Primitive, ranks: int) -> Sizes | None:
    """Return the sizes of integer operands, or None; sums of a plug-in's primitive are over k."""
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
    sizes = sizes_of(work, ranks)
    return sizes is not None and sizes.exact


def device_bytes(work: Primitive, ranks: int) -> int:
    """Return the bytes of operands and buffers; a result that is returned is there twice.

    So are values between in messages of chunks: as they are sent, and as they arrive."""
    sizes = _elements(work, ranks)
    between = sizes.between * (2 if work.implementation == "chunked_pipeline" else 1)
    return DTYPE_BYTES[work.dtype] * (sizes.operands + between + 2 * sizes.result)


def host_bytes(work: Primitive, ranks: int, *, validate: bool) -> int:
    """Return the bytes of whole operands on the host, and of the reference while it is made."""
    sizes = _elements(work, ranks)
    element = _EXACT_BYTES if is_exact(work, ranks) else _BOUNDED_BYTES
    reference = 16 * sizes.factors + element * sizes.checked
    if sizes.inner:
        reference += _KEPT_BYTES * sizes.inner + _ACTIVATED_BYTES * sizes.inner // ranks
    drawing = 4 * sizes.drawn  # they are drawn as fp32, or as int8 and put in order as int16
    return DTYPE_BYTES[work.dtype] * sizes.drawn + max(drawing, reference if validate else 0)


def product_bytes(work: Primitive, ranks: int) -> int | None:
    """Return bytes of operands and results of the busiest rank's products; None for a plug-in's."""
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

    `comm_only` needs the reference of the product, too, but for a gathering before it."""
    products = 2 if work.primitive == "tp_mlp" else 1
    if work.loads:
        return 4.0 * work.flops
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
    if work.loads:
        return _dispatched(work, ranks)
    return Elements((m + n) * k, m * (k + n), m * n, (m + n) * k, (m + n) * k, m * n)


def _dispatched(work: Primitive, ranks: int) -> Elements:
    """Copies there and back, as sent and as they arrive; experts are drawn one by one."""
    options, loads = dict(work.options), dict(work.loads)
    expert = 2 * work.n * work.k if options["product"] == "mlp" else 0
    own = work.m // ranks * work.k
    rows = work.m * work.k if "all_gather" in work.calls else int(loads["busiest_copies"]) * work.k
    return Elements(own + expert * int(options["experts"]) // ranks, 4 * rows, own,
                    own + expert, own + expert, own)


def _experts(work: Primitive, ranks: int, *, whole: bool, alone: bool) -> Elements:
    """Every rank draws all experts, and may have to hold the tokens of all ranks."""
    m, n, k = work.m, work.n, work.k
    heaviest = m if whole else work.flops // (2 * n * k) if work.flops else m
    own = m // ranks
    weights = k * n * (ranks if whole else 1)
    ended = heaviest * n if alone else own * n
    checked = ended if work.flops else ended + heaviest * k  # comm_only ends with tokens, too
    return Elements(own * k + weights, heaviest * (k + n), ended, m * k + ranks * k * n,
                    heaviest * k + k * n, 2 * checked)
