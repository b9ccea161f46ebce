"""Machine code of compiled functions in files, and how Python calls it.

numba compiles a function together with what it calls into one object file, which a later process gives to LLVM as it
is: to import numba and prepare it would take ten times as long. Such code takes one argument, the address of an array
of 64-bit numbers: room for results and status first, then what the function's own arguments are made of. Of an array
these are the address of its NumPy object and its shape.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import logging
import os
import sys
import tempfile
import zlib
from array import array
from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from rayka.storage.columns import intrinsics
from rayka.storage.columns.intrinsics import llvm

if TYPE_CHECKING:
    from rayka.storage.columns.compiled import CompiledFunction

logger = logging.getLogger(__name__)

Kind: TypeAlias = "str | tuple[type, tuple[Kind, ...]]"
"""What an argument is: `INT`, an array by its type and number of dimensions, or a named tuple of these."""

INT = "int"
RESULT_SLOTS = 2
FIRST_SLOT = RESULT_SLOTS + 2
"""Behind the results are two numbers that numba's calling convention needs."""
_WORD = 8
_ARRAY_DATA = object.__basicsize__
"""Where a NumPy array's object has the address of its data: first of `PyArrayObject` (NumPy's C API, "Array types")."""
_MODE = 0o644
_OTHERS_MAY_WRITE = 0o022
_CALL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_BRIEF_CALL = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class NativeCode:
    """Machine code in memory. `engine` keeps it there."""

    def __init__(self, engine: Any, symbol: str) -> None:
        self._engine = engine
        address = engine.get_function_address(symbol)
        self._call, self._brief_call = _CALL(address), _BRIEF_CALL(address)

    def run(self, slots: array[int], is_brief: bool) -> None:
        """Run it with these arguments and put its results into the first slots; without the GIL unless it is brief."""
        call, (address, _) = self._brief_call if is_brief else self._call, slots.buffer_info()
        if call(address + RESULT_SLOTS * _WORD, address + (RESULT_SLOTS + 1) * _WORD, address):
            raise RuntimeError("compiled code has raised an exception")


class _Stored(NamedTuple):
    """What is in a file: the code, its name, and the state of what it was made from."""

    stamp: str
    symbol: str
    code: bytes

    @classmethod
    def read(cls, path: str, trusted_users: frozenset[int]) -> _Stored | None:
        """None if the file is not there, or not whole, or somebody else may have written it."""
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_uid not in trusted_users or status.st_mode & _OTHERS_MAY_WRITE:
                    return None
                head, code = json.loads(file.readline()), file.read()
            stored = cls(head["stamp"], head["symbol"], code)
            return stored if stored.crc == head["crc"] else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @property
    def crc(self) -> int:
        """Of the code and of the name that it is called by."""
        return zlib.crc32(self.code, zlib.crc32(self.symbol.encode()))

    def write(self, path: str) -> None:
        """Replace the file. Other users may read it: root installs what they run. Raises OSError."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        head = {"stamp": self.stamp, "symbol": self.symbol, "crc": self.crc}
        descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
        try:
            with open(descriptor, "wb") as file:
                file.write(json.dumps(head).encode() + b"\n" + self.code)
                os.fchmod(descriptor, _MODE)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def load_code(function: CompiledFunction, kinds: Sequence[Kind], result_count: int) -> NativeCode | None:
    """The code for arguments of these kinds, from its file or compiled now; None where there can be none."""
    stamp, paths = _stamp(function), _paths(function.function, kinds)
    trusted = frozenset({0, os.geteuid(), os.stat(function.function.__code__.co_filename).st_uid})
    stored = next((found for path in paths if (found := _Stored.read(path, trusted)) and found.stamp == stamp), None)
    if stored is None:
        stored = _compile(function, kinds, result_count, stamp)
        if stored is None:
            return None
        _store(stored, paths)
    binding = llvm()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(stored.code))
    engine.finalize_object()
    return NativeCode(engine, stored.symbol)


def _store(stored: _Stored, paths: Sequence[str]) -> None:
    for path in paths:
        try:
            stored.write(path)
            return
        except OSError as error:
            logger.debug("%s: %s", path, error)


def _target_machine() -> Any:
    """This processor; a new object each time, since an engine keeps the one that it gets for itself."""
    name, features = _cpu()
    target = llvm().Target.from_default_triple()
    return target.create_target_machine(cpu=name, features=features, opt=3, codemodel="jitdefault")


@functools.cache
def _cpu() -> tuple[str, str]:
    binding = llvm()
    return binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


def _paths(function: FunctionType, kinds: Sequence[Kind]) -> list[str]:
    """Where the code may be: beside the source, or in the user's cache where the source must not be changed."""
    import llvmlite

    source = function.__code__.co_filename
    machine = llvmlite.__version__, llvm().get_process_triple(), *_cpu(), _ARRAY_DATA
    what = (function.__module__, function.__qualname__, [str(kind) for kind in kinds], *machine)
    digest = hashlib.sha256(repr(what).encode()).hexdigest()[:16]
    module = os.path.splitext(os.path.basename(source))[0]
    name = f"{module}.{function.__name__}.{sys.implementation.cache_tag}.{digest}.o"
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    beside = os.environ.get("NUMBA_CACHE_DIR") or os.path.join(os.path.dirname(source), "__pycache__")
    of_user = [os.path.join(user_cache, "rayka")] if os.path.isabs(user_cache) else []  # without a home it is not
    return [os.path.join(directory, name) for directory in (beside, *of_user)]


