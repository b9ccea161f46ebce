"""What compiled functions can call of the processor, of C's library and of the system."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, cast


class Intrinsic:
    """Something that only compiled functions can call; they take it from the globals of their module."""

    def __call__(self, *arguments: Any) -> Any:
        """What type checkers see of it."""
        raise TypeError(f"only compiled code can call {self!r}")

    @functools.cached_property
    def intrinsic(self) -> Any:
        """It as numba has it."""
        from numba.extending import intrinsic

        return intrinsic(self._typing())

    def _typing(self) -> Callable[..., Any]:
        """From numba's types of the arguments, the signature and the function that generates the code."""
        raise NotImplementedError


class Instruction(Intrinsic):
    """An instruction of some processors, on two 64-bit numbers and with one as its result.

    `name` is that of LLVM's function for it, and `feature` LLVM's word for what a processor must have.
    """

    def __init__(self, name: str, feature: str) -> None:
        self._name = name
        self._feature = feature

    def __repr__(self) -> str:
        return self._name

    @property
    def is_available(self) -> bool:
        """Whether this processor has it. LLVM ends the process when numba is told to compile for one that has not."""
        is_for_another = os.environ.keys() & {"NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"}
        return not is_for_another and bool(llvm().get_host_cpu_features().get(self._feature))

    def _typing(self) -> Callable[..., Any]:
        from llvmlite import ir
        from numba import types

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = ir.IntType(64)
            function = builder.module.declare_intrinsic(self._name, fnty=ir.FunctionType(word, [word, word]))
            return builder.call(function, arguments)

        def typing(context: Any, first: Any, second: Any) -> Any:
            return types.uint64(types.uint64, types.uint64), generate

        return typing


class BlockCopy(Intrinsic):
    """C's `memcpy`, which takes a half to a quarter of the time of a loop that the compiler makes.

    Its arguments are an array of bytes and the position in it to copy to, another array and the position in it, and
    how many bytes: none if that is negative.
    """

    def __repr__(self) -> str:
        return "memcpy"

    def _typing(self) -> Callable[..., Any]:
        from llvmlite import ir
        from numba import types
        from numba.np import arrayobj

        numpy_arrays: Any = arrayobj

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word, byte = ir.IntType(64), ir.IntType(8).as_pointer()
            ends = []
            for number in (0, 2):
                array = numpy_arrays.make_array(signature.args[number])(context, builder, arguments[number])
                ends.append(builder.gep(array.data, [arguments[number + 1]]))
            length = arguments[4]
            is_some = builder.icmp_signed(">", length, word(0))
            length = builder.select(is_some, length, word(0))
            function = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, word])
            builder.call(function, [*ends, length, ir.IntType(1)(0)])
            return context.get_dummy_value()

        def typing(context: Any, target: Any, position: Any, source: Any, start: Any, length: Any) -> Any:
            number = types.int64
            return types.void(target, number, source, number, number), generate

        return typing


class LineCopy(Intrinsic):
    """Copy 64 bytes to memory, past the caches: what the lines of the target held is not read before.

    Its arguments are those of `BlockCopy` without the size. The target's address must be a multiple of 64.
    """

    def __repr__(self) -> str:
        return "a nontemporal store"

    def _typing(self) -> Callable[..., Any]:
        from llvmlite import ir
        from numba import types
        from numba.np import arrayobj

        numpy_arrays: Any = arrayobj

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            line = ir.VectorType(ir.IntType(8), 64).as_pointer()
            ends = []
            for number in (0, 2):
                array = numpy_arrays.make_array(signature.args[number])(context, builder, arguments[number])
                ends.append(builder.bitcast(builder.gep(array.data, [arguments[number + 1]]), line))
            store = builder.store(builder.load(ends[1], align=1), ends[0], align=64)
            store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
            return context.get_dummy_value()

        def typing(context: Any, target: Any, position: Any, source: Any, start: Any) -> Any:
            return types.void(target, types.int64, source, types.int64), generate

        return typing


