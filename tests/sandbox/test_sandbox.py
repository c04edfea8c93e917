"""Sandboxes against hostile commands: contained, the reason told, the host unharmed, and nothing
left over.
"""

import asyncio
import contextlib
import json
import math
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import uptrend
from uptrend.cli.main import main
from uptrend.records import SandboxFailed
from uptrend.sandbox import (
    BACKENDS,
    Bounds,
    CommandOutcome,
    FileProblem,
    Silent,
    Workspace,
    backends,
    find_sandbox,
    survey,
)
from uptrend.sandbox.launch import can_map_users, find_memory_cgroups
from uptrend.tasks.event_loop import run as on_loop

CONTAINED = [
    pytest.param("bubblewrap", marks=pytest.mark.needs_package("bubblewrap")),
    pytest.param("podman", marks=[pytest.mark.needs_package("podman"), pytest.mark.slow]),
]
contained = pytest.mark.parametrize("backend", CONTAINED, indirect=True, scope="module")
everywhere = pytest.mark.parametrize(
    "backend", [*CONTAINED, "process"], indirect=True, scope="module"
)
SMALL = {"seconds": 20.0, "memory": 200 << 20, "processes": 24, "disk": 16 << 20, "files": 2000}


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> str:
    """A back end; one that an ordinary user can't have here is skipped: many systems want root for
    namespaces.
    """
    if os.geteuid() != 0:
        try:
            find_sandbox(request.param)
        except SandboxFailed as error:
            pytest.skip(str(error))
    return request.param


