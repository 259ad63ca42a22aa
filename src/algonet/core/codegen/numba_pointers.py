"""Addresses in Numba kernels: pointers from them, and calls of C functions at them.

Kernels that take addresses in place of arrays start sooner (an array costs a microsecond to hand over) and compile several
times as fast: array types bring slicing, broadcasting and their error messages along. A kernel that is a C function is compiled
once, and not again inside each kernel that calls it.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types  # pyright: ignore[reportAttributeAccessIssue]
from numba.extending import intrinsic


@intrinsic
def pointer_at(typing_context, address, kind):
    """A pointer to numbers of this kind (`float32`, `int32`, ...) at an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(kind.dtype)(types.intp, kind), generate


@intrinsic
def offset(typing_context, pointer, items):
    """The pointer, so many items further on."""

    def generate(context, builder, signature, arguments):
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.intp), generate


@intrinsic
def call_at(typing_context, address, arguments):
    """Call the C function at an address with a tuple of arguments: pointers, integers, reals. It returns nothing."""

    def generate(context, builder, signature, values):
        items = [builder.extract_value(values[1], i) for i in range(len(arguments))]
        kinds = [item.type for item in items]
        function = builder.inttoptr(values[0], ir.FunctionType(ir.VoidType(), kinds).as_pointer())
        builder.call(function, items)
        return context.get_dummy_value()

    return types.void(types.intp, arguments), generate


__all__ = ["call_at", "offset", "pointer_at"]
