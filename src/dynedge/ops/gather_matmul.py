"""Matrix products of gathered rows, added to scattered rows: the inner loops of most CPU operators.

A level of the recurrence holds two rows or ten thousand, anywhere in the arena. So these products take lists of
rows, compute up to four of them at once, and keep a block of sums in registers while they go down the matrix, which
stays in the L2 cache (48 KiB at d = 64). One core of an EPYC (Zen 4, AVX-512), float32, d = 64, 24.6 kFLOP per row:

    rows at once              1     2     4
    ns per row              500   270   230        MKL on 2,000 contiguous rows: 250 to 290

Numba's own loops, which cannot keep the sums in registers, took 660, 417 and 370; hence the block in LLVM IR.
A sum starts at zero and runs over the inner index in order, one fused multiply-add after the other, whichever rows
share the block: a row's bits depend neither on its neighbours nor on how rows are divided among threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

_HAS_AVX512 = bool(llvm.get_host_cpu_features().get("avx512f"))
VECTOR_BYTES = 64 if _HAS_AVX512 else 32
BLOCK_VECTORS = 4 if _HAS_AVX512 else 2  # per row: with four rows, the sums take 16 of 32 registers, or 8 of 16
ALLOW_FMA = {"contract"}  # a · b + c may round once; nothing else may be reordered


@compiled(fastmath=ALLOW_FMA)
def add_matmul(
    out: Array, out_col: int, out_rows: Array, x: Array, x_col: int, x_rows: Array, count: int, w: Array
) -> None:
    """out[out_rows[i], out_col:] += x[x_rows[i], x_col:] @ w for i < count.

    All arrays are C-contiguous; no row occurs twice in `out_rows`.
    """
    i = 0
    while i < count:
        if count - i >= 3:  # three rows run as four, the last one twice: both store the same
            last = min(i + 3, count - 1)
            rows = out_rows[i], out_rows[i + 1], out_rows[i + 2], out_rows[last]
            sources = x_rows[i], x_rows[i + 1], x_rows[i + 2], x_rows[last]
            add_matmul_of_rows(out, out_col, rows, x, x_col, sources, w)
            i += 4
        elif count - i == 2:
            add_matmul_of_rows(out, out_col, (out_rows[i], out_rows[i + 1]), x, x_col, (x_rows[i], x_rows[i + 1]), w)
            i += 2
        else:
            add_matmul_of_rows(out, out_col, (out_rows[i],), x, x_col, (x_rows[i],), w)
            i += 1
    inner, columns = w.shape
    for i in range(count):
        for j in range(columns - columns % (VECTOR_BYTES // w.itemsize), columns):
            total = w.dtype.type(0)
            for k in range(inner):
                total += x[x_rows[i], x_col + k] * w[k, j]
            out[out_rows[i], out_col + j] += total


@compiled(fastmath=ALLOW_FMA)
def add_outer(
    out: Array, first: int, last: int, x: Array, x_col: int, x_rows: Array, y: Array, y_rows: Array
) -> None:
    """out[first:last] += x[x_rows, x_col + first : x_col + last].T @ y[y_rows]. All arrays are C-contiguous."""
    c = first
    while c < last:
        if last - c >= 4:
            _add_outer(out, (c, c + 1, c + 2, c + 3), x, x_col, x_rows, y, y_rows)
            c += 4
        else:
            _add_outer(out, (c,), x, x_col, x_rows, y, y_rows)
            c += 1
    columns = y.shape[1]
    for c in range(first, last):
        for j in range(columns - columns % (VECTOR_BYTES // y.itemsize), columns):
            total = y.dtype.type(0)
            for k in range(len(x_rows)):
                total += x[x_rows[k], x_col + c] * y[y_rows[k], j]
            out[c, j] += total


# The columns that fill whole vectors; the callers above compute the remaining few.


@compiled(inline="always")
def add_matmul_of_rows(out: Any, out_col: Any, out_rows: Any, x: Any, x_col: Any, x_rows: Any, w: Any) -> None:
    """As add_matmul, for tuples of up to four rows and the columns of `w` that fill whole vectors."""
    lanes = VECTOR_BYTES // w.itemsize
    j = 0
    while j + BLOCK_VECTORS * lanes <= w.shape[1]:
        _matmul_block(out, out_col, out_rows, x, x_col, x_rows, w, j, BLOCK_VECTORS)
        j += BLOCK_VECTORS * lanes
    while j + lanes <= w.shape[1]:
        _matmul_block(out, out_col, out_rows, x, x_col, x_rows, w, j, 1)
        j += lanes


@compiled(inline="always")
def _add_outer(out: Any, out_rows: Any, x: Any, x_col: Any, x_rows: Any, y: Any, y_rows: Any) -> None:
    lanes = VECTOR_BYTES // y.itemsize
    j = 0
    while j + BLOCK_VECTORS * lanes <= y.shape[1]:
        _outer_block(out, out_rows, x, x_col, x_rows, y, y_rows, j, BLOCK_VECTORS)
        j += BLOCK_VECTORS * lanes
    while j + lanes <= y.shape[1]:
        _outer_block(out, out_rows, x, x_col, x_rows, y, y_rows, j, 1)
        j += lanes


# Blocks of `vectors` whole vectors of columns, starting at column j, generated as LLVM IR.


@intrinsic(prefer_literal=True)
def _matmul_block(
    _: Any, out: Any, out_col: Any, out_rows: Any, x: Any, x_col: Any, x_rows: Any, w: Any, j: Any, vectors: Any
) -> Any:
    """out[out_rows[i], out_col + j:] += x[x_rows[i], x_col:] @ w[:, j:] for all i."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        out, out_col, out_rows, x, x_col, x_rows, w, j, _ = args
        out, x, w = (_Matrix(context, b, signature.args[i], args[i]) for i in (0, 3, 6))
        starts = [b.add(b.mul(row, x.width), x_col) for row in cgutils.unpack_tuple(b, x_rows)]
        targets = [
            out.vectors(row, b.add(out_col, j), vectors.literal_value) for row in cgutils.unpack_tuple(b, out_rows)
        ]
        _accumulate(
            b,
            out,
            targets,
            w.height,
            lambda k: [x.broadcast(b.add(start, k)) for start in starts],
            lambda k: [w.load(address) for address in w.vectors(k, j, vectors.literal_value)],
        )
        return context.get_dummy_value()

    index = types.intp
    return types.void(out, index, out_rows, x, index, x_rows, w, index, vectors), generate


