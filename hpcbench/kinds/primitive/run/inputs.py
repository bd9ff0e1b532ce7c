"""The operands of each primitive on a rank, and the expected results: one class a primitive.

`plan.implementations` describes each of them."""

from __future__ import annotations

import math

import torch

from hpcbench.kinds.primitive.plan.demands import sizes_of
from hpcbench.kinds.primitive.plan.implementations import tokens_of_experts
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run import operands
from hpcbench.operations.data import DTYPES
from hpcbench.operations.place import Place


class Inputs:
    """The operands of a primitive on one rank; subclasses name them.

    Every operand is on the place's device and contiguous, and nothing changes it. ``unsharded``:
    a rank multiplies everything (compute_only, size unsharded). Operands are integers with exact
    results (`operands`), normal numbers where there are none."""

    def __init__(self, spec: Primitive, place: Place) -> None:
        self.spec = spec
        self.place = place
        self.dtype = DTYPES[spec.dtype]
        self.unsharded = dict(spec.options).get("size") == "unsharded"
        self._sizes = sizes_of(spec, place.world_size)
        self._exact = self._sizes is not None and self._sizes.exact

    def factors(
        self, left: tuple[int, ...], right: tuple[int, int], *, parts: int, copies: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a left operand (..., inner), and right ones (copies, inner, columns)."""
        sizes, dtype = self._sizes, self.spec.dtype
        if sizes is None:
            return (operands.left_operand(left, dtype, 0, seed=1),
                    operands.right_operand((copies, *right), dtype, 0, seed=2))
        terms = operands.cancelling_terms(right[0], parts, sizes.signals, seed=3)
        rights = [operands.right_factors(right, terms, sizes, dtype, seed=2, first=copy)
                  for copy in range(copies)]
        return operands.left_factors(left, terms, sizes, dtype, seed=1), torch.stack(rights)

    def expected(self, part: str) -> operands.Expected:
        """Return the result on this rank of ``both``, ``compute`` or ``communicate``."""
        raise NotImplementedError

    def here(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().to(self.place.device)

    def own(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Return this rank's even part of a global tensor along a dimension."""
        return self.parts(tensor, dim)[self.place.rank]

    def parts(self, tensor: torch.Tensor, dim: int) -> list[torch.Tensor]:
        """Return every rank's even part of a global tensor along a dimension."""
        return list(tensor.chunk(self.place.world_size, dim))


class ColumnwiseInputs(Inputs):
    """``rows`` (m / d, k) of A, and ``weight``: (k, n / d) of W, or all of it (k, n).

    ``gather_first``: the order is AG_before. ``compute_only`` multiplies ``left`` by ``weight``;
    ``comm_only`` gathers ``sent``."""

    def __init__(self, spec: Primitive, place: Place) -> None:
        super().__init__(spec, place)
        self._a, (weight,) = self.factors((spec.m, spec.k), (spec.k, spec.n), parts=1)
        self.gather_first = spec.order == "AG_before"
        sharded = (self.gather_first and spec.option("weight") == "sharded"
                   and not self.unsharded)
        self._weight = self.own(weight, 1) if sharded else weight
        self.rows = self.here(self.own(self._a, 0))
        self.weight = self.here(self._weight)
        self._left = self._a if self.gather_first or self.unsharded else self.own(self._a, 0)

    @property
    def left(self) -> torch.Tensor:
        """Return the left operand of the product alone: all of A, or this rank's rows."""
        return self.here(self._left)

    @property
    def sent(self) -> torch.Tensor:
        """Return the input of the gathering alone: rows of A, or of C."""
        return self.rows if self.gather_first else self.rows @ self.weight

    def expected(self, part: str) -> operands.Expected:
        """Return C or this rank's columns of it; its product; or the result of the gathering."""
        if part == "communicate" and self.gather_first:
            return operands.Expected(self._a.double())
        left = self._left if part == "compute" else self._a
        return operands.product([(left, self._weight)], self.spec.dtype, exact=self._exact)


class RowwiseInputs(Inputs):
    """``columns`` (m, k / d) of A, and ``weight`` (k / d, n): rows of W.

    ``scatter``: the order is RS_after, the result (m / d, n); otherwise it is (m, n). Unsharded,
    both operands are whole, (m, k) and (k, n). ``compute_only`` multiplies ``columns`` by
    ``weight`` and ends with (m, n); ``comm_only`` reduces ``sent``."""

    def __init__(self, spec: Primitive, place: Place) -> None:
        super().__init__(spec, place)
        self._a, (self._w,) = self.factors(
            (spec.m, spec.k), (spec.k, spec.n), parts=place.world_size)
        self.scatter = spec.order == "RS_after"
        self._columns = self._a if self.unsharded else self.own(self._a, 1)
        self._weight = self._w if self.unsharded else self.own(self._w, 0)
        self.columns = self.here(self._columns)
        self.weight = self.here(self._weight)

    @property
    def sent(self) -> torch.Tensor:
        """Return the input of the reduction alone: this rank's partial sum of C, (m, n)."""
        return self.columns @ self.weight

    def expected(self, part: str) -> operands.Expected:
        """Return C or this rank's rows of it; or, for ``compute``, the product on this rank."""
        if part == "compute":
            return operands.product([(self._columns, self._weight)], self.spec.dtype,
                                    exact=self._exact)
        rows = self.own(self._a, 0) if self.scatter else self._a
        parts = list(zip(self.parts(rows, 1), self.parts(self._w, 0), strict=True))
        return operands.product(parts, self.spec.dtype, exact=self._exact)


class MlpInputs(Inputs):
    """``tokens`` of X, ``up`` (k, n / d): columns of W1, and ``down`` (n / d, k): rows of W2.

    ``sequence_parallel``: tokens are this rank's rows (m / d, k), and so is the result; otherwise
    (order AR_after) both are (m, k). ``activate`` changes a tensor in place. Unsharded, ``up`` and
    ``down`` are whole, (k, n) and (n, k). ``compute_only`` takes ``left`` (m, k) through both
    products and ends with (m, k). ``comm_only`` gathers ``tokens`` under ``sequence_parallel``,
    reduces ``sent``, and ends with one below the other: (m + m / d, k), or (m, k).

    Normal operands have W1 divided by sqrt(k): the input of gelu is then about 1, where it differs
    from relu."""

    def __init__(self, spec: Primitive, place: Place) -> None:
        super().__init__(spec, place)
        self._name = str(spec.option("activation"))
        self._x, self._up, self._down = self._operands()
        self.sequence_parallel = spec.order == "sequence_parallel"
        self.activate: operands.Activation = operands.IN_PLACE[self._name]
        self.tokens = self.here(self.own(self._x, 0) if self.sequence_parallel else self._x)
        self._own_up = self._up if self.unsharded else self.own(self._up, 1)
        self._own_down = self._down if self.unsharded else self.own(self._down, 0)
        self.up = self.here(self._own_up)
        self.down = self.here(self._own_down)

    def _operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        spec, sizes, dtype = self.spec, self._sizes, self.spec.dtype
        if sizes is None:
            return (operands.left_operand((spec.m, spec.k), dtype, 0, seed=1),
                    operands.right_operand((spec.k, spec.n), dtype, 0, seed=2) / math.sqrt(spec.k),
                    operands.right_operand((spec.n, spec.k), dtype, 0, seed=3))
        terms, up, down = operands.mlp_factors(
            spec.k, spec.n, self.place.world_size, sizes, dtype, self._name)
        return operands.left_factors((spec.m, spec.k), terms, sizes, dtype, seed=1), up, down

    @property
    def left(self) -> torch.Tensor:
        """Return the left operand of the products alone: all of X, (m, k)."""
        return self.here(self._x)

    @property
    def sent(self) -> torch.Tensor:
        """Return the input of the reduction alone: this rank's partial sum of Y, (m, k)."""
        return self.activate(self.left @ self.up) @ self.down

    def expected(self, part: str) -> operands.Expected:
        """Return Y or this rank's rows; this rank's products; or the result of communication."""
        if part == "compute":
            return self._through(self._x, [self._own_up], [self._own_down])
        rows = self.own(self._x, 0) if self.sequence_parallel else self._x
        reduced = self._through(rows, self.parts(self._up, 1), self.parts(self._down, 0))
        if part == "communicate" and self.sequence_parallel:
            return operands.joined([operands.Expected(self._x.double()), reduced])
        return reduced

    def _through(
        self, rows: torch.Tensor, ups: list[torch.Tensor], downs: list[torch.Tensor],
    ) -> operands.Expected:
        """Return act(rows W1) W2, summed over pairs of columns of W1 and rows of W2."""
        inner = [self._activated(rows, up) for up in ups]
        parts = [(item.value, down) for item, down in zip(inner, downs, strict=True)]
        return operands.product(parts, self.spec.dtype, exact=self._exact,
                                errors=[item.bound for item in inner])

    def _activated(self, rows: torch.Tensor, up: torch.Tensor) -> operands.Expected:
        """Return act(rows W1); exact results are those of the dtype, bound to be rounded so."""
        before = operands.product([(rows, up)], self.spec.dtype, exact=self._sizes is not None)
        behind = operands.activated(before, self._name, self.spec.dtype)
        return operands.Expected(behind.value.to(self.dtype).double()) if self._exact else behind


class GradientInputs(Inputs):
    """``tokens`` (m / d, k): rows of X, which all layers share, and ``gradients`` of each layer.

    ``gradients`` (layers, m / d, n) are those of the layers' outputs, D. The result is
    (layers, n, k): D^T X of each layer. Unsharded, both operands have all m rows. ``compute_only``
    ends with this rank's own sum, ``comm_only`` reduces ``sent``."""

    def __init__(self, spec: Primitive, place: Place) -> None:
        super().__init__(spec, place)
        self.layers = int(spec.option("layers"))
        turned, (self._x,) = self.factors(
            (self.layers, spec.n, spec.m), (spec.m, spec.k), parts=place.world_size)
        self._d = turned.mT
        self._tokens = self._x if self.unsharded else self.own(self._x, 0)
        self._gradients = self._d if self.unsharded else self.own(self._d, 1)
        self.tokens = self.here(self._tokens)
        self.gradients = self.here(self._gradients)

    @property
    def sent(self) -> torch.Tensor:
        """Return the input of the reduction alone: this rank's sums, (layers, n, k)."""
        return self.gradients.mT @ self.tokens

    def expected(self, part: str) -> operands.Expected:
        """Return the gradients of all weights, over all tokens, or this rank's for ``compute``."""
        if part == "compute":
            pairs = [(self._gradients.mT, self._tokens)]
        else:
            pairs = [(own.mT, tokens) for own, tokens in
                     zip(self.parts(self._d, 1), self.parts(self._x, 0), strict=True)]
        return operands.product(pairs, self.spec.dtype, exact=self._exact)


class ExpertInputs(Inputs):
    """``tokens`` (m / d, k): this rank's, sorted by expert, and ``weight`` (k, n) of its expert.

    ``counts``: the tokens that a rank sends to each expert, the same on every rank. ``received``:
    how many come from each rank, all ``counts`` of this rank's expert; ``arriving`` is their sum.
    The result is (m / d, n), in the order of ``tokens``. ``compute_only`` takes each pair of
    ``products`` and ends with the results one below the other; ``comm_only`` sends ``tokens`` and,
    back, ``sent``, and ends with what arrived, (arriving, k) and then (m / d, n), as one row of
    numbers."""

    def __init__(self, spec: Primitive, place: Place) -> None:
        super().__init__(spec, place)
        ranks = place.world_size
        self._x, self._experts = self.factors(
            (spec.m, spec.k), (spec.k, spec.n), parts=1, copies=ranks)
        self.counts = list(
            tokens_of_experts(str(spec.option("split")), ranks, spec.m // ranks))
        self.received = [self.counts[place.rank]] * ranks
        self.arriving = sum(self.received)
        self.tokens = self.here(self.own(self._x, 0))
        self.weight = self.here(self._experts[place.rank])

    @property
    def products(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the (tokens, weight) of this rank's expert, unsharded of every expert."""
        return [(self.here(tokens), self.here(weight)) for tokens, weight in self._products()]

    @property
    def sent(self) -> torch.Tensor:
        """Return the rows that communication alone sends back: this expert's, (arriving, n)."""
        return self.here(self._arrived(self.place.rank)) @ self.weight

    def expected(self, part: str) -> operands.Expected:
        """Return this rank's results; those of the products; or all that it received."""
        if part == "compute":
            return self._multiplied(self._products())
        split = self.own(self._x, 0).split(self.counts)
        results = self._multiplied(list(zip(split, self._experts, strict=True)))
        if part == "communicate":
            arrived = operands.Expected(self._arrived(self.place.rank).double())
            return operands.joined([arrived.flat(), results.flat()])
        return results

    def _arrived(self, expert: int) -> torch.Tensor:
        return torch.cat([tokens.split(self.counts)[expert] for tokens in self.parts(self._x, 0)])

    def _products(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        experts = range(self.place.world_size) if self.unsharded else [self.place.rank]
        return [(self._arrived(expert), self._experts[expert]) for expert in experts]

    def _multiplied(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> operands.Expected:
        return operands.joined([operands.product([pair], self.spec.dtype, exact=self._exact)
                                for pair in pairs])
