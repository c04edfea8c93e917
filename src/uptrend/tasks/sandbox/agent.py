"""First process of a workspace: runs commands within bounds, reads and writes files, and answers the host.

The host sends this source to a bare `python -I -S` (3.9 or later) inside the sandbox, so it imports nothing of ours.
Both sides speak in frames on stdin and stdout: two lengths, JSON, bytes. The host sends one request at a time; when
stdin ends, the host is gone and so is everything here.
"""

from __future__ import annotations

import contextlib
import ctypes
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

POLL = 0.02  # seconds between looks at the bounds
FLOOD = 64 << 20  # bytes of output after which a command is stopped
LINE = 1 << 20  # longest line of a conversation
SPARE = 1 << 16  # bytes between the bound of the disk and where writing fails, so that a full disk can be told
HEADROOM = 1 << 30  # address space above the bound of memory: libraries reserve more than they use
MEMORY = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s*(\d+)", re.MULTILINE)  # not RssFile: it can be dropped
THREADS = re.compile(rb"^Threads:\s*(\d+)", re.MULTILINE)
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link"}
# Bash reads this before a command and forgets it: the folder in which the command ended comes back on 99.
PRELUDE = b"trap 'pwd -P >&99' EXIT; exec 98<&-; unset BASH_ENV"


class Refused(Exception):  # noqa: N818 (what happened to the request)
    """A request that can't be done, in words for whoever asked."""


class Kept:
    """Head and tail of what comes out of a pipe; the middle is dropped as it comes."""

    def __init__(self, most: int) -> None:
        self.head, self.tail, self.half, self.total = bytearray(), bytearray(), most // 2, 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        first = self.half - len(self.head)
        self.head += data[:first]
        self.tail += data[max(first, 0) :]
        del self.tail[: max(0, len(self.tail) - self.half)]


class Child:
    """A command, and all processes that it starts."""

    def __init__(self, pid: int, said: int, where: int, most: int, talk: tuple[int, int] | None) -> None:
        self.pid, self.said, self.where, self.talk = pid, said, where, talk
        self.kept, self.lines, self.pending = Kept(most), bytearray(), bytearray()
        self.open = {said, *(talk or ())[1:]}  # pipes that it may still write to
        self.code: int | None = None
        self.stopped = ""