@intrinsic(prefer_literal=True)
def _outer_block(
    _: Any, out: Any, out_rows: Any, x: Any, x_col: Any, x_rows: Any, y: Any, y_rows: Any, j: Any, vectors: Any
) -> Any:
    """out[out_rows[i], j:] += x[x_rows, x_col + out_rows[i]].T @ y[y_rows, j:] for all i."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        out, out_rows, x, x_col, x_rows, y, y_rows, j, _ = args
        out, x, y = (_Matrix(context, b, signature.args[i], args[i]) for i in (0, 2, 5))
        x_rows, y_rows = (_Vector(context, b, signature.args[i], args[i]) for i in (4, 6))
        rows = cgutils.unpack_tuple(b, out_rows)

        def factors(k: Any) -> Any:
            start = b.add(b.mul(x_rows.load_at(k), x.width), x_col)
            return [x.broadcast(b.add(start, row)) for row in rows]

        _accumulate(
            b,
            out,
            [out.vectors(row, j, vectors.literal_value) for row in rows],
            x_rows.length,
            factors,
            lambda k: [y.load(address) for address in y.vectors(y_rows.load_at(k), j, vectors.literal_value)],
        )
        return context.get_dummy_value()

    index = types.intp
    return types.void(out, out_rows, x, index, x_rows, y, y_rows, index, vectors), generate


def _accumulate(
    b: Any, out: Any, targets: Any, length: Any, factors: Callable[..., Any], rows: Callable[..., Any]
) -> None:
    """targets[i][v] += Σ_k factors(k)[i] · rows(k)[v]. LLVM keeps the sums, local variables, in registers."""
    zero = ir.Constant(out.kind, None)
    sums = [[cgutils.alloca_once_value(b, zero) for _ in addresses] for addresses in targets]
    with cgutils.for_range(b, length) as loop:
        row = rows(loop.index)
        for factor, totals in zip(factors(loop.index), sums, strict=True):
            for value, total in zip(row, totals, strict=True):
                product = b.fmul(factor, value, flags=("contract",))
                b.store(b.fadd(b.load(total), product, flags=("contract",)), total)
    stores = [
        (address, b.load(total))
        for pair in zip(targets, sums, strict=True)
        for address, total in zip(*pair, strict=True)
    ]
    for address, value in [(address, b.fadd(out.load(address), total)) for address, total in stores]:
        out.store(value, address)


class _Vector:
    """Code generation for a C-contiguous one-dimensional array."""

    def __init__(self, context: Any, b: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, b, value)
        self.b, self.data, (self.length,) = b, array.data, cgutils.unpack_tuple(b, array.shape)

    def load_at(self, k: Any) -> Any:
        return self.b.load(self.b.gep(self.data, [k]))


class _Matrix:
    """Code generation for a C-contiguous two-dimensional array."""

    def __init__(self, context: Any, b: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, b, value)
        self.b, self.data, (self.height, self.width) = b, array.data, cgutils.unpack_tuple(b, array.shape)
        number = context.get_data_type(kind.dtype)
        self.align = context.get_abi_sizeof(number)  # rows begin anywhere when d is odd
        self.kind = ir.VectorType(number, VECTOR_BYTES // self.align)

    def vectors(self, row: Any, column: Any, count: int) -> list[Any]:
        """Addresses of `count` consecutive vectors."""
        start = self.b.gep(self.data, [self.b.add(self.b.mul(row, self.width), column)])
        first = self.b.bitcast(start, self.kind.as_pointer())
        return [self.b.gep(first, [ir.Constant(ir.IntType(64), v)]) for v in range(count)]

    def load(self, address: Any) -> Any:
        return self.b.load(address, align=self.align)

    def store(self, value: Any, address: Any) -> None:
        self.b.store(value, address, align=self.align)

    def broadcast(self, address: Any) -> Any:
        """The number at an offset, in every lane of a vector."""
        number, nothing = self.b.load(self.b.gep(self.data, [address])), ir.Constant(self.kind, ir.Undefined)
        first = self.b.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), self.kind.count), [0] * self.kind.count)
        return self.b.shuffle_vector(first, nothing, lanes)