@pytest.fixture(autouse=True)
def leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Fail where a folder for temporary files is not empty afterwards, or a memory cgroup is
    left.
    """
    groups = own_groups(os.getpid())
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
    assert own_groups(os.getpid()) == groups


def own_groups(pid: int) -> set[Path]:
    cgroups = find_memory_cgroups()
    return set(cgroups.parent.glob(f"uptrend-{pid}-*")) if cgroups else set()


@pytest.fixture(scope="module")
def neighbor(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A workspace that is open all the time, and must not notice anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("neighbor")))
        workspace = on_loop(BACKENDS[backend].open({"mine.txt": b"42"}, Bounds()))
    yield workspace
    on_loop(workspace.close())


def own_processes(mark: str, until: float = math.inf) -> list[str]:
    """Return what runs in a workspace, by its namespace of processes or the folder in its
    environment.

    A namespace that is gone leaves its number to another, whose processes began after `until`; it
    is gone when its first process is.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            began = int((process / "stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf(
                "SC_CLK_TCK"
            )
            is_inside = os.readlink(process / "ns" / "pid") == mark
            if began < until and (is_inside or mark.encode() in (process / "environ").read_bytes()):
                found.append((process / "cmdline").read_text())
    return found


async def mark_of(workspace: Workspace) -> str:
    if (
        workspace._root != "/workspace"
    ):  # not asked for: a long path would be cut by a test's bound on output
        return workspace._root.removesuffix("/workspace")
    return (await workspace.run("readlink /proc/self/ns/pid")).output.strip()


@contextlib.asynccontextmanager
async def opened(
    backend: str,
    neighbor: Workspace | None = None,
    has: dict[str, bytes] | None = None,
    **bounds: Any,
) -> AsyncIterator[Workspace]:
    """Open a workspace; afterwards nothing of it is left, and the neighbor works."""
    workspace = await BACKENDS[backend].open(has or {}, Bounds(**bounds))
    mark = await mark_of(workspace)
    until = math.inf if backend == "process" else time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        assert backend == "process" or own_processes(
            mark, until
        )  # the agent: so the mark does find them
        yield workspace
    finally:
        await workspace.close()
    assert own_processes(mark, until) == []
    if neighbor:
        assert (await neighbor.run("cat mine.txt")).output == "42"


STOPPED = {  # by case: command, bound that stops it
    "fork bomb": (":(){ :|:& };:; sleep 30", "processes"),
    "fork bomb of Python": (
        "python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'",
        "processes",
    ),
    "many processes": ("for i in $(seq 500); do sleep 30 & done; wait", "processes"),
    "threads": (
        "python3 -c 'from threading import *; [Thread(target=Event().wait, args=(9,)).start() for _ in range(99)]'",
        "processes",
    ),
    "disk": ("cat /dev/zero > big", "disk"),
    "disk of temporary files": ("cat /dev/zero > ${TMPDIR:-/tmp}/big", "disk"),
    "memory": (
        "python3 -c 'held = bytearray(1 << 29); held[::4096] = b\"x\" * (1 << 17)'",
        "memory",
    ),
    "memory of many": (
        "for i in 1 2 3 4 5 6 7 8; do python3 -c 'import time; x = b\"x\" * (50 << 20); time.sleep(20)' & done; wait",
        "memory",
    ),
    "runs forever": ("while :; do :; done", "time"),
    "ignores SIGTERM": ("trap '' TERM INT HUP; while :; do sleep 0.05; done", "time"),
    "a gigabyte": ("yes | head -c 1G", "output"),
    "a gigabyte of one line": ("head -c 1G /dev/zero", "output"),
    "100,000 entries": (
        "mkdir d; cd d; for i in $(seq 500); do mkdir $i; (cd $i; touch $(seq 200)); done",
        "files",
    ),
}


# Of an ordinary process a bomb is stopped only when it is seen, which may be late.
BOUNDED = [pytest.param(*backend.values, case, id=f"{backend.values[0]}-{case}", marks=backend.marks)
           for backend in (*CONTAINED, pytest.param("process")) for case in STOPPED
           if "bomb" not in case or backend.values != ("process",)]  # fmt: skip


@pytest.mark.parametrize(("backend", "case"), BOUNDED, indirect=["backend"], scope="module")
def test_a_bound_ends_a_command(backend: str, case: str, neighbor: Workspace) -> None:
    command, stopped = STOPPED[case]

    async def play() -> CommandOutcome:
        async with opened(
            backend, neighbor, **{**SMALL, "seconds": 1.5 if stopped == "time" else 30.0}
        ) as workspace:
            outcome = await workspace.run(command)
            again = await workspace.run("rm -rf big d ${TMPDIR:-/tmp}/big; echo $((6 * 7))")
            assert again.output == "42\n", again
        return outcome

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = on_loop(play())
    assert outcome.stopped == stopped, outcome
    assert stopped != "time" or outcome.seconds < 10
    assert outcome.code < 0 or (stopped == "disk" and outcome.code)  # a full disk may also end it
    assert len(outcome.output) < 5 * Bounds().output
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 << 10


# Programs that hold what no process is seen to have; each says so when it has it all. argv: how
# many MiB.
HOARDS = {
    "shared mappings, emptied": """
import mmap, sys
held = []
for _ in range(int(sys.argv[1]) // 4):
    held.append(mmap.mmap(-1, 4 << 20))
    held[-1].write(b"x" * (4 << 20))
    held[-1].madvise(mmap.MADV_DONTNEED)
assert all(chunk[0] == 120 for chunk in held)
""",
    "shared mappings of a device": """
import mmap, os, sys
device, held = os.open("/dev/zero", os.O_RDWR), []
for _ in range(int(sys.argv[1]) // 4):
    held.append(mmap.mmap(device, 4 << 20))
    held[-1].write(b"x" * (4 << 20))
    held[-1].madvise(mmap.MADV_DONTNEED)
assert all(chunk[0] == 120 for chunk in held)
""",
    "semaphores": """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for _ in range(int(sys.argv[1]) // 2):  # 64 bytes each
    if libc.semget(0, 32000, 0o600) < 0:
        raise OSError(ctypes.get_errno(), "semget")
""",
    "TCP buffers": """
import socket, sys
server, held, sent = socket.create_server(("127.0.0.1", 0)), [], 0
while sent < int(sys.argv[1]) << 20:
    held += [socket.create_connection(server.getsockname()), server.accept()[0]]
    for end in held[-2:]:
        end.setblocking(False)
        try:
            while True:
                sent += end.send(bytes(1 << 20))
        except BlockingIOError:
            pass
""",
    "buffers of Unix sockets": """
import os, signal, socket, sys, time
read, write = os.pipe()
pids = []
for _ in range(int(sys.argv[1]) // 32):
    pids.append(os.fork())
    if not pids[-1]:
        held, sent = [], 0
        while sent < 32 << 20:
            held += socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            for end in held[-2:]:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
                end.setblocking(False)
                try:
                    while True:
                        sent += end.send(bytes(100_000))
                except BlockingIOError:
                    time.sleep(0.02)
        os.write(write, b"x")
        signal.pause()
os.close(write)
if sum(len(os.read(read, 1)) for _ in pids) < len(pids):
    raise OSError("too few")
""",
    "pages in pipes": """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
pipe = []
for number in range(int(sys.argv[1]) // 2):  # of each huge page that is unmapped one small page stays in a pipe
    if number % 8 == 0:
        pipe += os.pipe()
    huge = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    huge.madvise(14)
    huge.write(b"x" * (4 << 20))
    start = ctypes.c_char.from_buffer(huge)
    aligned = (ctypes.addressof(start) + (2 << 20) - 1) & -(2 << 20)
    if libc.vmsplice(pipe[-1], ctypes.byref(Part(aligned, 4096)), 1, 0) < 0:
        raise OSError(ctypes.get_errno(), "vmsplice")
    del start
    huge.close()
""",
}
SEEN = """
import sys, time
try:
    exec(open("hoard.py").read())
    print("has it all", flush=True)
    time.sleep(0.5)
    print("kept it")
except OSError as error:
    print("refused", error)
"""


def hoard(backend: str, case: str, neighbor: Workspace | None = None) -> CommandOutcome:
    """Return what becomes of a program that hoards four times what a workspace may have."""
    has = {"hoard.py": HOARDS[case].encode(), "seen.py": SEEN.encode()}

    async def play() -> CommandOutcome:
        async with opened(backend, neighbor, has, **{**SMALL, "memory": 96 << 20}) as workspace:
            outcome = await workspace.run("python3 seen.py 640 < /dev/null")
            assert (await workspace.run("echo $((6 * 7))")).output == "42\n"
        return outcome

    return on_loop(play())


@everywhere
@pytest.mark.parametrize("case", HOARDS)
def test_memory_that_no_process_is_seen_to_have_is_bounded(
    backend: str, case: str, neighbor: Workspace
) -> None:
    if (backend, case) == ("process", "buffers of Unix sockets"):
        pytest.skip(
            "shares its network with the host, so that nobody can tell whose sockets are whose"
        )
    if (backend, case) == ("process", "shared mappings of a device") and not find_memory_cgroups():
        pytest.skip("needs a memory cgroup")
    outcome = hoard(backend, case, neighbor)
    assert "kept it" not in outcome.output, outcome
    assert outcome.stopped == "memory" or "refused" in outcome.output, outcome


@pytest.mark.needs_package("bubblewrap")
@pytest.mark.parametrize("case", HOARDS)
def test_memory_is_bounded_without_cgroups_and_user_namespaces(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "find_memory_cgroups", lambda: None)
    monkeypatch.setattr(backends, "can_map_users", lambda: False)
    outcome = hoard("bubblewrap", case)
    assert "kept it" not in outcome.output, outcome
    assert outcome.stopped == "memory" or "refused" in outcome.output, outcome


@pytest.mark.needs_package("bubblewrap")
@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["shared mappings, emptied", "semaphores", "buffers of Unix sockets"]
)
def test_the_kernel_bounds_memory_that_no_filter_refuses(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not find_memory_cgroups():
        pytest.skip("needs a memory cgroup")
    monkeypatch.setattr(backends, "make_filter", lambda: b"")
    try:
        outcome = hoard("bubblewrap", case)
    except (
        SandboxFailed
    ) as error:  # the kernel chose the agent: no process of the command was larger
        assert "it was killed, as the kernel does" in str(error)  # noqa: PT017 (it need not fail)
        return
    assert outcome.stopped == "memory", outcome


RESOURCES = (
    1 << 24
)  # CAP_SYS_RESOURCE, with which a container engine makes a score that can't be lowered


@contained
def test_a_command_has_no_rights_and_stays_the_first_to_go(
    backend: str, neighbor: Workspace
) -> None:
    async def play() -> tuple[str, str]:
        async with opened(backend, neighbor) as workspace:
            lower = "echo 0 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj /proc/1/oom_score_adj"
            return (await workspace.run(lower)).output, (
                await workspace.run("cat /proc/self/status")
            ).output

    def rights_of(status: str) -> dict[str, int]:
        return {
            name: int(rights, 16)
            for name, rights in re.findall(r"^Cap(\w+):\s*(\w+)", status, re.M)
        }

    scores, status = on_loop(play())
    assert rights_of(status) == dict.fromkeys(("Inh", "Prm", "Eff", "Bnd", "Amb"), 0)
    assert re.search(r"^NoNewPrivs:\s*1$", status, re.M)
    if (
        backend == "bubblewrap"
        or rights_of(Path("/proc/self/status").read_text())["Eff"] & RESOURCES
    ):
        assert scores.splitlines()[-2:] == ["1000", "1000"], scores


@pytest.mark.needs_package("bubblewrap")
def test_root_has_a_user_namespace_and_a_memory_cgroup_where_there_are_any() -> None:
    async def play() -> str:
        async with opened("bubblewrap", memory=96 << 20, disk=16 << 20) as workspace:
            assert workspace.has_hard_limit == (find_memory_cgroups() is not None)
            limits = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes"
            return (
                await workspace.run(f"readlink /proc/self/ns/user; {limits} 2> /dev/null")
            ).output

    namespace, *limits = on_loop(play()).splitlines()
    assert (namespace != os.readlink("/proc/self/ns/user")) == (
        can_map_users() or os.geteuid() != 0
    )
    assert all(96 << 20 < int(limit) < 512 << 20 for limit in limits)
    assert len(limits) == (find_memory_cgroups() is not None)


@contained
def test_ordinary_programs_work(backend: str, neighbor: Workspace) -> None:
    """What a model's commands are likely to use, none of which holds memory out of sight."""
    several = """
import asyncio, mmap, multiprocessing, os, socket, sqlite3, subprocess, tempfile, threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory
import numpy as np

def square(number):
    return number * number

if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
    with ProcessPoolExecutor(2) as pool:
        assert list(pool.map(square, range(3))) == [0, 1, 4]
    value, queue = multiprocessing.Value("i", 3), multiprocessing.Queue()
    queue.put(value.value)
    assert queue.get() == 3
    with multiprocessing.Manager() as manager:
        assert list(manager.list([1, 2])) == [1, 2]
    block = shared_memory.SharedMemory(create=True, size=1 << 16)
    block.buf[0] = 7
    block.close()
    block.unlink()
    kept = np.memmap("kept.bin", np.float32, "w+", shape=(1000,))
    kept[:] = 1
    kept.flush()
    assert np.fromfile("kept.bin", np.float32).sum() == 1000 and np.linalg.inv(np.eye(50)).sum() == 50
    mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    database = sqlite3.connect("base.db")
    database.execute("pragma journal_mode = wal")
    database.execute("create table t (x)")
    assert subprocess.run(["head", "-c", "3", "/dev/zero"], capture_output=True).stdout == bytes(3)
    assert asyncio.run(asyncio.sleep(0, 5)) == 5
    left, right = socket.socketpair()
    left.send(b"x")
    print("all work")
"""

    async def play() -> str:
        has = {
            "several.py": several.encode(),
            "main.c": b'#include <stdio.h>\nint main() { puts("compiled"); }',
        }
        async with opened(backend, neighbor, has) as workspace:
            compiles = "gcc main.c -o main && ./main"
            commits = "mkdir r; cp main.c r; cd r; git init -q && git add . && git status --short"
            return (await workspace.run(f"python several.py; {compiles}; {commits}")).output

    output = on_loop(play())
    assert output.startswith("all work\n"), output
    if shutil.which("gcc") and shutil.which("git"):
        assert output == "all work\ncompiled\nA  main.c\n", output


@contained
def test_nothing_of_the_host_can_be_read(backend: str, neighbor: Workspace, tmp_path: Path) -> None:
    secret = tmp_path / "answers.csv"
    secret.write_text("17 is the answer")
    package = Path(uptrend.__file__).parent
    places = [
        secret,
        package / "tasksets" / "arithmetic.py",
        package.parents[1] / "pyproject.toml",
        Path("/etc/shadow"),
    ]
    places += [Path(folder, "uptrend", "tasksets", "arithmetic.py") for folder in sys.path]

    async def play() -> None:
        async with opened(backend, neighbor) as workspace:
            for place in places:
                shown = await workspace.run(f"cat {place} /proc/1/root/{place} ../../..{place}")
                said = re.findall(r": ([^:]*)\n", shown.output)
                missing = "No such file or directory"
                assert said == [missing, "Permission denied", missing], (place, shown.output)
            assert (
                "No module named"
                in (await workspace.run("python -c 'import uptrend.tasks'")).output
            )
            kept = await workspace.run("env; cat /proc/1/environ")
            assert not {"PYTHONPATH", "CI", "PYTEST_VERSION"} & set(
                re.findall(r"^\w+", kept.output, re.M)
            )
            for place in ("/usr/bin/new", "/etc/new", "/new", "/dev/new", f"{sys.prefix}/lib/new"):
                assert (await workspace.run(f"echo > {place}")).code == 1, place

    on_loop(play())


@contained
def test_an_installed_package_is_hidden(
    backend: str, neighbor: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests run from a checkout, which is never shown; an environment with a copy of Uptrend in
    it is.
    """
    packages = (
        tmp_path
        / "env"
        / "lib"
        / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        / "site-packages"
    )
    for package in ("uptrend", "other"):
        (packages / package).mkdir(parents=True)
        (packages / package / "__init__.py").write_text("print('shown')")
    (tmp_path / "env" / "bin").mkdir()
    (tmp_path / "env" / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "env" / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "bin" / "python"))
    monkeypatch.syspath_prepend(packages)

    async def play() -> None:
        async with opened(backend, neighbor) as workspace:
            looked = await workspace.run(
                f"python -c 'import other'; ls {packages} {packages}/uptrend"
            )
            assert (
                looked.output == f"shown\n{packages}:\nother\nuptrend\n\n{packages}/uptrend:\n"
            ), looked

    on_loop(play())


@everywhere
def test_only_regular_files_of_the_workspace_are_read_and_written(
    backend: str, neighbor: Workspace
) -> None:
    makes = {
        "ln -s /etc/passwd submission.csv": "outside the workspace",
        "ln -s ../../../../etc/passwd submission.csv": "outside the workspace",
        "ln -s /dev/zero submission.csv": "outside the workspace",
        "ln -s submission.csv submission.csv": "levels of symbolic links",
        "mkfifo submission.csv": "is a named pipe",
        "mkdir submission.csv": "is a folder",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"submission.csv\")'": "No such device",
        "truncate -s 10M submission.csv": "larger than 1,000,000 bytes",
        "mkdir d; ln -s / d/up; ln -s d/up/etc/passwd submission.csv": "outside the workspace",
        "true": "No such file",
    }

    async def play() -> None:
        async with opened(backend, neighbor) as workspace:
            for make, why in makes.items():
                assert (await workspace.run(f"rm -rf submission.csv d; {make}")).code == 0, make
                with pytest.raises(FileProblem, match=f"^submission.csv: .*{why}"):
                    await workspace.read("submission.csv", most=1_000_000)
                assert [path for path, _ in await workspace.listing() if "passwd" in path] == []
                if make.startswith(("ln", "mk")):
                    with pytest.raises(FileProblem, match=r"^submission.csv: "):
                        await workspace.write("submission.csv", b"x")
            await workspace.run(
                "mkdir -p in; echo 7 > in/real; ln -sf in/real link; mknod disk b 7 0"
            )
            assert await workspace.read("link") == b"7\n"
            for path in ("/etc/new", "../new", "a\0b", "x" * 5000, "in/real/below"):
                with pytest.raises(FileProblem):
                    await workspace.write(path, b"")

    on_loop(play())


REACH = """
import ctypes, socket, sys
tcp, udp, path, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
def reach(what, family, kind, address):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(2); s.connect(address); s.send(b"hello")
        print("reached", what)
    except OSError as error:
        print("refused", what, error.errno)
for host in ("127.0.0.1", "192.0.2.1"):
    reach("tcp", socket.AF_INET, socket.SOCK_STREAM, (host, tcp))
reach("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", tcp))
reach("unix", socket.AF_UNIX, socket.SOCK_STREAM, path)
reach("abstract", socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + name)
reach("vsock", getattr(socket, "AF_VSOCK", 40), socket.SOCK_STREAM, (2, 1024))
for family in (16, 17, 38):  # netlink, packet, alg
    reach(family, family, socket.SOCK_RAW, ())
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"hello", ("127.0.0.1", udp))
except OSError:
    print("refused udp")