class Agent:
    """State of the workspace: its folders, bounds and at most one command."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.root, self.writable = setup["root"], setup["writable"]  # the workspace; every place that can be filled
        self.bounds, self.env, self.hidden = setup["bounds"], setup["env"], setup["hidden"]
        self.first = os.getpid() == 1  # then all other processes are ours
        if not self.first:
            os.makedirs(self.root, 0o700)
            os.mkdir(self.env["TMPDIR"])
        for source, name in setup["folders"]:
            os.makedirs(os.path.dirname(f"{self.root}/{name}"), exist_ok=True)
            os.spawnvp(os.P_WAIT, "cp", ["cp", "-RL", source, f"{self.root}/{name}"])
        self.child: Child | None = None
        self.next_look = self.next_walk = 0.0
        self.used = (0, 0)
        self.allowed = self.limits()
        self.woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self.woken, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    # Requests

    def serve(self) -> None:
        while True:
            if not self.step():
                continue
            request, data = receive()
            try:
                send(*getattr(self, "do_" + request.pop("do"))(data=data, **request))
            except (Refused, OSError, ValueError) as error:  # ValueError: a path with a zero byte
                send({"refused": getattr(error, "strerror", None) or str(error)})

    def do_run(self, command: str, seconds: float, cwd: str, data: bytes) -> tuple[dict[str, Any], bytes]:
        began = time.monotonic()
        child = self.spawn(command, cwd, talks=False, given=data)
        while not self.over(child):
            if time.monotonic() - began > seconds:
                child.stopped = "time"
            elif self.step():
                leave(self)  # only the end of stdin comes before an answer
        told = {"code": child.code, "seconds": time.monotonic() - began, "stopped": child.stopped}
        ended_in = os.read(child.where, 4096).decode("utf-8", "surrogateescape").rstrip("\n")
        self.forget()
        cwd = ended_in if os.path.isdir(ended_in) else cwd
        return {**told, "total": child.kept.total, "cwd": cwd}, bytes(child.kept.head + child.kept.tail)

    def do_start(self, command: str, cwd: str, data: bytes) -> tuple[dict[str, Any], bytes]:  # noqa: ARG002
        self.spawn(command, cwd, talks=True)
        return {}, b""

    def do_ask(self, seconds: float, data: bytes) -> tuple[dict[str, Any], bytes]:
        child, deadline = self.child, time.monotonic() + seconds
        if child is None or child.talk is None:
            raise Refused("The process is no longer running.")
        child.pending += data
        while (end := child.lines.find(b"\n")) < 0:
            if len(child.lines) > LINE:
                why = f"The process wrote a line of more than {LINE:,} bytes."
            elif child.code is not None or child.stopped:
                bound = f"was stopped: its bound of {child.stopped} was reached" if child.stopped else ""
                why = f"The process {bound or f'ended with code {child.code}'}."
            elif time.monotonic() > deadline:
                why = f"The process gave no answer within {seconds:g} s."
            else:
                if self.step():
                    leave(self)
                self.over(child)
                continue
            child.stopped = child.stopped or "time"
            self.over(child)
            self.forget()
            raise Refused((why + "\n" + (child.kept.head + child.kept.tail).decode("utf-8", "replace")).strip())
        line = bytes(child.lines[:end])
        del child.lines[: end + 1]
        return {}, line

    def do_end(self, data: bytes) -> tuple[dict[str, Any], bytes]:  # noqa: ARG002
        self.forget()
        return {}, b""

    def do_read(self, path: str, cwd: str, most: int, data: bytes) -> tuple[dict[str, Any], bytes]:  # noqa: ARG002
        real = self.resolve(path, cwd)
        check_regular(os.lstat(real))
        # Not blocking, without links: a process that still runs may have changed what stands there.
        fd = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            check_regular(os.fstat(fd))
            self.check_inside(os.readlink(f"/proc/self/fd/{fd}"))
            content = file.read(most + 1)
        if len(content) > most:
            raise Refused(f"larger than {most:,} bytes")
        return {}, content

    def do_write(self, files: list[tuple[str, int]], cwd: str, data: bytes) -> tuple[dict[str, Any], bytes]:
        for path, size in files:
            try:
                real = self.resolve(path, cwd)
                os.makedirs(os.path.dirname(real), exist_ok=True)
                if os.path.lexists(real):
                    check_regular(os.lstat(real))
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(real, flags, 0o644), "wb") as file:
                    self.check_inside(os.readlink(f"/proc/self/fd/{file.fileno()}"))
                    file.write(data[:size])
            except OSError as error:
                raise Refused(f"{error.strerror}" if len(files) == 1 else f"{path}: {error.strerror}") from None
            data = data[size:]
        return {}, b""

    def do_list(self, data: bytes) -> tuple[dict[str, Any], bytes]:  # noqa: ARG002
        found = [(os.path.relpath(path, self.root), info.st_size) for path, info in walk(self.root, self.hidden)
                 if stat.S_ISREG(info.st_mode)]  # fmt: skip
        return {"files": sorted(found)[:1000]}, b""

    # Paths

    def resolve(self, path: str, cwd: str) -> str:
        """Return the real path of a file of the workspace, whose last part need not exist."""
        real = os.path.realpath(os.path.join(cwd, path))
        self.check_inside(real)
        return real

    def check_inside(self, real: str) -> None:
        if not (real + "/").startswith(self.root + "/"):
            raise Refused("outside the workspace")

    # Processes

    def spawn(self, command: str, cwd: str, talks: bool, given: bytes = b"") -> Child:
        """Start a command in a session of its own, which may read what is given; there is one at a time."""
        self.forget()
        said, say = os.pipe()
        where, there = os.pipe()
        prelude, preface = os.pipe()
        os.write(preface, PRELUDE)
        os.close(preface)
        ask, answer = os.pipe() if talks else (os.open(os.devnull, os.O_RDONLY), -1)
        if given:  # a file without a name
            os.dup2(spare := os.open(self.root, os.O_RDWR | os.O_TMPFILE), ask)
            with open(spare, "wb") as file:
                file.write(given)
            os.lseek(ask, 0, os.SEEK_SET)
        lines, line = os.pipe() if talks else (-1, say)
        cwd = cwd if os.path.isdir(cwd) else self.root
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                for source, target in ((ask, 0), (line, 1), (say, 2), (prelude, 98), (there, 99)):
                    os.dup2(source, target)
                os.chdir(cwd)
                set_limit(resource.RLIMIT_AS, self.bounds["memory"] + HEADROOM)
                set_limit(resource.RLIMIT_FSIZE, self.bounds["disk"] + SPARE)
                for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program inherits that
                    signal.signal(number, signal.SIG_DFL)
                os.execvpe("bash", ["bash", "-c", command], {**self.env, "PWD": cwd, "BASH_ENV": "/dev/fd/98"})
            except BaseException as error:
                os.write(2, f"bash: {error}\n".encode("utf-8", "replace"))
            os._exit(126)
        for fd in {say, there, prelude, ask, line}:
            os.close(fd)
        for fd in (said, where, answer, lines):
            if fd >= 0:
                os.set_blocking(fd, False)
        self.allowed, self.next_look = self.limits(), 0.0
        most = 2048 if talks else self.bounds["output"]
        self.child = Child(pid, said, where, most, (answer, lines) if talks else None)
        return self.child

    def limits(self) -> tuple[int, int]:
        """Return bytes and files above which a command is stopped; one that finds more may still remove some."""
        used, files = self.usage()
        return max(self.bounds["disk"], used), max(self.bounds["files"], files)

    def step(self) -> bool:
        """Wait for what comes next and deal with the command's part of it; true if the host sent something."""
        child = self.child if self.child and self.child.code is None else None
        watched = {0, self.woken} | (child.open if child else set())
        filled = [child.talk[0]] if child and child.talk and child.pending else []
        if child and child.talk and len(child.lines) > LINE:
            watched.discard(child.talk[1])  # it waits until somebody asks
        ready, free, _ = select.select(watched, filled, [], POLL if child else None)
        if self.woken in ready:
            os.read(self.woken, 512)
        if child:
            if free:
                try:
                    del child.pending[: os.write(free[0], child.pending)]
                except BrokenPipeError:
                    child.pending.clear()
            self.take(child)
            if time.monotonic() >= self.next_look:
                child.stopped = child.stopped or self.exceeded(child)
                self.next_look = time.monotonic() + POLL
        self.reap()
        return 0 in ready

    def take(self, child: Child) -> bool:
        """Take some of what the command has written; false if there was nothing."""
        got = False
        for fd in list(child.open):
            if fd == child.said or len(child.lines) <= LINE:
                with contextlib.suppress(BlockingIOError):
                    data = os.read(fd, 1 << 16)
                    got = got or bool(data)
                    if not data:
                        child.open.discard(fd)
                    elif fd == child.said:
                        child.kept.add(data)
                    else:
                        child.lines += data
        return got

    def over(self, child: Child) -> bool:
        """Tell whether the command has ended or reached a bound; if so, nothing of it is left."""
        if child.code is None and not child.stopped:
            return False
        self.clear()
        while self.take(child):  # what is still in the pipes
            pass
        used, files = self.usage()
        full = "disk" if used > self.allowed[0] else "files" if files > self.allowed[1] else ""
        child.stopped = child.stopped or full
        child.code = -signal.SIGKILL if child.code is None else child.code
        return True

    def forget(self) -> None:
        """End the command, if there is one."""
        self.clear()
        child, self.child = self.child, None
        for fd in (child.said, child.where, *(child.talk or ())) if child else ():
            os.close(fd)

    def reap(self) -> bool:
        """Bury the dead, orphans too; false if there are no processes at all."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if self.child and ended[0] == self.child.pid:
                    self.child.code = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            return False
        return True

    def clear(self) -> None:
        """Kill everything but this process, and wait until it is gone."""
        while self.reap():
            # The command's group at once, faster than it can fork; then who has left it, round by round.
            for pid in [-1] if self.first else [*([-self.child.pid] if self.child else []), *self.processes()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)

    def processes(self) -> Iterator[int]:
        """Yield the processes that were started from here, directly or not."""
        if self.first:
            yield from (int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1")
            return
        parents = [os.getpid()]
        while parents:
            folder = f"/proc/{parents.pop()}/task"
            with contextlib.suppress(OSError):
                for thread in os.listdir(folder):
                    with open(f"{folder}/{thread}/children") as file:
                        children = [int(pid) for pid in file.read().split()]
                    parents += children
                    yield from children

    def exceeded(self, child: Child) -> str:
        """Name a bound that the command has reached; empty if it keeps within all."""
        threads = memory = 0
        for pid in self.processes():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
                status = file.read()
                threads += sum(map(int, THREADS.findall(status)))
                memory += sum(map(int, MEMORY.findall(status)))
        used, files = self.usage() if self.first or time.monotonic() > self.next_walk else self.used
        reached = {
            "processes": threads > self.bounds["processes"],
            "memory": memory << 10 > self.bounds["memory"],
            "disk": used > self.allowed[0],
            "files": files > self.allowed[1],
            "output": child.talk is None and child.kept.total > FLOOD,
        }
        return next((name for name, is_reached in reached.items() if is_reached), "")

    def usage(self) -> tuple[int, int]:
        """Count bytes and files in all places that can be written to."""
        if self.first:  # each is a file system of its own
            systems = [os.statvfs(path) for path in self.writable]
            self.used = (
                sum((system.f_blocks - system.f_bfree) * system.f_frsize for system in systems),
                sum(system.f_files - system.f_ffree - 1 for system in systems),
            )
            return self.used
        began, size, files = time.monotonic(), 0, 0
        for path in self.writable:
            for _, info in walk(path):
                size, files = size + info.st_blocks * 512, files + 1
                if files > 4 * self.bounds["files"]:
                    break
        self.next_walk = time.monotonic() + 10 * (time.monotonic() - began)  # at most a tenth of the time
        self.used = (size, files)
        return self.used


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


def check_regular(info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise Refused("is " + KINDS.get(stat.S_IFMT(info.st_mode), "a device"))


def receive() -> tuple[dict[str, Any], bytes]:
    lengths = sys.stdin.buffer.read(8)
    if len(lengths) < 8:
        raise EOFError
    told, data = struct.unpack(">II", lengths)
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
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where the machine runs out of memory, this goes first
    if setup["uid"]:
        os.setgroups([])
        os.setresgid(*[setup["uid"]] * 3)
        os.setresuid(*[setup["uid"]] * 3)
    libc = ctypes.CDLL(None, use_errno=True)

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
        filters = ctypes.create_string_buffer(program, len(program))

        class Program(ctypes.Structure):
            _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

        control(22, 2, ctypes.byref(Program(len(program) // 8, ctypes.addressof(filters))))  # PR_SET_SECCOMP


def leave(agent: Agent) -> None:
    """End: the kernel ends everything with process 1; elsewhere it is done by hand, folder included."""
    if not agent.first:
        agent.clear()
        folder = os.path.dirname(agent.root)
        os.chdir("/")
        # Programs, since Python's own recursion ends at a thousand folders.
        os.spawnvp(os.P_WAIT, "chmod", ["chmod", "-R", "u+rwX", folder])
        os.spawnvp(os.P_WAIT, "rm", ["rm", "-rf", folder])
    os._exit(0)


def main() -> None:
    setup, program = receive()
    confine(setup, program)
    agent = Agent(setup)
    send({"first": agent.first})
    try:
        agent.serve()
    except (EOFError, BrokenPipeError):
        leave(agent)


if __name__ == "__main__":
    main()
