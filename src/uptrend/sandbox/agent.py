"""First process of a workspace: runs commands within bounds, reads and writes files, and answers
the host.

The host sends this source to a bare `python -I -S` (3.9 or later) inside the sandbox, so it imports
nothing of ours. Both sides speak in frames on stdin and stdout: two lengths, JSON, bytes. The host
sends one request at a time; when stdin ends, the host is gone and so is everything here.
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
from typing import Any

Answer = tuple[dict[str, Any], bytes]
POLL = 0.02  # seconds between looks at the bounds
FLOOD = 64 << 20  # bytes of output after which a command is stopped
LINE = 1 << 20  # longest line of a conversation
# bytes between the bound of the disk and where writing fails, so that a full disk can be told
SPARE = 1 << 16
HEADROOM = 1 << 30  # address space above the bound of memory: libraries reserve more than they use
# Not RssFile: it can be dropped. VmPTE: the kernel's own tables.
MEMORY = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap|VmPTE):\s*(\d+)", re.MULTILINE)
SOCKETS = re.compile(rb"^sockets: used (\d+)", re.MULTILINE)
# bytes that a Unix socket keeps at most: twice net.core.wmem_max's default, and one more message
SOCKET = 512 << 10
# Of memory cgroups of version 2 and 1: the file of the limit, and the one that counts what it has
# ended.
LIMITS = {"memory.max": "memory.events", "memory.limit_in_bytes": "memory.oom_control"}
KILLED = re.compile(r"^oom_kill (\d+)", re.MULTILINE)
THREADS = re.compile(rb"^Threads:\s*(\d+)", re.MULTILINE)
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
PRELUDE = "trap 'pwd -P >&99' EXIT\n"  # tells the folder in which a command ended


class Refused(Exception):  # noqa: N818 (what happened to the request)
    """A request that can't be done, in words for whoever asked."""