"""


@everywhere
def test_no_network_is_reached(backend: str, neighbor: Workspace, tmp_path: Path) -> None:
    name = f"uptrend-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix, socket.socket(socket.AF_UNIX) as abstract,
        contextlib.chdir(tmp_path),
    ):  # fmt: skip
        udp.bind(("127.0.0.1", 0))
        unix.bind("socket")
        abstract.bind("\0" + name)
        for server in (unix, abstract):
            server.listen()

        async def play() -> str:
            async with opened(backend, neighbor, has={"reach.py": REACH.encode()}) as workspace:
                ports = f"{tcp.getsockname()[1]} {udp.getsockname()[1]}"
                return (
                    await workspace.run(f"python3 reach.py {ports} {tmp_path}/socket {name}")
                ).output

        output = on_loop(play())
        for server in (tcp, udp, *([unix, abstract] if backend != "process" else [])):
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.recvfrom(9) if server is udp else server.accept()
    reached = re.findall(r"reached (\w+)", output)
    assert reached == ([] if backend != "process" else ["unix", "abstract"]), output
    assert "vsock 97" in output  # EAFNOSUPPORT: the filter, not the lack of a device


@everywhere
def test_no_process_is_left_behind(backend: str, neighbor: Workspace) -> None:
    leaving = [
        "sleep 777 & disown; sleep 777 & exit 5",
        "setsid nohup sleep 777 > /dev/null 2>&1 < /dev/null & sleep 0.1; exit 5",
        "python3 -c 'import os, time\nif not os.fork():\n os.setsid()\n if not os.fork(): time.sleep(777)'; exit 5",
        "(trap '' HUP TERM INT; while :; do sleep 777; done) & exit 5",
    ]

    async def play() -> None:
        async with opened(backend, neighbor) as workspace:
            mark = await mark_of(workspace)
            for command in leaving:
                assert (await workspace.run(command)).code == 5
                assert not [line for line in own_processes(mark) if "777" in line], command

    on_loop(play())


@contained
def test_the_agent_is_out_of_reach(backend: str, neighbor: Workspace) -> None:
    ptrace = (
        "import ctypes; c = ctypes.CDLL(None, use_errno=True); exit(c.ptrace(16, {}, 0, 0) == 0)"
    )

    async def play() -> None:
        async with opened(backend, neighbor) as workspace:
            for command in (
                "kill -9 1", "for n in $(seq 64); do kill -$n 1; done", "kill -9 -1",
                "python3 -c 'import os; os.kill(os.getppid(), 9)'", "kill -9 $PPID", "kill -9 0",
            ):  # fmt: skip
                await workspace.run(command)
                assert (await workspace.run("echo here")).output == "here\n", command
            for file in ("mem", "environ", "fd/0", "fd/1", "maps", "cwd/x"):
                refused = await workspace.run(f"cat /proc/1/{file}; echo x > /proc/1/{file}")
                assert refused.code == 1, file
                assert (
                    len(re.findall("Permission denied|Read-only file system", refused.output)) == 2
                ), refused.output
            for call in (ptrace.format(1), ptrace.format("__import__('os').getppid()")):
                assert (await workspace.run(f'python3 -c "{call}"')).code == 0
            limits = "import resource as r; r.prlimit(0, r.RLIMIT_CPU, (60, 60)); r.prlimit(1, r.RLIMIT_CPU, (0, 0))"
            assert "PermissionError" in (await workspace.run(f"python3 -c '{limits}'")).output
            for program in (
                "unshare -Ur true",
                "mount -t tmpfs none /tmp",
                "unshare -m true",
                "chroot / true",
                "renice 19 1",
            ):
                assert (await workspace.run(program)).code != 0, program

    on_loop(play())


@everywhere
def test_output_is_text_that_a_terminal_does_not_obey(backend: str, neighbor: Workspace) -> None:
    async def play() -> None:
        async with opened(backend, neighbor, output=100) as workspace:
            shown = await workspace.run(
                r"printf 'a\033[31mred\007\r\nb\xff\xc2\x9bc\u202e\0'; printf 'err' >&2"
            )
            assert shown.output == "a\\x1b[31mred\\x07\nb�\\x9bc\\u202e\\x00err"
            cut = (await workspace.run('python3 -c \'print("é" * 500, end="")\'')).output
            assert cut == "é" * 25 + "\n[... 900 bytes cut ...]\n" + "é" * 25
            assert (await workspace.run("printf 'x%.0s' $(seq 100)")).output == "x" * 100
            assert (await workspace.run("exec >&- 2>&-; sleep 0.2; exit 4")).code == 4
            assert (await workspace.run("echo \0")).code == 126

    on_loop(play())


@everywhere
def test_a_workspace_keeps_its_files_and_its_folder(backend: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.csv").write_text("1,2")

    async def play() -> None:
        workspace = await BACKENDS[backend].open(
            {"notes/a.txt": b"hello"}, Bounds(), {"data/in": data}
        )
        try:
            assert (await workspace.run("cd notes && cat a.txt && exit 3")).code == 3
            assert workspace.cwd == "/workspace/notes"
            assert (
                await workspace.run("pwd; cat /workspace/data/in/train.csv")
            ).output == "/workspace/notes\n1,2"
            await workspace.run("echo spoiled > ../data/in/train.csv; rm -rf ../data/in")
            await workspace.write("b/c.bin", bytes(range(256)) * 20_000)
            assert await workspace.read("/workspace/notes/b/c.bin") == bytes(range(256)) * 20_000
            listed = [file for file in await workspace.listing() if "data" not in file[0]]
            assert listed == [("notes/a.txt", 5), ("notes/b/c.bin", 5_120_000)]
            await workspace.run("cd /workspace; rm -rf notes; mkdir gone; cd gone; rmdir ../gone")
            assert (await workspace.run("pwd")).output == "/workspace\n"
            numpy = "python -c 'import numpy; print(numpy.ones(3).sum())'; python3 --version"
            assert (await workspace.run(numpy)).output.startswith("3.0\nPython 3")
        finally:
            await workspace.close()
        with pytest.raises(SandboxFailed, match="ended"):
            await workspace.run("true")

    on_loop(play())
    assert (data / "train.csv").read_text() == "1,2"


@everywhere
def test_a_conversation_says_why_it_is_silent(backend: str, neighbor: Workspace) -> None:
    silent = {
        "exec sleep 60": "no answer within 0.5 s",
        "echo broken >&2; exit 7": "ended with code 7.\nbroken",
        "head -c 100M /dev/zero; sleep 60": "a line of more than",
        "python3 -c 'x = b\"x\" * (300 << 20); input()'": "bound of memory",
        "exec < /dev/null; exec >&-; sleep 60": "no answer within 0.5 s",
    }

    async def play() -> None:
        async with opened(backend, neighbor, memory=200 << 20) as workspace:
            for command, why in silent.items():
                talk = await workspace.start(command)
                with pytest.raises(Silent, match=why):
                    await talk.ask("x" * 300_000, seconds=0.5 if "0.5" in why else 30)
                with pytest.raises(Silent, match="no longer running"):
                    await talk.ask(None)
            mark = await mark_of(workspace)
            await workspace.start(
                "python3 -c 'import time; x = b\"x\" * (300 << 20); time.sleep(777)'"
            )  # nobody asks
            while [line for line in own_processes(mark) if "777" in line]:
                await asyncio.sleep(0.05)
            talk = await workspace.start(
                "echo ready; while read line; do echo got ${#line} >&1; done"
            )
            assert await talk.ask(None) == "ready"
            assert await talk.ask("x" * 300_000) == "got 300000"
            await talk.close()
            assert not [line for line in own_processes(mark) if "ready" in line]

    on_loop(play())


@everywhere
def test_who_is_interrupted_leaves_nothing(backend: str, neighbor: Workspace) -> None:
    async def play() -> None:
        async with opened(backend, neighbor) as workspace:
            mark = await mark_of(workspace)
            running = asyncio.ensure_future(workspace.run("echo here > file; sleep 777"))
            await asyncio.sleep(0.3)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            while [line for line in own_processes(mark) if "777" in line]:
                await asyncio.sleep(0.05)
            with pytest.raises(SandboxFailed):
                await workspace.run("true")
        async with opened(backend, neighbor) as workspace:
            running = asyncio.ensure_future(workspace.run("sleep 777"))
            await asyncio.sleep(0.1)
            await workspace.close()
            with pytest.raises(SandboxFailed):
                await running

    on_loop(play())


HOST = """
import asyncio, sys, tempfile
from uptrend.sandbox import BACKENDS, Bounds
async def play():
    workspace = await BACKENDS[sys.argv[1]].open({"a": b""}, Bounds())
    look = await workspace.run('readlink /proc/self/ns/pid; echo "${TMPDIR%/tmp}"')
    print(look.output, flush=True)
    await workspace.run("setsid sleep 777 & sleep 777")