def _stamp(function: CompiledFunction) -> str:
    """The state of the sources of a function and of all that it calls, with constants of other modules."""
    reached = [each.function for each in function.reachable()]
    paths = sorted({__file__, str(intrinsics.__file__), *(each.__code__.co_filename for each in reached)})
    sources = [hashlib.sha256(_content(path)).hexdigest() for path in paths]
    constants = {
        (each.__module__, name, value)
        for each in reached
        for name in each.__code__.co_names
        if isinstance(value := each.__globals__.get(name), int)
    }
    return hashlib.sha256(repr((sources, sorted(constants))).encode()).hexdigest()


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _compile(function: CompiledFunction, kinds: Sequence[Kind], result_count: int, stamp: str) -> _Stored | None:
    """None where the code needs something of numba's at run time."""
    import numba

    entry = _entry(function, kinds, result_count)
    njit: Any = numba.njit
    address = numba.types.CPointer(numba.types.int64)  # type: ignore[no-untyped-call]
    dispatcher = njit((address,), _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(entry)
    (overload,) = dispatcher.overloads.values()
    symbol = overload.fndesc.llvm_func_name
    binding, machine = llvm(), _target_machine()
    module = binding.parse_assembly(overload.library.get_llvm_str())
    for each in module.functions:
        if not each.is_declaration and each.name != symbol:
            each.linkage = "internal"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    options = binding.create_pipeline_tuning_options()
    passes.run(module, binding.create_pass_builder(machine, options))
    declared = [each.name for each in module.functions if each.is_declaration and not each.name.startswith("llvm.")]
    missing = sorted({*declared} - intrinsics.SYMBOLS)
    if missing:
        logger.debug("%s needs %s", function.function.__qualname__, missing)
        return None
    return _Stored(stamp, symbol, machine.emit_object(module))


def _entry(function: CompiledFunction, kinds: Sequence[Kind], result_count: int) -> Any:
    """A function that makes the arguments out of the slots, and puts the results there."""
    names: dict[str, Any] = {"np": np, "array_at": _array_at(), "called": function.borrowing}
    arguments, slot = [], FIRST_SLOT
    for kind in kinds:
        expression, slot = _expression(kind, slot, names)
        arguments.append(expression)
    lines = [f"results = called({', '.join(arguments)})"]
    if result_count == 1:
        lines.append("slots[0] = results")
    elif result_count:
        lines += [f"slots[{number}] = results[{number}]" for number in range(result_count)]
    exec("def entry(slots):\n " + "\n ".join(lines), names)
    return names["entry"]


def _expression(kind: Kind, slot: int, names: dict[str, Any]) -> tuple[str, int]:
    """How an argument is made of the slots from `slot` on, and the slot behind them."""
    if kind == INT:
        return f"slots[{slot}]", slot + 1
    if isinstance(kind, str):
        dtype, dimensions = kind.split(":")
        end = slot + 1 + int(dimensions)
        shape = "".join(f"slots[{number}], " for number in range(slot + 1, end))
        return f"array_at(slots[{slot}], ({shape}), np.{dtype})", end
    made_of, fields = kind
    names[made_of.__name__] = made_of
    arguments = []
    for field in fields:
        expression, slot = _expression(field, slot, names)
        arguments.append(expression)
    return f"{made_of.__name__}({', '.join(arguments)})", slot


def _array_at() -> Any:
    """For compiled code: the array whose NumPy object is at an address, with its shape and type."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic
    from numba.np import arrayobj

    numpy_arrays: Any = arrayobj
    unpacked: Any = cgutils.unpack_tuple

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made, word = signature.return_type, ir.IntType(64)
        array_at, shape = numpy_arrays.make_array(made)(context, builder), unpacked(builder, arguments[1])
        field = builder.inttoptr(builder.add(arguments[0], word(_ARRAY_DATA)), word.as_pointer())
        data = builder.inttoptr(builder.load(field), array_at.data.type)
        strides: list[Any] = []
        step = word(context.get_abi_sizeof(context.get_data_type(made.dtype)))
        for size in reversed(shape):
            strides.insert(0, step)
            step = builder.mul(step, size)
        numpy_arrays.populate_array(array_at, data, shape, strides, strides[-1], None)
        return array_at._getvalue()

    @intrinsic
    def array_at(context: Any, address: Any, shape: Any, dtype: Any) -> Any:
        made = types.Array(dtype.dtype, len(shape), "C")
        return made(address, shape, dtype), generate

    return array_at
