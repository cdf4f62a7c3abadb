"""prefetch_row: asks the processor to fetch a row of an array into its cache before the row is read."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

READ, KEEP, DATA = 0, 3, 1  # arguments of llvm.prefetch


@intrinsic
def prefetch_row(_: Any, array: Any, row: Any) -> Any:
    """Fetches the cache line in which array[row] begins. For numba kernels; a row outside of the array is allowed."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8), ir.IntType(32)
        values = context.make_array(signature.args[0])(context, b, args[0])
        offset = b.mul(args[1], cgutils.unpack_tuple(b, values.strides)[0])
        address = b.gep(b.bitcast(values.data, byte.as_pointer()), [offset])
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), word, word, word])
        function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
        b.call(function, [address, *(ir.Constant(word, value) for value in (READ, KEEP, DATA))])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate
