"""The TCP port of a node, shared by the processes of one broker."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from rayka.errors import ErrorCode, RaykaError

_TIMEOUT_S = 2.0
_RETRY_S = 0.1
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # a program of linux/filter.h: return 0 bytes of every packet


def reserve_port(host: str, port: int, is_running: Callable[[], bool], timeout_s: float = _TIMEOUT_S) -> socket.socket:
    """Bind the port without listening, so that nobody else gets it while none of the node's processes listens.

    One that was chosen for us is in the range of outgoing connections: between the choice and the start of the
    gateways, or while a process starts again, the system would give it to anybody. `is_running` tells whether this
    node's own processes have it, left by a starter that died; then the port is shared with them. Processes that were
    killed keep their sockets for a moment after everything else of them is gone, so a port in use is tried again.
    Raises INVALID_CONFIG if another broker or program has it.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return _claim(host, port)
        except OSError as error:
            if is_running():
                with contextlib.suppress(OSError):
                    return _share(host, port)
            if time.monotonic() > deadline:
                raise _refusal(host, port, error) from error
        time.sleep(_RETRY_S)


def runs_here(socket_dir: str) -> bool:
    """Whether a process of this node's broker listens on its local channel. A cluster may run, and not on this node."""
    for path in glob.glob(os.path.join(glob.escape(socket_dir), "*.sock")):
        with socket.socket(socket.AF_UNIX) as channel:
            channel.setblocking(False)
            if channel.connect_ex(path) in (0, errno.EAGAIN):  # EAGAIN: its backlog is full
                return True
    return False


def free_port(host: str) -> int:
    """A port that nobody uses now. Raises INVALID_CONFIG if the host is none of this machine."""
    try:
        family, address = _address(host, 0)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
            port: int = probe.getsockname()[1]
    except OSError as error:
        raise _refusal(host, 0, error) from error
    return port


def _claim(host: str, port: int) -> socket.socket:
    """Take the port if nobody has it. Raises OSError.

    Two sockets with SO_REUSEADDR may bind one port, but only one of them may listen: of two brokers that start at the
    same moment the kernel refuses one here. Shut down again, the socket stays bound and takes no connections. Clients
    that try to connect meanwhile are not heard, because the kernel would reset their connections here: their system
    tries again a second later. From then on without SO_REUSEADDR, the socket keeps out everybody who binds the port
    without SO_REUSEPORT, as `_claim` does.
    """
    family, address = _address(host, port)
    claimed = socket.socket(family, socket.SOCK_STREAM)
    try:
        claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        claimed.bind(address)
        _drop_packets(claimed)
        claimed.listen()
        claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        claimed.shutdown(socket.SHUT_RD)
    except BaseException:
        claimed.close()
        raise
    return claimed


def _drop_packets(listening: socket.socket) -> None:
    """Let the kernel drop every packet to this socket, where it can (Linux)."""
    if sys.platform == "linux":
        program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def _share(host: str, port: int) -> socket.socket:
    """Bind the port beside the node's processes. Raises OSError if the host has no address."""
    family, address = _address(host, port)
    shared = socket.socket(family, socket.SOCK_STREAM)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    with contextlib.suppress(OSError):  # those processes say what is wrong with it
        shared.bind(address)
    return shared


def _address(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Where to bind; of a name that has several addresses, one of IPv4. Raises OSError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a name that the resolver is not even asked for
        raise OSError(errno.EINVAL, str(error)) from error
    addresses = [(family, address) for family, _, _, _, address in found]
    return min(addresses, key=lambda one: one[0] is not socket.AF_INET)


def _refusal(host: str, port: int, error: OSError) -> RaykaError:
    return RaykaError(ErrorCode.INVALID_CONFIG, f"cannot listen on {host}:{port}: {error.strerror}")
