"""Which calls of the kernel a sandboxed child may not make: a seccomp filter, for good.

Refused are

* sockets but those of IP and of routing questions; so nobody connects to a Unix socket. A pair of
  connected stream sockets may be made, since it leads nowhere else;
* looking into other processes, tracing, keys, BPF, io_uring, userfaultfd, performance events;
* mounts, namespaces, kernel modules, kexec, clocks, the kernel's log;
* memory that outlives the child or is counted for nobody: System V segments, message queues, and
  (but for drivers of GPUs) memory files;
* links, pipes and devices with a name, which its owner could follow or wait for;
* the set-user and set-group bits, since files that it makes may belong to its owner.

Filters are inherited and need `no_new_privs`. Where the machine is neither x86-64 nor 64-bit Arm,
`refuse_calls` returns False.

Source: Linux, Documentation/userspace-api/seccomp_filter.rst; systemd's RestrictSUIDSGID and
RestrictAddressFamilies.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Iterable

from collage.backends.sandbox.linux import syscall

# Numbers of (x86-64, 64-bit Arm); None where that has no such call. From 424 on they agree.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "unshare": (272, 97),
    "setns": (308, 268),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_secret": (447, 447),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "mknod": (133, None),
    "mknodat": (259, 33),
}
# These look as if the kernel had none, so that libraries go another way.
_ABSENT: dict[str, tuple[int | None, int | None]] = {
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "clone3": (435, 435),  # its flags lie in memory, where a filter cannot look
    "openat2": (437, 437),
}
_MEMORY_FILES: dict[str, tuple[int | None, int | None]] = {"memfd_create": (319, 279)}
# Where the mode is among the arguments, and where the flags are that say whether it counts.
_MODES: dict[str, tuple[tuple[int | None, int | None], int, int | None]] = {
    "chmod": ((90, None), 1, None),
    "fchmod": ((91, 52), 1, None),
    "fchmodat": ((268, 53), 2, None),
    "fchmodat2": ((452, 452), 2, None),
    "creat": ((85, None), 1, None),
    "open": ((2, None), 2, 1),
    "openat": ((257, 56), 3, 2),
}
_SOCKET, _SOCKETPAIR, _CLONE = (41, 198), (53, 199), (56, 220)
_SECCOMP = (317, 277)

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32_CALLS = 0x40000000
_SET_ID_BITS = 0o6000
_MAKES_FILES = 0x40 | 0x400000  # O_CREAT, and the bit of O_TMPFILE alone
_NEW_NAMESPACES = 0x7E020000
_NETLINK = 16
_SOCKET_KIND = 0xF
_SET_FILTER, _KEEP_SPECULATION = 1, 1 << 2

_LOAD, _IS, _AT_LEAST, _HAS, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def filterable() -> bool:
    """True where this machine and kernel can filter calls."""
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return False
    column = _MACHINES[os.uname().machine][0]
    try:
        # An action that every kernel with filters knows: SECCOMP_GET_ACTION_AVAIL, "allow".
        syscall(_SECCOMP[column], 2, 0, struct.pack("<I", _ALLOW))
    except OSError:
        return False
    return True


def refuse_calls(memory_files: bool = False) -> bool:
    """Refuse the calls above to this process and all that it starts, for good.

    Args:
        memory_files: these may be made.

    Returns:
        False where that cannot be done; nothing is refused then.
    """
    if not filterable():
        return False
    column, architecture = _MACHINES[os.uname().machine]
    program = _program(column, architecture, memory_files)
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    kept = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(kept))
    try:
        # Else older kernels slow the processor down in a filtered process.
        syscall(_SECCOMP[column], _SET_FILTER, _KEEP_SPECULATION, header)
    except OSError:
        try:
            syscall(_SECCOMP[column], _SET_FILTER, 0, header)
        except OSError:
            return False
    return True


def _program(column: int, architecture: int, memory_files: bool) -> list[_Instruction]:
    program: list[_Instruction] = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_IS, 1, 0, architecture),
        _refusal(errno.EPERM),
        (_LOAD, 0, 0, 0),  # the number of the call
    ]
    if column == 0:
        program += [(_AT_LEAST, 0, 1, _X32_CALLS), _refusal(errno.ENOSYS)]
    absent = _ABSENT if memory_files else {**_ABSENT, **_MEMORY_FILES}
    for table, code in ((_REFUSED, errno.EPERM), (absent, errno.ENOSYS)):
        for numbers in table.values():
            program += _when(numbers[column], [_refusal(code)])
    program += _when(_SOCKET[column], _sockets())
    program += _when(_SOCKETPAIR[column], _pairs())
    namespaces: list[_Instruction] = [_argument(0), (_HAS, 0, 1, _NEW_NAMESPACES)]
    program += _when(_CLONE[column], [*namespaces, _refusal(errno.EPERM), _ALLOWED])
    for numbers, mode, flags in _MODES.values():
        program += _when(numbers[column], _modes(mode, flags))
    return [*program, _ALLOWED]


_ALLOWED: _Instruction = (_RETURN, 0, 0, _ALLOW)


def _refusal(code: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)


def _argument(position: int) -> _Instruction:
    """Load the lower half of an argument; what is compared here is an int for the kernel."""
    return (_LOAD, 0, 0, 16 + 8 * position)


def _when(number: int | None, block: Iterable[_Instruction]) -> list[_Instruction]:
    """The block, which returns, for one call."""
    inside = list(block)
    return [] if number is None else [(_IS, 0, len(inside), number), *inside]


def _sockets() -> list[_Instruction]:
    return [
        _argument(0),
        (_IS, 5, 0, int(socket.AF_INET)),
        (_IS, 4, 0, int(socket.AF_INET6)),
        (_IS, 0, 2, _NETLINK),
        _argument(2),
        (_IS, 1, 0, 0),  # routing, which lists the machine's addresses
        _refusal(errno.EAFNOSUPPORT),
        _ALLOWED,
    ]


def _pairs() -> list[_Instruction]:
    # An unconnected kind (datagrams) could send to any name.
    return [
        _argument(0),
        (_IS, 0, 4, int(socket.AF_UNIX)),
        _argument(1),
        (_AND, 0, 0, _SOCKET_KIND),
        (_IS, 2, 0, int(socket.SOCK_STREAM)),
        (_IS, 1, 0, int(socket.SOCK_SEQPACKET)),
        _refusal(errno.EPERM),
        _ALLOWED,
    ]


def _modes(mode: int, flags: int | None) -> list[_Instruction]:
    check: list[_Instruction] = [
        _argument(mode),
        (_HAS, 0, 1, _SET_ID_BITS),
        _refusal(errno.EPERM),
        _ALLOWED,
    ]
    if flags is None:
        return check
    return [_argument(flags), (_HAS, 1, 0, _MAKES_FILES), _ALLOWED, *check]
