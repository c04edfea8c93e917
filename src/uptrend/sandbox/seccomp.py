"""A filter of system calls, as the kernel takes it: 8 bytes per instruction of classic BPF.

It refuses what a small machine-learning program never needs and what holes in the kernel are
reached by, what would let a command slow or end the agent, which has the same user, and the ways to
hold memory that no process is seen to have: memfd_create, SysV's shared memory, messages and
semaphores, pages given to a pipe, mappings that are shared and anonymous or of huge pages, and the
buffers of all sockets but Unix's. Everything else is allowed.
"""

import platform
import struct

# By call: its number on x86_64 and on aarch64 (0: not there). From 424 on they are the same.
REFUSED = """
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, pidfd_getfd 438 438, mount 165 40,
umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428, move_mount 429 429, fsopen 430 430,
fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442, unshare 272 97, setns 308 268,
open_by_handle_at 304 265, keyctl 250 219, add_key 248 217, request_key 249 218, bpf 321 280, perf_event_open 298 241,
userfaultfd 323 282, io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, memfd_create 319 279,
memfd_secret 447 447, shmget 29 194, msgget 68 186, semget 64 190, vmsplice 278 75, init_module 175 105,
finit_module 313 273, delete_module 176 106, kexec_load 246 104, kexec_file_load 320 294, reboot 169 142,
syslog 103 116, modify_ldt 154 0, setpriority 141 140, sched_setscheduler 144 119, sched_setparam 142 118,
sched_setattr 314 274, ioprio_set 251 30
"""
CLONE = (56, 220)
MMAP = (9, 222)
PRLIMIT = (302, 261)
SOCKET = (41, 198)
SOCKETPAIR = (53, 199)
# what is newer is refused as on an older kernel, for which programs are prepared
CLONE3 = 435
NEWEST = 462
NAMESPACES = 0x7E020000  # every CLONE_NEW…
MAP_SHARED = 0x1
MAP_ANONYMOUS = 0x20
MAP_HUGETLB = 0x40000
# Column above, AUDIT_ARCH_…; arm64 is macOS's word, whose containers run on Linux.
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7), "arm64": (1, 0xC00000B7)}
UNIX = 1  # family of sockets
# as numbers, since those of macOS differ
EPERM = 1
ENOSYS = 38
EAFNOSUPPORT = 97

LOAD = 0x20
AND_JUMP = 0x45
EQUAL = 0x15
AT_LEAST = 0x35
RETURN = 0x06
ALLOW = 0x7FFF0000
KILL = 0x80000000
REFUSE = 0x00050000
# Offsets in struct seccomp_data, of arguments the low half.
NUMBER = 0
ARCHITECTURE = 4
FIRST_ARGUMENT = 16
FOURTH_ARGUMENT = 40


def make_filter(machine: str = platform.machine()) -> bytes:
    """Return the filter for a kind of machine; empty for other machines."""
    if machine not in MACHINES:
        return b""
    column, architecture = MACHINES[machine]
    code: list[tuple[int, int, int, int]] = []  # operation, jump if true, jump if false, operand

    def refuse(error: int) -> tuple[int, int, int, int]:
        return RETURN, 0, 0, REFUSE | error

    code += [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    # Above the newest are also x86_64's x32 calls, a second set of numbers for everything.
    code += [(AT_LEAST, 0, 1, NEWEST + 1), refuse(ENOSYS), (EQUAL, 0, 1, CLONE3), refuse(ENOSYS)]
    numbers = [int(call.split()[1 + column]) for call in REFUSED.split(",")]
    for number in filter(None, numbers):
        code += [(EQUAL, 0, 1, number), refuse(EPERM)]
    code += [
        (EQUAL, 0, 4, CLONE[column]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (AND_JUMP, 0, 1, NAMESPACES),
    ]
    code += [refuse(EPERM), (RETURN, 0, 0, ALLOW)]
    # Limits of itself alone: any process of the same user could take the agent's open files or its
    # time.
    code += [(EQUAL, 0, 4, PRLIMIT[column]), (LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 1, 0, 0)]
    code += [refuse(EPERM), (RETURN, 0, 0, ALLOW)]
    # A shared mapping keeps its pages when its process drops them, or all of it but one page.
    code += [
        (EQUAL, 0, 6, MMAP[column]),
        (LOAD, 0, 0, FOURTH_ARGUMENT),
        (AND_JUMP, 2, 0, MAP_HUGETLB),
    ]
    code += [(AND_JUMP, 0, 2, MAP_SHARED), (AND_JUMP, 0, 1, MAP_ANONYMOUS)]
    code += [refuse(EPERM), (RETURN, 0, 0, ALLOW)]
    code += [(EQUAL, 1, 0, SOCKET[column]), (EQUAL, 0, 3, SOCKETPAIR[column])]
    code += [(LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 1, 0, UNIX)]
    code += [refuse(EAFNOSUPPORT), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
