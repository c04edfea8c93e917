"""First process of a workspace: runs commands within bounds, reads and writes files, and answers
the host.

The host sends this source to a bare `python -I -S` (3.9 or later) inside the sandbox, so it imports
nothing else of Uptrend. Host and agent exchange frames on stdin and stdout: two lengths, JSON,
bytes. The host sends one request at a time; when stdin ends, the host is gone, and the agent ends
everything here. Its methods `do_…` are the requests.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import re
import resource
import select
import signal
import stat
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

Answer = tuple[dict[str, Any], bytes]
POLL_INTERVAL_S = 0.02  # between measurements of the bounds
# Pause between measurements, as a multiple of the time that one takes: at most a quarter of the
# time goes into measuring.
PAUSE_PER_MEASUREMENT = 3
MAX_OUTPUT_BYTES = 64 << 20  # after which a command is stopped
MAX_LINE_BYTES = 1 << 20  # longest line of a conversation
# Bytes of its output that a conversation keeps, for an error.
CONVERSATION_OUTPUT_BYTES = 2048
READ_BYTES = 1 << 16
MAX_FILES_LISTED = 1000
# Between the bound of the disk and where writing fails, so that a full disk can be recognized.
DISK_RESERVE_BYTES = 1 << 16
# Address space above the bound of memory: libraries reserve more than they use.
ADDRESS_SPACE_MARGIN_BYTES = 1 << 30
# Processes above the bound, for the limit by user: the agent counts first, and names the bound.
PROCESS_MARGIN = 16
MAX_OPEN_FILES = 256
# In /proc/PID/status, in KiB. Not RssFile, which can be dropped. VmPTE: the kernel's own tables.
MEMORY_FIELDS = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap|VmPTE):\s*(\d+)", re.MULTILINE)
THREADS_FIELD = re.compile(rb"^Threads:\s*(\d+)", re.MULTILINE)
# In /proc/net/sockstat.
SOCKETS_FIELD = re.compile(rb"^sockets: used (\d+)", re.MULTILINE)
# Most that a Unix socket holds: twice net.core.wmem_max's default, and one more message.
SOCKET_BYTES = 512 << 10
# Of memory cgroups of version 2 and 1: the file of the limit, and the one that counts the processes
# which the kernel has killed at it.
KILL_COUNTS_BY_LIMIT = {
    "memory.max": "memory.events",
    "memory.limit_in_bytes": "memory.oom_control",
}
KILLS_FIELD = re.compile(r"^oom_kill (\d+)", re.MULTILINE)
# Limits from here on mean no limit: version 1 writes the largest number of pages.
UNLIMITED_BYTES = 1 << 60
FILE_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Descriptor on which a command reports the folder in which it ended.
CWD_FD = 99
REPORT_CWD = f"trap 'pwd -P >&{CWD_FD}' EXIT\n"
# bash's own for a command that can't be run
CANNOT_RUN_CODE = 126
# Numbers of linux/prctl.h and linux/capability.h.
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
BPF_INSTRUCTION_BYTES = 8
CAPABILITY_VERSION_3 = 0x20080522
# Of a capability set; numbers that the kernel does not have are refused, without harm.
CAPABILITY_BITS = 64
# In the notation of `struct`: cap_user_header_t (version and process, 0 for this one), two
# cap_user_data_t (see `confine`), and sock_fprog (number of instructions and their address).
CAPABILITY_HEADER = "Ii"
CAPABILITY_SETS = "6I"
SECCOMP_PROGRAM = "HP"


class Refused(Exception):  # noqa: N818 (what happened to the request)
    """A request that can't be done, with the reason for the host."""


class Agent:
    """The workspace, and the one command that may run in it, with all processes that it starts."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.root = setup["root"]
        self.cwd = setup["root"]
        self.writable = setup["writable"]  # every folder that can be filled
        self.bounds = setup["bounds"]
        self.env = setup["env"]
        self.hidden = setup["hidden"]
        # As process 1 of a sandbox, every other process there is the command's.
        self.is_process_1 = os.getpid() == 1
        self.kill_count_file = find_kill_count(setup["groups"])
        self.kill_count = self.count_kills()
        # The command. There is none yet: do_start sets all of these and more, and end_command
        # leaves its output and the bound that ended it, for the answer.
        self.pid = 0  # 0 without a command
        self.is_conversation = False
        self.stopped = ""  # bound that ended it
        self.code: int | None = 0  # exit status, or 0 without a command; None while it runs
        self.fds: list[int] = []
        self.output = bytearray()  # stdout and stderr, without the middle
        self.lines = bytearray()  # of a conversation, that the host has not read yet
        self.pending = bytearray()  # input that the command has not read yet
        if not self.is_process_1:
            self.make_folders()
        for source, name in setup["folders"]:
            os.makedirs(os.path.dirname(f"{self.root}/{name}"), exist_ok=True)
            os.spawnvpe(os.P_WAIT, "cp", ["cp", "-RL", source, f"{self.root}/{name}"], self.env)

    def make_folders(self) -> None:
        programs = os.path.dirname(self.root) + "/bin"
        for folder in (self.root, self.env["TMPDIR"], programs):
            os.makedirs(folder, 0o700)
        os.symlink(sys.executable, programs + "/python")  # many systems have only python3

    def do_run(self, stdin: bytes, command: str, seconds: float) -> Answer:
        began = time.monotonic()
        self.do_start(stdin, command, is_conversation=False)
        while self.code is None:
            if time.monotonic() - began > seconds:
                self.stopped = "time"
            if self.step():
                raise EOFError  # the host sends nothing before it has the answer, so it is gone
        answer = {
            "code": self.code,
            "seconds": time.monotonic() - began,
            "stopped": self.stopped,
            "total": self.total,
        }
        cwd = os.read(self.cwd_fd, 4096).decode("utf-8", "surrogateescape").rstrip("\n")
        answer["cwd"] = cwd if os.path.isdir(cwd) else self.cwd
        return answer, bytes(self.output)

    def do_start(self, stdin: bytes, command: str, is_conversation: bool = True) -> Answer:
        """Start a command in a session of its own, after the end of the one before it."""
        self.end_command()
        output_fd, child_output_fd = os.pipe()
        cwd_fd, child_cwd_fd = os.pipe()
        child_input_fd, input_fd = os.pipe()
        lines_fd, child_lines_fd = os.pipe()
        cwd = self.cwd if os.path.isdir(self.cwd) else self.root
        self.next_measurement = 0.0
        disk, files = self.usage()
        # A command that starts above a bound may still remove files.
        self.max_disk = max(self.bounds["disk"], disk)
        self.max_files = max(self.bounds["files"], files)
        pid = os.fork()
        if pid == 0:
            child_stdout_fd = child_lines_fd if is_conversation else child_output_fd
            self.become_command(
                command,
                cwd,
                stdin_fd=child_input_fd,
                stdout_fd=child_stdout_fd,
                stderr_fd=child_output_fd,
                cwd_fd=child_cwd_fd,
            )
        for fd in (child_output_fd, child_cwd_fd, child_input_fd, child_lines_fd):
            os.close(fd)
        for fd in (output_fd, lines_fd, input_fd):
            os.set_blocking(fd, False)
        self.pid = pid
        self.end_fd = os.pidfd_open(pid)  # readable once the command has ended
        self.cwd_fd = cwd_fd
        self.lines_fd = lines_fd
        self.input_fd = input_fd
        self.fds = [self.end_fd, output_fd, cwd_fd, lines_fd, input_fd]
        if not is_conversation and not stdin:
            self.close_input()
        self.open_pipes = {output_fd, lines_fd}  # those that may still be written to
        self.is_conversation = is_conversation
        self.stopped = ""
        self.code = None
        self.output = bytearray()
        self.total = 0  # bytes of output, with those that were dropped
        self.lines = bytearray()
        self.pending = bytearray(stdin)
        return {}, b""

    def become_command(
        self, command: str, cwd: str, stdin_fd: int, stdout_fd: int, stderr_fd: int, cwd_fd: int
    ) -> NoReturn:
        """Replace this forked process by a shell that runs the command; does not return."""
        try:
            os.setsid()
            os.dup2(stdin_fd, 0)
            os.dup2(stdout_fd, 1)
            os.dup2(stderr_fd, 2)
            os.dup2(cwd_fd, CWD_FD)
            os.chdir(cwd)
            set_limit(resource.RLIMIT_AS, self.bounds["memory"] + ADDRESS_SPACE_MARGIN_BYTES)
            set_limit(resource.RLIMIT_FSIZE, self.bounds["disk"] + DISK_RESERVE_BYTES)
            # Python ignores these signals, and a program would inherit that.
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe("bash", ["bash", "-c", REPORT_CWD + command], {**self.env, "PWD": cwd})
        except BaseException as error:
            os.write(2, f"bash: {error}\n".encode("utf-8", "replace"))
        os._exit(CANNOT_RUN_CODE)

    def do_ask(self, data: bytes, seconds: float) -> Answer:
        """Send a line to the process, and answer with its next one."""
        if not self.is_conversation:
            raise Refused("The process is no longer running.")
        self.pending += data
        deadline = time.monotonic() + seconds
        while b"\n" not in self.lines:
            reason = self.why_no_line(deadline, seconds)
            if reason:
                self.end_command()
                output = self.output.decode("utf-8", "replace")
                raise Refused(f"The process {reason}.\n{output}".strip())
            if self.step():
                raise EOFError  # as in do_run
        line, _, self.lines = self.lines.partition(b"\n")
        return {}, bytes(line)

    def why_no_line(self, deadline: float, seconds: float) -> str:
        """Return why no line is to be expected; empty if one may still come."""
        if self.code is not None:
            if self.stopped:
                return f"was stopped by its bound of {self.stopped}"
            return f"ended with code {self.code}"
        if len(self.lines) > MAX_LINE_BYTES:
            return f"wrote a line of more than {MAX_LINE_BYTES:,} bytes"
        if time.monotonic() > deadline:
            return f"gave no answer within {seconds:g} s"
        return ""

    def do_read(self, _: bytes, path: str, most: int) -> Answer:
        with open(self.open_regular_file(path, os.O_RDONLY), "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise Refused(f"larger than {most:,} bytes")
        return {}, data

    def do_write(self, data: bytes, path: str) -> Answer:
        fd = self.open_regular_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with open(fd, "wb") as file:
            file.write(data)
        return {}, b""

    def do_list(self, _: bytes) -> Answer:
        files = []
        for path, info in walk(self.root, self.hidden):
            if stat.S_ISREG(info.st_mode):
                files.append((os.path.relpath(path, self.root), info.st_size))
        return {"files": sorted(files)[:MAX_FILES_LISTED]}, b""

    def open_regular_file(self, path: str, flags: int) -> int:
        """Open a regular file of the workspace; links are followed unless they lead out of it."""
        real = os.path.realpath(os.path.join(self.cwd, path))
        if not (real + "/").startswith(self.root + "/"):
            raise Refused("outside the workspace")
        if flags & os.O_CREAT:
            os.makedirs(os.path.dirname(real), exist_ok=True)
        # O_NONBLOCK and O_NOFOLLOW, since a process that still runs may have put a pipe or a link
        # there by now.
        fd = os.open(real, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o644)
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        if kind != stat.S_IFREG:
            os.close(fd)
            raise Refused("is " + FILE_KINDS[kind])
        return fd

    def readable_pipes(self) -> set[int]:
        if len(self.lines) > MAX_LINE_BYTES:
            # The command has to wait until the host reads its lines.
            return self.open_pipes - {self.lines_fd}
        return self.open_pipes

    def read_output(self) -> bool:
        """Read some of what the command has written; return False if there was nothing."""
        has_read = False
        most = CONVERSATION_OUTPUT_BYTES if self.is_conversation else self.bounds["output"]
        for fd in list(self.readable_pipes()):
            try:
                data = os.read(fd, READ_BYTES)
            except BlockingIOError:  # the command may have read its own output
                continue
            if not data:
                self.open_pipes.discard(fd)
                continue
            has_read = True
            if fd == self.lines_fd:
                self.lines += data
            else:
                self.output += data
                self.total += len(data)
                if len(self.output) > most:
                    del self.output[most // 2 : len(self.output) - most // 2]
        return has_read

    def step(self) -> bool:
        """Wait for an event, and serve the command once: its input, its output, its bounds and its
        end; return True if the host has sent something, or is gone.
        """
        if self.code is not None:  # without a running command, only the host is waited for
            return bool(select.select([0], [], [])[0])
        sources = {0, self.end_fd} | self.readable_pipes()
        targets = [self.input_fd] if self.pending else []
        ready, free, _ = select.select(sources, targets, [], POLL_INTERVAL_S)
        self.reap()
        if free:
            self.write_input()
        self.read_output()
        self.measure_when_due()
        if self.code is not None or self.stopped:
            self.finish_command()
        return 0 in ready

    def measure_when_due(self) -> None:
        """Compare what the command uses with its bounds, if the last measurement is long enough
        ago.
        """
        began = time.monotonic()
        if began < self.next_measurement:
            return
        self.stopped = self.stopped or self.exceeded_bound()
        ended = time.monotonic()
        pause = max(POLL_INTERVAL_S, PAUSE_PER_MEASUREMENT * (ended - began))
        self.next_measurement = ended + pause

    def write_input(self) -> None:
        data = self.pending
        self.pending = bytearray()
        # An error means that the command reads no more, or has filled the pipe itself.
        with contextlib.suppress(OSError):
            n_written = os.write(self.input_fd, data)
            self.pending = data[n_written:]
        if not self.is_conversation and not self.pending:
            self.close_input()

    def close_input(self) -> None:
        self.fds.remove(self.input_fd)
        os.close(self.input_fd)

    def finish_command(self) -> None:
        """Kill what is left of the command, and record its output, its bound and its code."""
        self.kill_all()
        while self.read_output():  # until the pipes are empty
            pass
        self.stopped = self.stopped or self.exceeded_storage()
        kill_count = self.count_kills()
        if kill_count > self.kill_count:
            self.stopped = self.stopped or "memory"
            self.kill_count = kill_count
        # kill_all has collected the command, and so its code; without one, it counts as killed.
        if self.code is None:
            self.code = -signal.SIGKILL

    def end_command(self) -> None:
        """End the command, if there is one."""
        self.kill_all()
        for fd in self.fds:
            os.close(fd)
        self.pid = 0
        self.is_conversation = False
        self.fds = []
        self.code = 0

    def reap(self) -> bool:
        """Collect processes that have ended, orphans too; return False if there are no processes at
        all.
        """
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid == self.pid and self.code is None:
                    self.code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False

    def kill_all(self) -> None:
        """Kill everything but this process, and wait until it is gone."""
        while self.reap():
            for pid in self.kill_targets():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)

    def kill_targets(self) -> list[int]:
        if self.is_process_1:
            return [-1]  # all
        # The command's group at once, faster than it can fork; then processes that have left it,
        # round by round.
        group = [-self.pid] if self.pid else []
        return [*group, *self.processes()]

    def exit(self) -> None:
        """End: the kernel ends everything with process 1; otherwise the agent kills all processes
        and removes the folder.
        """
        if not self.is_process_1:
            self.kill_all()
            # By programs, since Python's own recursion ends at a thousand folders.
            for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
                os.spawnvpe(os.P_WAIT, command[0], [*command, os.path.dirname(self.root)], self.env)
        os._exit(0)

    def processes(self) -> Iterator[int]:
        """Yield the processes that were started from here, directly or not."""
        if self.is_process_1:
            for name in os.listdir("/proc"):
                if name.isdigit() and name != "1":
                    yield int(name)
            return
        parents = [os.getpid()]
        while parents:
            for path in glob.iglob(f"/proc/{parents.pop()}/task/*/children"):
                with contextlib.suppress(OSError), open(path) as file:
                    children = [int(pid) for pid in file.read().split()]
                    parents += children
                    yield from children

    def exceeded_bound(self) -> str:
        """Return the name of a bound that the command has reached; empty if it is within all."""
        threads = 0
        memory = 0
        for pid in self.processes():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
                status = file.read()
                threads += sum(map(int, THREADS_FIELD.findall(status)))
                memory += sum(map(int, MEMORY_FIELDS.findall(status))) << 10
        if self.is_process_1:  # its network is its own, so all sockets are the command's
            with contextlib.suppress(OSError), open("/proc/net/sockstat", "rb") as file:
                memory += SOCKET_BYTES * sum(map(int, SOCKETS_FIELD.findall(file.read())))
        if threads > self.bounds["processes"]:
            return "processes"
        if memory > self.bounds["memory"]:
            return "memory"
        if not self.is_conversation and self.total > MAX_OUTPUT_BYTES:
            return "output"
        return self.exceeded_storage()

    def count_kills(self) -> int:
        """Return the number of processes that the kernel has killed at the hard limit of memory."""
        if not self.kill_count_file:
            return 0
        with open(self.kill_count_file) as file:
            return sum(map(int, KILLS_FIELD.findall(file.read())))

    def exceeded_storage(self) -> str:
        disk, files = self.usage()
        if disk > self.max_disk:
            return "disk"
        return "files" if files > self.max_files else ""

    def usage(self) -> tuple[int, int]:
        """Return the bytes and files in all folders that can be written to."""
        disk = 0
        files = 0
        for folder in self.writable:
            if self.is_process_1:  # each folder is a file system of its own
                system = os.statvfs(folder)
                disk += (system.f_blocks - system.f_bfree) * system.f_frsize
                files += system.f_files - system.f_ffree - 1  # without the folder itself
            else:
                for _, info in walk(folder):
                    disk += info.st_blocks * 512
                    files += 1
        return disk, files


def walk(folder: str, hidden: tuple[str, ...] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything below a folder, no link followed, and nothing below a hidden one."""
    folders = [folder]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False) and entry.path not in hidden:
                        folders.append(entry.path)
                    yield entry.path, entry.stat(follow_symlinks=False)


def find_kill_count(groups: list[str]) -> str:
    """Return the file that counts the processes which the kernel has killed at the limit of the
    memory cgroup; empty without a limit.
    """
    for group in groups:
        for limit_file, count_file in KILL_COUNTS_BY_LIMIT.items():
            with contextlib.suppress(OSError), open(f"{group}/{limit_file}") as file:
                limit = file.read().strip()
                if limit != "max" and int(limit) < UNLIMITED_BYTES:
                    return f"{group}/{count_file}"
    return ""


def receive() -> Answer:
    text_length, data_length = struct.unpack(">II", sys.stdin.buffer.read(8))
    request = json.loads(sys.stdin.buffer.read(text_length))
    return request, sys.stdin.buffer.read(data_length)


def send(answer: dict[str, Any], data: bytes = b"") -> None:
    text = json.dumps(answer).encode()
    sys.stdout.buffer.write(struct.pack(">II", len(text), len(data)) + text + data)
    sys.stdout.buffer.flush()


def set_limit(kind: int, limit: int) -> None:
    _, hard_limit = resource.getrlimit(kind)
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(kind, (limit, limit))


def confine(setup: dict[str, Any], seccomp_filter: bytes) -> None:
    """Give up every right that commands do not need; they inherit what is left."""
    # The order matters: dropping capabilities for good needs a capability, and so does the change
    # of groups and user, which takes away all; seccomp comes last, since its filter may refuse what
    # is called before.
    os.closerange(3, 1 << 16)  # bubblewrap may leave open what it waited for
    libc = ctypes.CDLL(None, use_errno=True)
    is_process_1 = os.getpid() == 1
    if is_process_1:
        # So that no program gets a capability again; ordinary users' programs have none.
        for capability in range(CAPABILITY_BITS):
            libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)
    uid = setup["uid"]
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # effective, permitted and inheritable, in two halves
        no_capabilities = struct.pack(CAPABILITY_SETS, 0, 0, 0, 0, 0, 0)
        if libc.capset(struct.pack(CAPABILITY_HEADER, CAPABILITY_VERSION_3, 0), no_capabilities):
            raise OSError(ctypes.get_errno(), "capset")

    def prctl(option: int, value: int, pointer: Any = 0) -> None:
        if libc.prctl(option, ctypes.c_ulong(value), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)):
            raise OSError(ctypes.get_errno(), f"prctl {option}")

    if is_process_1:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # again, since the change of user has cleared it
    prctl(PR_SET_DUMPABLE, 0)  # no other process reads this one's memory, environment or files
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    set_limit(resource.RLIMIT_CORE, 0)
    set_limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    # The kernel counts by user, so this limit is of no use if others run as the same user.
    if setup["counted"]:
        set_limit(resource.RLIMIT_NPROC, setup["bounds"]["processes"] + PROCESS_MARGIN)
    if seccomp_filter:
        code = ctypes.create_string_buffer(seccomp_filter, len(seccomp_filter))
        n_instructions = len(seccomp_filter) // BPF_INSTRUCTION_BYTES
        program = struct.pack(SECCOMP_PROGRAM, n_instructions, ctypes.addressof(code))
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which process 1 does not get from inside
    setup, seccomp_filter = receive()
    confine(setup, seccomp_filter)
    agent = Agent(setup)
    answer: Answer = {"has_hard_limit": bool(agent.kill_count_file)}, b""
    try:
        while True:
            send(*answer)
            while not agent.step():
                pass
            request, data = receive()
            try:
                agent.cwd = request.pop("cwd")
                handle = getattr(agent, "do_" + request.pop("do"))
                answer = handle(data, **request)
            except (Refused, OSError, ValueError) as error:  # ValueError: a path with a zero byte
                answer = {"refused": getattr(error, "strerror", None) or str(error)}, b""
    except (EOFError, struct.error, BrokenPipeError):
        # The pipe has ended, perhaps within a request.
        agent.exit()


if __name__ == "__main__":
    main()