class Agent:
    """The workspace, and the one command that may run in it, with all processes that it starts."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.root = self.cwd = setup["root"]
        self.writable = setup["writable"]  # every place that can be filled
        self.bounds = setup["bounds"]
        self.env = setup["env"]
        self.hidden = setup["hidden"]
        self.first = os.getpid() == 1  # then all other processes are ours
        self.kills = kills_file(setup["groups"])
        self.killed = self.count_kills()
        self.pid = 0
        self.talks = False
        self.stopped = ""
        self.code: int | None = 0  # none while it runs
        self.fds: list[int] = []
        self.kept = self.heard = self.pending = bytearray()
        if not self.first:
            for folder in (self.root, self.env["TMPDIR"], os.path.dirname(self.root) + "/bin"):
                os.makedirs(folder, 0o700)
            os.symlink(sys.executable, folder + "/python")  # many systems have python3 alone
        for source, name in setup["folders"]:
            os.makedirs(os.path.dirname(f"{self.root}/{name}"), exist_ok=True)
            os.spawnvpe(os.P_WAIT, "cp", ["cp", "-RL", source, f"{self.root}/{name}"], self.env)

    def do_run(self, given: bytes, command: str, seconds: float) -> Answer:
        began = time.monotonic()
        self.do_start(given, command, talks=False)
        while self.code is None:
            if time.monotonic() - began > seconds:
                self.stopped = "time"
            if self.step():
                raise EOFError  # nothing else comes before an answer
        told = {
            "code": self.code,
            "seconds": time.monotonic() - began,
            "stopped": self.stopped,
            "total": self.total,
        }
        ended_in = os.read(self.where, 4096).decode("utf-8", "surrogateescape").rstrip("\n")
        return {**told, "cwd": ended_in if os.path.isdir(ended_in) else self.cwd}, bytes(self.kept)

    def do_start(self, given: bytes, command: str, talks: bool = True) -> Answer:
        """Start a command in a session of its own, after the end of the one before it; it may read
        what is given.
        """
        self.forget()
        (said, say), (where, there), (told, ask), (lines, line) = (os.pipe() for _ in range(4))
        cwd = self.cwd if os.path.isdir(self.cwd) else self.root
        self.next_look, (used, files) = 0.0, self.usage()
        # A command that finds more than is allowed may still remove some.
        self.allowed = max(self.bounds["disk"], used), max(self.bounds["files"], files)
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                for source, target in (
                    (told, 0),
                    (line if talks else say, 1),
                    (say, 2),
                    (there, 99),
                ):
                    os.dup2(source, target)
                os.chdir(cwd)
                set_limit(resource.RLIMIT_AS, self.bounds["memory"] + HEADROOM)
                set_limit(resource.RLIMIT_FSIZE, self.bounds["disk"] + SPARE)
                # Python ignores them, and a program inherits that
                for number in (signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)
                os.execvpe("bash", ["bash", "-c", PRELUDE + command], {**self.env, "PWD": cwd})
            except BaseException as error:
                os.write(2, f"bash: {error}\n".encode("utf-8", "replace"))
            os._exit(126)
        for fd in (say, there, told, line):
            os.close(fd)
        for fd in (said, lines, ask):
            os.set_blocking(fd, False)
        self.fds = [os.pidfd_open(pid), said, where, lines, ask]
        self.end, self.said, self.where, self.lines, self.ask = self.fds
        if not talks and not given:
            os.close(self.fds.pop())  # nothing to read for it
        self.pid = pid
        self.talks = talks
        self.stopped = ""
        self.code = None
        self.open_pipes = {said, lines}  # that may still be written to
        # output without its middle
        self.kept = bytearray()
        self.total = 0
        # lines that it wrote, and that it is yet to read
        self.heard = bytearray()
        self.pending = bytearray(given)
        return {}, b""

    def do_ask(self, data: bytes, seconds: float) -> Answer:
        if not self.talks:
            raise Refused("The process is no longer running.")
        self.pending += data
        deadline = time.monotonic() + seconds
        while b"\n" not in self.heard:
            why = ""
            if self.code is not None:
                why = (
                    f"was stopped by its bound of {self.stopped}"
                    if self.stopped
                    else f"ended with code {self.code}"
                )
            elif len(self.heard) > LINE or time.monotonic() > deadline:
                is_long = len(self.heard) > LINE
                why = (
                    f"wrote a line of more than {LINE:,} bytes"
                    if is_long
                    else f"gave no answer within {seconds:g} s"
                )
            elif self.step():
                raise EOFError
            if why:
                self.forget()
                raise Refused(f"The process {why}.\n{self.kept.decode('utf-8', 'replace')}".strip())
        line, _, self.heard = self.heard.partition(b"\n")
        return {}, bytes(line)

    def do_read(self, _: bytes, path: str, most: int) -> Answer:
        with open(self.open(path, os.O_RDONLY), "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise Refused(f"larger than {most:,} bytes")
        return {}, data

    def do_write(self, data: bytes, path: str) -> Answer:
        with open(self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(data)
        return {}, b""

    def do_list(self, _: bytes) -> Answer:
        everything = walk(self.root, self.hidden)
        files = [
            (os.path.relpath(path, self.root), i.st_size)
            for path, i in everything
            if stat.S_ISREG(i.st_mode)
        ]
        return {"files": sorted(files)[:1000]}, b""

    def open(self, path: str, flags: int) -> int:
        """Open a regular file of the workspace; links are followed unless they lead out of it."""
        real = os.path.realpath(os.path.join(self.cwd, path))
        if not (real + "/").startswith(self.root + "/"):
            raise Refused("outside the workspace")
        if flags & os.O_CREAT:
            os.makedirs(os.path.dirname(real), exist_ok=True)
        # Not blocking and without links: a process that still runs may have changed what stands
        # there.
        fd = os.open(real, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o644)
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        if kind != stat.S_IFREG:
            os.close(fd)
            raise Refused("is " + KINDS[kind])
        return fd

    def readable(self) -> set[int]:
        # else it waits for a question
        return self.open_pipes - ({self.lines} if len(self.heard) > LINE else set())

    def take(self) -> bool:
        """Take some of what the command has written; false if there was nothing."""
        got = b""
        most = 2048 if self.talks else self.bounds["output"]
        for fd in self.readable():
            with contextlib.suppress(BlockingIOError):  # it may have read its own output
                data = os.read(fd, 1 << 16)
                got += data
                if not data:
                    self.open_pipes.discard(fd)
                elif fd == self.lines:
                    self.heard += data
                else:
                    self.kept += data
                    self.total += len(data)
                    if len(self.kept) > most:
                        del self.kept[most // 2 : len(self.kept) - most // 2]
        return bool(got)

    def step(self) -> bool:
        """Wait for what comes next and deal with the command's part of it; true if the host sent
        something.
        """
        if self.code is not None:
            return bool(select.select([0], [], [])[0])
        filled = [self.ask] if self.pending else []
        ready, free, _ = select.select({0, self.end} | self.readable(), filled, [], POLL)
        self.reap()
        if free:
            line = self.pending
            self.pending = bytearray()
            with contextlib.suppress(OSError):  # it reads no more, or has filled the pipe itself
                self.pending = line[os.write(self.ask, line) :]
            if not self.talks and not self.pending:
                self.fds.remove(self.ask)
                os.close(self.ask)
        self.take()
        began = time.monotonic()
        if began >= self.next_look:
            self.stopped = self.stopped or self.exceeded()
            self.next_look = time.monotonic() + max(POLL, 3 * (time.monotonic() - began))
        if self.code is not None or self.stopped:
            self.clear()
            while self.take():  # what is still in the pipes
                pass
            self.stopped = self.stopped or self.overfull()
            killed = self.count_kills()
            if killed > self.killed:
                self.stopped = self.stopped or "memory"
                self.killed = killed
            self.code = -signal.SIGKILL if self.code is None else self.code
        return 0 in ready

    def forget(self) -> None:
        """End the command, if there is one."""
        self.clear()
        for fd in self.fds:
            os.close(fd)
        self.pid = 0
        self.talks = False
        self.fds = []
        self.code = 0

    def reap(self) -> bool:
        """Bury the dead, orphans too; false if there are no processes at all."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid and self.code is None:
                    self.code = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            return False
        return True

    def clear(self) -> None:
        """Kill everything but this process, and wait until it is gone."""
        while self.reap():
            # The command's group at once, faster than it can fork; then who has left it, round by
            # round.
            for pid in (
                [-1] if self.first else [*([-self.pid] if self.pid else []), *self.processes()]
            ):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)

    def leave(self) -> None:
        """End: the kernel ends everything with process 1; elsewhere it is done by hand, folder
        included.
        """
        if not self.first:
            self.clear()
            # Programs, since Python's own recursion ends at a thousand folders.
            for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
                os.spawnvpe(os.P_WAIT, command[0], [*command, os.path.dirname(self.root)], self.env)
        os._exit(0)

    def processes(self) -> Iterator[int]:
        """Yield the processes that were started from here, directly or not."""
        if self.first:
            yield from (int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1")
            return
        parents = [os.getpid()]
        while parents:
            for file in glob.iglob(f"/proc/{parents.pop()}/task/*/children"):
                with contextlib.suppress(OSError), open(file) as children:
                    found = [int(pid) for pid in children.read().split()]
                    parents += found
                    yield from found

    def exceeded(self) -> str:
        """Name a bound that the command has reached; empty if it keeps within all."""
        threads = memory = 0
        for pid in self.processes():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
                status = file.read()
                threads += sum(map(int, THREADS.findall(status)))
                memory += sum(map(int, MEMORY.findall(status))) << 10
        if self.first:  # the network is its own, with nobody else's sockets
            with contextlib.suppress(OSError), open("/proc/net/sockstat", "rb") as file:
                memory += SOCKET * sum(map(int, SOCKETS.findall(file.read())))
        if threads > self.bounds["processes"] or memory > self.bounds["memory"]:
            return "processes" if threads > self.bounds["processes"] else "memory"
        return "output" if not self.talks and self.total > FLOOD else self.overfull()

    def count_kills(self) -> int:
        """Count the processes that the kernel has ended at the hard limit of memory."""
        if not self.kills:
            return 0
        with open(self.kills) as file:
            return sum(map(int, KILLED.findall(file.read())))

    def overfull(self) -> str:
        used, files = self.usage()
        return "disk" if used > self.allowed[0] else "files" if files > self.allowed[1] else ""

    def usage(self) -> tuple[int, int]:
        """Count bytes and files in all places that can be written to."""
        if self.first:  # each is a file system of its own
            found = [os.statvfs(path) for path in self.writable]
            used = sum((system.f_blocks - system.f_bfree) * system.f_frsize for system in found)
            return used, sum(system.f_files - system.f_ffree - 1 for system in found)
        sizes = [info.st_blocks * 512 for path in self.writable for _, info in walk(path)]
        return sum(sizes), len(sizes)


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


def kills_file(groups: list[str]) -> str:
    """Return the file that counts what the kernel ended at the limit of the memory cgroup; empty
    without a limit.
    """
    for group in groups:
        for limit, kills in LIMITS.items():
            with contextlib.suppress(OSError), open(f"{group}/{limit}") as file:
                most = file.read().strip()
                if most != "max" and int(most) < 1 << 60:  # version 1 has a number for no limit
                    return f"{group}/{kills}"
    return ""


def receive() -> Answer:
    told, data = struct.unpack(">II", sys.stdin.buffer.read(8))
    return json.loads(sys.stdin.buffer.read(told)), sys.stdin.buffer.read(data)


def send(answer: dict[str, Any], data: bytes = b"") -> None:
    text = json.dumps(answer).encode()
    sys.stdout.buffer.write(struct.pack(">II", len(text), len(data)) + text + data)
    sys.stdout.buffer.flush()


def set_limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def confine(setup: dict[str, Any], program: bytes) -> None:
    """Give up every right that commands need not have; they inherit what is left."""
    os.closerange(3, 1 << 16)  # what started the agent may leave open what it waited for
    libc = ctypes.CDLL(None, use_errno=True)
    if os.getpid() == 1:
        # PR_CAPBSET_DROP: no program gets one any more; an ordinary user's has none
        for capability in range(64):
            libc.prctl(24, ctypes.c_ulong(capability), 0, 0, 0)
    if setup["uid"]:
        os.setgroups([])
        os.setresgid(*[setup["uid"]] * 3)
        os.setresuid(*[setup["uid"]] * 3)
        none = struct.pack("6I", *[0] * 6)  # effective, permitted, inheritable, in two halves
        if libc.capset(struct.pack("Ii", 0x20080522, 0), none):
            raise OSError(ctypes.get_errno(), "capset")

    def control(option: int, value: int, pointer: Any = 0) -> None:
        if libc.prctl(option, ctypes.c_ulong(value), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)):
            raise OSError(ctypes.get_errno(), f"prctl {option}")

    if os.getpid() == 1:
        control(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, which the change of user has cleared
    control(4, 0)  # PR_SET_DUMPABLE: no other process reads this one's memory, environment or files
    control(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans become our children
    control(38, 1)  # PR_SET_NO_NEW_PRIVS
    set_limit(resource.RLIMIT_CORE, 0)
    set_limit(resource.RLIMIT_NOFILE, 256)
    if setup["counted"]:  # by user: this one is of no use where others run as the same user
        set_limit(resource.RLIMIT_NPROC, setup["bounds"]["processes"] + 16)
    if program:
        code = ctypes.create_string_buffer(program, len(program))
        # PR_SET_SECCOMP, as a filter
        control(22, 2, struct.pack("HP", len(program) // 8, ctypes.addressof(code)))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which process 1 does not hear from inside
    setup, program = receive()
    confine(setup, program)
    agent = Agent(setup)
    answer: Answer = {"has_hard_limit": bool(agent.kills)}, b""
    try:
        while True:
            send(*answer)
            while not agent.step():
                pass
            request, data = receive()
            try:
                agent.cwd = request.pop("cwd")
                answer = getattr(agent, "do_" + request.pop("do"))(data, **request)
            except (Refused, OSError, ValueError) as error:  # ValueError: a path with a zero byte
                answer = {"refused": getattr(error, "strerror", None) or str(error)}, b""
    except (EOFError, struct.error, BrokenPipeError):
        # The pipe has ended, perhaps within a request.
        agent.leave()


if __name__ == "__main__":
    main()