class Address(Intrinsic):
    """Where an array is in memory."""

    def __repr__(self) -> str:
        return "an address"

    def _typing(self) -> Callable[..., Any]:
        from llvmlite import ir
        from numba import types
        from numba.np import arrayobj

        numpy_arrays: Any = arrayobj

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = numpy_arrays.make_array(signature.args[0])(context, builder, arguments[0])
            return builder.ptrtoint(array.data, ir.IntType(64))

        def typing(context: Any, array: Any) -> Any:
            return types.int64(array), generate

        return typing


class BytesAt(Intrinsic):
    """The bytes at an address as an array. Its arguments are the address and how many bytes there are."""

    def __repr__(self) -> str:
        return "bytes at an address"

    def _typing(self) -> Callable[..., Any]:
        from llvmlite import ir
        from numba import types
        from numba.np import arrayobj

        numpy_arrays: Any = arrayobj

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array, word = numpy_arrays.make_array(signature.return_type)(context, builder), ir.IntType(64)
            data = builder.inttoptr(arguments[0], array.data.type)
            numpy_arrays.populate_array(array, data, [arguments[1]], [word(1)], word(1), None)
            return array._getvalue()

        def typing(context: Any, address: Any, size: Any) -> Any:
            return types.Array(types.uint8, 1, "C")(types.int64, types.int64), generate

        return typing


class Prefetch(Intrinsic):
    """Let the processor load a line of memory that is read soon.

    Its arguments are an array and a position, which may also be outside.
    """

    def __repr__(self) -> str:
        return "a prefetch"

    def _typing(self) -> Callable[..., Any]:
        from llvmlite import ir
        from numba import types
        from numba.np import arrayobj

        numpy_arrays: Any = arrayobj

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            array = numpy_arrays.make_array(signature.args[0])(context, builder, arguments[0])
            kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
            function = builder.module.declare_intrinsic("llvm.prefetch", [byte], fnty=kind)
            is_read, is_for_all_caches, is_data = number(0), number(3), number(1)
            builder.call(function, [builder.gep(array.data, [arguments[1]]), is_read, is_for_all_caches, is_data])
            return context.get_dummy_value()

        def typing(context: Any, data: Any, position: Any) -> Any:
            return types.void(data, types.int64), generate

        return typing


class SystemFunction(Intrinsic):
    """A function of the system whose arguments and result are numbers of 64 or 32 bits; addresses are numbers too.

    It takes its arguments as one tuple.
    """

    def __init__(self, symbol: str, result_bits: int, argument_bits: Sequence[int]) -> None:
        self.symbol = symbol
        self._result_bits = result_bits
        self._argument_bits = argument_bits

    def __repr__(self) -> str:
        return self.symbol

    @property
    def is_available(self) -> bool:
        """Whether the system has it. LLVM ends the process when it loads code that calls one that is not there."""
        return hasattr(ctypes.CDLL(None), self.symbol)

    def _typing(self) -> Callable[..., Any]:
        from llvmlite import ir
        from numba import types
        from numba.core import cgutils

        helpers: Any = cgutils
        tuple_of, count = cast(Any, types.UniTuple), len(self._argument_bits)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = [ir.IntType(bits) for bits in self._argument_bits]
            kind = ir.FunctionType(ir.IntType(self._result_bits), kinds)
            function = helpers.get_or_insert_function(builder.module, kind, self.symbol)
            given = helpers.unpack_tuple(builder, arguments[0], count)
            numbers = [builder.trunc(number, kind) for number, kind in zip(given, kinds, strict=True)]
            return builder.sext(builder.call(function, numbers), ir.IntType(64))

        def typing(context: Any, arguments: Any) -> Any:
            return types.int64(tuple_of(types.int64, count)), generate

        return typing


copy_block = BlockCopy()
copy_line = LineCopy()
address_of = Address()
bytes_at = BytesAt()
prefetch = Prefetch()
map_memory = SystemFunction("mmap", 64, [64, 64, 32, 32, 32, 64])
unmap_memory = SystemFunction("munmap", 32, [64, 64])
advise = SystemFunction("madvise", 32, [64, 64, 32])
read_vector = SystemFunction("preadv2", 64, [32, 64, 32, 64, 32])
SYMBOLS = frozenset(each.symbol for each in (map_memory, unmap_memory, advise, read_vector))
"""Functions of the system that compiled code calls."""


@functools.cache
def llvm() -> Any:
    """LLVM's binding, for code of this processor."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding
