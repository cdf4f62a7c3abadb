"""Products of gathered rows, added to scattered ones: what the levels, and the weights' gradients, are made of.

A level holds two rows or ten thousand, anywhere in the arena. So products take lists of rows, work on up to four
at once, and keep a block of sums in registers while they walk down the matrix, which stays in the second-level
cache (48 KiB at d = 64). One core of an EPYC (Zen 4, AVX-512), float32, d = 64, 24.6 kFLOP a row:

    rows at once              1     2     4
    ns a row                500   270   230        MKL on 2,000 contiguous rows: 250 to 290

Numba's own loops, which cannot keep the sums in registers, took 660, 417 and 370; hence the block in LLVM's IR.
A sum starts at nought and runs over the inner index in order, one fused multiply-add after the other, whatever
rows share the block: a row's bits depend neither on its neighbours nor on how rows are shared between threads.

After a change here, touch every cpu_kernels.py: they have these compiled in, and numba's cache looks at its own
file alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

_WIDE = bool(llvm.get_host_cpu_features().get("avx512f"))
VECTOR_BYTES = 64 if _WIDE else 32
VECTORS = 4 if _WIDE else 2  # a block: with four rows, its sums take 16 of 32 registers, or 8 of 16
FUSE = {"contract"}  # a · b + c may round once; nothing else may move


@compiled(fastmath=FUSE)
def add_products(out: Array, at: int, to: Array, x: Array, since: int, of: Array, count: int, w: Array) -> None:
    """out[to[i], at:] += x[of[i], since:] @ w for i < count. All in C order; no row occurs twice in `to`."""
    i = 0
    while i < count:
        if count - i >= 3:  # three rows as four, the last twice: what is stored twice is the same
            last = min(i + 3, count - 1)
            rows, sources = (to[i], to[i + 1], to[i + 2], to[last]), (of[i], of[i + 1], of[i + 2], of[last])
            _add_products(out, at, rows, x, since, sources, w)
            i += 4
        elif count - i == 2:
            _add_products(out, at, (to[i], to[i + 1]), x, since, (of[i], of[i + 1]), w)
            i += 2
        else:
            _add_products(out, at, (to[i],), x, since, (of[i],), w)
            i += 1
    inner, columns = w.shape
    for i in range(count):
        for j in range(columns - columns % (VECTOR_BYTES // w.itemsize), columns):
            total = w.dtype.type(0)
            for k in range(inner):
                total += x[of[i], since + k] * w[k, j]
            out[to[i], at + j] += total


@compiled(fastmath=FUSE)
def add_outer(out: Array, first: int, last: int, x: Array, since: int, of: Array, y: Array, like: Array) -> None:
    """out[first:last] += x[of, since + first : since + last].T @ y[like]. All in C order."""
    c = first
    while c < last:
        if last - c >= 4:
            _add_outer(out, (c, c + 1, c + 2, c + 3), x, since, of, y, like)
            c += 4
        else:
            _add_outer(out, (c,), x, since, of, y, like)
            c += 1
    columns = y.shape[1]
    for c in range(first, last):
        for j in range(columns - columns % (VECTOR_BYTES // y.itemsize), columns):
            total = y.dtype.type(0)
            for k in range(len(of)):
                total += x[of[k], since + c] * y[like[k], j]
            out[c, j] += total


# All columns but the last few, which fill no vector.


@compiled(inline="always")
def _add_products(out: Any, at: Any, to: Any, x: Any, since: Any, of: Any, w: Any) -> None:
    lanes = VECTOR_BYTES // w.itemsize
    j = 0
    while j + VECTORS * lanes <= w.shape[1]:
        _product_block(out, at, to, x, since, of, w, j, VECTORS)
        j += VECTORS * lanes
    while j + lanes <= w.shape[1]:
        _product_block(out, at, to, x, since, of, w, j, 1)
        j += lanes


@compiled(inline="always")
def _add_outer(out: Any, to: Any, x: Any, since: Any, of: Any, y: Any, like: Any) -> None:
    lanes = VECTOR_BYTES // y.itemsize
    j = 0
    while j + VECTORS * lanes <= y.shape[1]:
        _outer_block(out, to, x, since, of, y, like, j, VECTORS)
        j += VECTORS * lanes
    while j + lanes <= y.shape[1]:
        _outer_block(out, to, x, since, of, y, like, j, 1)
        j += lanes


# Blocks of as many columns as fill some vectors, from column j on. Numba's types come in, LLVM's IR goes out.


@intrinsic(prefer_literal=True)
def _product_block(
    _: Any, out: Any, at: Any, to: Any, x: Any, since: Any, of: Any, w: Any, j: Any, vectors: Any
) -> Any:
    """out[to[i], at + j:] += x[of[i], since:] @ w[:, j:] for all i."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        out, at, to, x, since, of, w, j, _ = args
        out, x, w = (_Table(context, b, signature.args[i], args[i]) for i in (0, 3, 6))
        starts = [b.add(b.mul(row, x.width), since) for row in cgutils.unpack_tuple(b, of)]
        ends = [out.vectors(row, b.add(at, j), vectors.literal_value) for row in cgutils.unpack_tuple(b, to)]
        _accumulate(
            b,
            out,
            ends,
            w.height,
            lambda k: [x.spread(b.add(start, k)) for start in starts],
            lambda k: [w.load(place) for place in w.vectors(k, j, vectors.literal_value)],
        )
        return context.get_dummy_value()

    index = types.intp
    return types.void(out, index, to, x, index, of, w, index, vectors), generate


@intrinsic(prefer_literal=True)
def _outer_block(
    _: Any, out: Any, to: Any, x: Any, since: Any, of: Any, y: Any, like: Any, j: Any, vectors: Any
) -> Any:
    """out[to[i], j:] += x[of, since + to[i]].T @ y[like, j:] for all i."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        out, to, x, since, of, y, like, j, _ = args
        out, x, y = (_Table(context, b, signature.args[i], args[i]) for i in (0, 2, 5))
        of, like = (_List(context, b, signature.args[i], args[i]) for i in (4, 6))
        rows = cgutils.unpack_tuple(b, to)

        def factors(k: Any) -> Any:
            start = b.add(b.mul(of.item(k), x.width), since)
            return [x.spread(b.add(start, row)) for row in rows]

        _accumulate(
            b,
            out,
            [out.vectors(row, j, vectors.literal_value) for row in rows],
            of.length,
            factors,
            lambda k: [y.load(place) for place in y.vectors(like.item(k), j, vectors.literal_value)],
        )
        return context.get_dummy_value()

    index = types.intp
    return types.void(out, to, x, index, of, y, like, index, vectors), generate


def _accumulate(
    b: Any, out: Any, ends: Any, length: Any, factors: Callable[..., Any], rows: Callable[..., Any]
) -> None:
    """ends[i][v] += Σ_k factors(k)[i] · rows(k)[v]. The sums are local variables, which LLVM keeps in registers."""
    nought = ir.Constant(out.kind, None)
    sums = [[cgutils.alloca_once_value(b, nought) for _ in places] for places in ends]
    with cgutils.for_range(b, length) as loop:
        row = rows(loop.index)
        for factor, totals in zip(factors(loop.index), sums, strict=True):
            for value, total in zip(row, totals, strict=True):
                product = b.fmul(factor, value, flags=("contract",))
                b.store(b.fadd(b.load(total), product, flags=("contract",)), total)
    places = [
        (place, b.load(total)) for pair in zip(ends, sums, strict=True) for place, total in zip(*pair, strict=True)
    ]
    for place, value in [(place, b.fadd(out.load(place), total)) for place, total in places]:
        out.store(value, place)


class _List:
    """A one-dimensional array in C order, while code is generated."""

    def __init__(self, context: Any, b: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, b, value)
        self.b, self.data, (self.length,) = b, array.data, cgutils.unpack_tuple(b, array.shape)

    def item(self, k: Any) -> Any:
        return self.b.load(self.b.gep(self.data, [k]))


class _Table:
    """A two-dimensional array in C order, while code is generated."""

    def __init__(self, context: Any, b: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, b, value)
        self.b, self.data, (self.height, self.width) = b, array.data, cgutils.unpack_tuple(b, array.shape)
        number = context.get_data_type(kind.dtype)
        self.align = context.get_abi_sizeof(number)  # rows begin anywhere when d is odd
        self.kind = ir.VectorType(number, VECTOR_BYTES // self.align)

    def vectors(self, row: Any, column: Any, count: int) -> list[Any]:
        """Where some vectors lie, one after the other."""
        start = self.b.gep(self.data, [self.b.add(self.b.mul(row, self.width), column)])
        first = self.b.bitcast(start, self.kind.as_pointer())
        return [self.b.gep(first, [ir.Constant(ir.IntType(64), v)]) for v in range(count)]

    def load(self, place: Any) -> Any:
        return self.b.load(place, align=self.align)

    def store(self, value: Any, place: Any) -> None:
        self.b.store(value, place, align=self.align)

    def spread(self, place: Any) -> Any:
        """One number, in every lane."""
        number, nothing = self.b.load(self.b.gep(self.data, [place])), ir.Constant(self.kind, ir.Undefined)
        first = self.b.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), self.kind.count), [0] * self.kind.count)
        return self.b.shuffle_vector(first, nothing, lanes)