asyncio.run(play())
"""


@everywhere
def test_a_killed_host_leaves_nothing(backend: str, leaves_no_folder: Path) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, backend], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(leaves_no_folder), "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert host.stdout is not None
    namespace, folder = host.stdout.readline().strip(), host.stdout.readline().strip()
    mark = folder or namespace
    try:
        wait_until(lambda: any("777" in line for line in own_processes(mark)))
        line = Path(f"/proc/{first_child(host.pid)}/cmdline").read_text()
        container = re.search(r"--name\0([\w-]+)", line)
        inspect = [
            "podman",
            "container",
            "inspect",
            container[1] if container else "",
            "--format",
            "{{.Id}}",
        ]
        known = (
            subprocess.run(inspect, capture_output=True, text=True).stdout.strip()
            if container
            else "no container"
        )
        assert known
    finally:
        until = math.inf if folder else time.clock_gettime(time.CLOCK_BOOTTIME)
        host.kill()
        host.wait()
    wait_until(lambda: not own_processes(mark, until) and not list(leaves_no_folder.iterdir()))
    wait_until(lambda: not own_groups(host.pid))
    if container:
        wait_until(lambda: subprocess.run(inspect, capture_output=True).returncode != 0)
    assert known not in Path("/proc/self/mountinfo").read_text()


def first_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def wait_until(is_so: Any) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@everywhere
def test_many_at_once_and_fast(backend: str) -> None:
    count = 6 if backend == "podman" else 32

    async def one(number: int) -> str:
        workspace = await BACKENDS[backend].open({"n": str(number).encode()}, Bounds())
        outcome = await workspace.run("sleep 0.2; echo $(($(cat n) * 2))")
        await workspace.close()
        return outcome.output

    async def play() -> list[float]:
        took = []
        for _ in range(3 if backend == "podman" else 20):
            began = time.perf_counter()
            workspace = await BACKENDS[backend].open({}, Bounds())
            took.append(time.perf_counter() - began)
            await workspace.close()
        assert await asyncio.gather(*map(one, range(count))) == [f"{2 * n}\n" for n in range(count)]
        return took

    median = statistics.median(on_loop(play()))
    print(f"{backend} opens in {median * 1000:.0f} ms")
    assert median < (20 if backend == "podman" else 4)


def test_a_sandbox_that_does_not_work_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SandboxFailed, match="No sandbox of kind jail works here; there are auto, bubblewrap"
    ):
        find_sandbox("jail")
    monkeypatch.setenv("PATH", "/nowhere")
    found = {usable.name: usable for usable in survey()}
    assert "install the system package bubblewrap" in found["bubblewrap"].why
    assert found["process"].works
    assert "No sandbox" in found["process"].why
    with pytest.raises(
        SandboxFailed, match=r"of kind auto works here; .*\. bubblewrap: bwrap: No such file"
    ):
        find_sandbox("auto")
    assert find_sandbox("process").name == "process"


@pytest.mark.needs_package("bubblewrap")
def test_the_check_names_the_sandbox_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["sandbox", "check", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (end.value.code, told["auto"]) == (0, "bubblewrap")
    assert [usable["name"] for usable in told["backends"]] == list(BACKENDS)
    assert told["backends"][0]["seconds"] < 10
