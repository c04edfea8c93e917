"""The filter of system calls, in the kernel's format: 8 bytes per instruction of classic BPF.

It refuses

- calls that a small machine-learning program never needs and that exploits of the kernel use,
- calls by which a command could slow or end the agent, which has the same user,
- ways to hold memory that no process is seen to have: memfd_create, SysV's shared memory, messages
  and semaphores, pages given to a pipe, mappings that are shared and anonymous or of huge pages,
  and the buffers of all sockets but Unix's.

Everything else is allowed.
"""

import platform
import struct

# Operation, jump if true, jump if false, operand; jumps count the instructions that are skipped.
Instruction = tuple[int, int, int, int]

# Each call's number on x86_64 and on aarch64 (0: not there). From 424 on they are the same.
REFUSED_CALLS = """
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
# Likewise, for calls that are refused with some arguments only.
CLONE_NUMBERS = (56, 220)
MMAP_NUMBERS = (9, 222)
PRLIMIT_NUMBERS = (302, 261)
SOCKET_NUMBERS = (41, 198)
SOCKETPAIR_NUMBERS = (53, 199)
# Newer calls are refused as an older kernel would, for which programs are prepared.
CLONE3_NUMBER = 435
NEWEST_NUMBER = 462
# Column above and AUDIT_ARCH_…; arm64 is macOS's name, whose containers run on Linux.
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7), "arm64": (1, 0xC00000B7)}

CLONE_NAMESPACES = 0x7E020000  # every CLONE_NEW…
MAP_SHARED = 0x1
MAP_ANONYMOUS = 0x20
MAP_HUGETLB = 0x40000
AF_UNIX = 1
# As numbers, since those of macOS differ.
ERRNO_EPERM = 1
ERRNO_ENOSYS = 38
ERRNO_EAFNOSUPPORT = 97

# Operations of linux/bpf_common.h, combined: of a word with a constant.
BPF_LOAD = 0x20
BPF_JUMP_IF_ANY_BIT = 0x45
BPF_JUMP_IF_EQUAL = 0x15
BPF_JUMP_IF_AT_LEAST = 0x35
BPF_RETURN = 0x06
# Operands of a return, of linux/seccomp.h.
SECCOMP_ALLOW = 0x7FFF0000
SECCOMP_KILL = 0x80000000
SECCOMP_ERRNO = 0x00050000
# Offsets in struct seccomp_data; of arguments, the low half's.
NUMBER_OFFSET = 0
ARCHITECTURE_OFFSET = 4
FIRST_ARGUMENT_OFFSET = 16
FOURTH_ARGUMENT_OFFSET = 40


def make_filter(machine: str = platform.machine()) -> bytes:
    """Return the filter for a kind of machine; empty for unknown ones."""
    if machine not in MACHINES:
        return b""
    column, architecture = MACHINES[machine]
    allow: Instruction = (BPF_RETURN, 0, 0, SECCOMP_ALLOW)
    load_first_argument: Instruction = (BPF_LOAD, 0, 0, FIRST_ARGUMENT_OFFSET)
    code: list[Instruction] = [
        (BPF_LOAD, 0, 0, ARCHITECTURE_OFFSET),
        (BPF_JUMP_IF_EQUAL, 1, 0, architecture),
        (BPF_RETURN, 0, 0, SECCOMP_KILL),
        (BPF_LOAD, 0, 0, NUMBER_OFFSET),
        # Above the newest are also x86_64's x32 calls, a second set of numbers for everything.
        (BPF_JUMP_IF_AT_LEAST, 0, 1, NEWEST_NUMBER + 1),
        _refuse(ERRNO_ENOSYS),
        (BPF_JUMP_IF_EQUAL, 0, 1, CLONE3_NUMBER),
        _refuse(ERRNO_ENOSYS),
    ]
    for call in REFUSED_CALLS.split(","):
        number = int(call.split()[1 + column])
        if number:
            code += [(BPF_JUMP_IF_EQUAL, 0, 1, number), _refuse(ERRNO_EPERM)]
    code += [
        (BPF_JUMP_IF_EQUAL, 0, 4, CLONE_NUMBERS[column]),
        load_first_argument,
        (BPF_JUMP_IF_ANY_BIT, 0, 1, CLONE_NAMESPACES),
        _refuse(ERRNO_EPERM),
        allow,
    ]
    # A process may change its own limits alone (pid 0): others of the same user could take the
    # agent's open files or its time.
    code += [
        (BPF_JUMP_IF_EQUAL, 0, 4, PRLIMIT_NUMBERS[column]),
        load_first_argument,
        (BPF_JUMP_IF_EQUAL, 1, 0, 0),
        _refuse(ERRNO_EPERM),
        allow,
    ]
    # A shared mapping keeps its pages when its process drops them, or all of it but one page.
    code += [
        (BPF_JUMP_IF_EQUAL, 0, 6, MMAP_NUMBERS[column]),
        (BPF_LOAD, 0, 0, FOURTH_ARGUMENT_OFFSET),
        (BPF_JUMP_IF_ANY_BIT, 2, 0, MAP_HUGETLB),
        (BPF_JUMP_IF_ANY_BIT, 0, 2, MAP_SHARED),
        (BPF_JUMP_IF_ANY_BIT, 0, 1, MAP_ANONYMOUS),
        _refuse(ERRNO_EPERM),
        allow,
    ]
    code += [
        (BPF_JUMP_IF_EQUAL, 1, 0, SOCKET_NUMBERS[column]),
        (BPF_JUMP_IF_EQUAL, 0, 3, SOCKETPAIR_NUMBERS[column]),
        load_first_argument,
        (BPF_JUMP_IF_EQUAL, 1, 0, AF_UNIX),
        _refuse(ERRNO_EAFNOSUPPORT),
        allow,
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _refuse(error: int) -> Instruction:
    return (BPF_RETURN, 0, 0, SECCOMP_ERRNO | error)
