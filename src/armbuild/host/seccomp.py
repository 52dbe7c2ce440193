"""The system calls that an untrusted program may not make, as a seccomp filter for the kernel.

Classic BPF over ``struct seccomp_data`` (seccomp(2)). What is refused makes namespaces and mounts, looks into
other processes, or reaches kernel code that an inference server has no use for: docker refuses the same.
"""

from __future__ import annotations

import errno
import struct

from armbuild.errors import MissingError

# linux/audit.h; (x86-64, all other 64-bit machines: asm-generic/unistd.h) of each call
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}
REFUSED = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "modify_ldt": (154, None),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
NUMBER, ARCHITECTURE, FIRST, SECOND, THIRD = 0, 4, 16, 24, 32
CLONE, IOCTL, SOCKET, SOCKETPAIR, CLONE3 = (56, 220), (16, 29), (41, 198), (53, 199), (435, 435)
FCNTL = (72, 25)
FALLOCATE = (285, 47)
SET_FLAGS, SET_LEASE = 4, 1024
# O_DIRECT: who reads the same open file would need aligned memory for it.
DIRECT = {"x86_64": 0x4000, "aarch64": 0x10000, "riscv64": 0x4000}
SET_ATTRIBUTES = ((188, 5), (189, 6), (190, 7), (463, 463))
"""setxattr, lsetxattr, fsetxattr, setxattrat: a list of rights (ACL) is a mode, too."""
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET (linux/sched.h)
# TIOCSTI, TIOCLINUX (asm-generic/ioctls.h): text for the shell outside. FS_IOC_RESVSP, RESVSP64, ZERO_RANGE
# (linux/falloc.h): space behind the end of a file.
REQUESTS = (0x5412, 0x541C, 0x40305828, 0x4030582A, 0x40305839)
CHANGES_OF_MODE = ((90, None, SECOND), (91, 52, SECOND), (268, 53, THIRD), (452, 452, THIRD))
"""chmod, fchmod, fchmodat, fchmodat2, and where their mode is: output goes to a file of the caller."""
SET_USER, SET_GROUP, OWNER_READS = 0o4000, 0o2000, 0o400
FAMILIES = (1, 2, 10, 16)  # AF_UNIX, INET, INET6, NETLINK; AF_VSOCK and others know no network namespace
PROTOCOLS = (0, 1, 6, 17, 58)
"""The usual one, ICMP, TCP, UDP, ICMPv6. For others the kernel may load modules."""
X32 = 0x40000000  # x86-64's second table of calls
# BPF_LD|W|ABS, JMP|JEQ|K, JMP|JGE|K, JMP|JSET|K, RET|K
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
Instruction = tuple[int, int, int, int]
"""Code, how many to jump over when true, when false, and a constant."""
_ALLOW, _KILL = (_RETURN, 0, 0, 0x7FFF0000), (_RETURN, 0, 0, 0x80000000)


def program(machine: str, *, modes: int = SET_USER | SET_GROUP) -> bytes:
    """Return the filter for ``machine`` (as ``platform.machine()`` says); MissingError for an unknown one.

    No file gets a bit of ``modes``, or loses that of its owner to read: the caller reads what it printed. For
    the same reason there are no leases, which let a reader wait, and no attributes. No file gets space behind
    its end, for which RLIMIT_FSIZE does not count.
    """
    if machine not in ARCHITECTURES:
        raise MissingError(f"there is no filter of system calls for {machine}, which a sandbox needs")
    column = 0 if machine == "x86_64" else 1
    code = [
        (_LOAD, 0, 0, ARCHITECTURE),
        *((_EQUAL, 1, 0, ARCHITECTURES[machine]), _KILL),
        (_LOAD, 0, 0, NUMBER),
        *((_AT_LEAST, 0, 1, X32), _KILL),
    ]
    for numbers in REFUSED.values():
        if (number := numbers[column]) is not None:
            code += _call(number, _error(errno.EPERM))
    # glibc falls back to clone, whose flags a filter can read, where clone3 is unknown
    code += _call(CLONE3[column], _error(errno.ENOSYS))
    flags = (_LOAD, 0, 0, FIRST), (_ANY_BIT, 0, 1, NEW_NAMESPACES)
    code += _call(CLONE[column], *flags, _error(errno.EPERM), _ALLOW)
    request = [(_EQUAL, len(REQUESTS) - index, 0, known) for index, known in enumerate(REQUESTS)]
    code += _call(IOCTL[column], (_LOAD, 0, 0, SECOND), *request, _ALLOW, _error(errno.EPERM))
    # as a file system without it answers
    plain = (_LOAD, 0, 0, SECOND), (_EQUAL, 1, 0, 0), _error(errno.EOPNOTSUPP), _ALLOW
    code += _call(FALLOCATE[column], *plain)
    for changing in CHANGES_OF_MODE:
        if (number := changing[column]) is not None:
            mode = (_LOAD, 0, 0, changing[2]), (_ANY_BIT, 1, 0, modes), (_ANY_BIT, 1, 0, OWNER_READS)
            code += _call(number, *mode, _error(errno.EPERM), _ALLOW)
    for setting in SET_ATTRIBUTES:  # as a file system without them answers
        code += _call(setting[column], _error(errno.EOPNOTSUPP))
    lease = (_LOAD, 0, 0, SECOND), (_EQUAL, 0, 1, SET_LEASE), _error(errno.EPERM), (_EQUAL, 0, 3, SET_FLAGS)
    direct = (_LOAD, 0, 0, THIRD), (_ANY_BIT, 0, 1, DIRECT[machine]), _error(errno.EINVAL)
    code += _call(FCNTL[column], *lease, *direct, _ALLOW)
    family = [(_EQUAL, len(FAMILIES) - index, 0, known) for index, known in enumerate(FAMILIES)]
    protocol = [(_EQUAL, len(PROTOCOLS) - index, 0, known) for index, known in enumerate(PROTOCOLS)]
    known_family = (_LOAD, 0, 0, FIRST), *family, _error(errno.EAFNOSUPPORT)
    known_protocol = (_LOAD, 0, 0, THIRD), *protocol, _error(errno.EPROTONOSUPPORT)
    for call in (SOCKET, SOCKETPAIR):
        code += _call(call[column], *known_family, *known_protocol, _ALLOW)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in [*code, _ALLOW])


def _call(number: int, *body: Instruction) -> list[Instruction]:
    """Return ``body`` for the system call ``number``; others jump over it."""
    return [(_EQUAL, 0, len(body), number), *body]


def _error(number: int) -> Instruction:
    return (_RETURN, 0, 0, 0x00050000 | number)  # SECCOMP_RET_ERRNO
