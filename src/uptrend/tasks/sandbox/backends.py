"""Back ends: ways to start the agent behind a wall. They differ in the command that starts it."""

import asyncio
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import uptrend
from uptrend.records import SandboxFailed
from uptrend.tasks.sandbox.agent import SPARE
from uptrend.tasks.sandbox.seccomp import make_filter
from uptrend.tasks.sandbox.workspace import HOME, Bounds, Workspace

SOURCE = Path(__file__).with_name("agent.py").read_bytes()
AGENT = ("-I", "-S", "-c", f"import sys; exec(sys.stdin.buffer.read({len(SOURCE)}))")
WRITABLE = (HOME, "/tmp", "/dev/shm")
INTERNET = (socket.AF_INET, socket.AF_INET6)  # of a network of its own, in which nobody else is


class Sandbox(Protocol):
    """A way to open workspaces."""

    @property
    def name(self) -> str: ...

    async def open(
        self, files: Mapping[str, bytes], bounds: Bounds, folders: Mapping[str, Path] = {}
    ) -> Workspace:
        """Open a fresh workspace with some files; `folders` of the host are seen read-only at /workspace/KEY."""
        ...


@dataclass(frozen=True)
class Start:
    """A command that starts an agent, and what to tell it."""

    command: tuple[str, ...]
    setup: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    root: str = HOME
    sweep: tuple[str, ...] = ()
    families: tuple[int, ...] = (socket.AF_UNIX, *INTERNET)


@dataclass(frozen=True)
class Backend:
    """A sandbox by the function that makes its command."""

    name: str
    contains: str
    """One sentence for people who choose."""
    start: Callable[[Bounds, Mapping[str, Path]], Start]

    async def open(
        self, files: Mapping[str, bytes], bounds: Bounds, folders: Mapping[str, Path] = {}
    ) -> Workspace:
        for name in folders:
            if PurePosixPath(name).is_absolute() or ".." in name.split("/"):
                raise SandboxFailed(f"The folder {name!r} would not be inside the workspace; give a relative name.")
        start = self.start(bounds, {name: Path(folder).resolve(strict=True) for name, folder in folders.items()})
        try:
            process = await asyncio.create_subprocess_exec(
                *start.command, env=start.env, cwd="/", start_new_session=True,  # Ctrl-C in a terminal is for us alone
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise SandboxFailed(f"Could not start {start.command[0]}: {error.strerror}.") from None
        workspace = Workspace(process, bounds, start.root, start.sweep)
        try:
            await workspace.begin(SOURCE, start.setup, make_filter(start.families), files)
        except BaseException:
            await workspace.close()
            raise
        return workspace


def _bubblewrap(bounds: Bounds, folders: Mapping[str, Path]) -> Start:
    program = _need("bwrap", "bubblewrap")
    shared = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    is_root = os.geteuid() == 0
    # Root makes the namespaces itself, and the agent becomes a user that nobody else is.
    rights = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if is_root else []
    command = [program, *(shared if is_root else ["--unshare-all"]), *rights]
    command += ["--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox"]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for path in WRITABLE:
        command += ["--perms", "1777", "--size", str(bounds.disk + SPARE), "--tmpfs", path]
    system = _system()  # after the writable places: an environment may be in /tmp, or even in /workspace
    for path in dict.fromkeys(str(parent) for path in system for parent in reversed(Path(path).parents[:-1])):
        if path not in WRITABLE:  # others may enter, which bubblewrap's own default does not let them
            command += ["--perms", "755", "--dir", path]
    for path, target in system.items():
        command += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    for path in _answers():
        command += ["--tmpfs", path]
    for name, folder in folders.items():
        if is_root and folder.stat().st_mode & 0o5 != 0o5:
            raise SandboxFailed(f"Commands run as another user, who may not read {folder}: chmod -R o+rX {folder}")
        for parent in reversed(PurePosixPath(name).parents[:-1]):
            command += ["--perms", "755", "--dir", f"{HOME}/{parent}"]
        command += ["--ro-bind", str(folder), f"{HOME}/{name}"]
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--", sys.executable, *AGENT]
    return Start(tuple(command), _setup(uid=_new_user() if is_root else 0, counted=is_root or _counts_apart()))


def _process(bounds: Bounds, folders: Mapping[str, Path]) -> Start:  # noqa: ARG001 (a back end's signature)
    folder = f"{tempfile.gettempdir()}/uptrend-{secrets.token_hex(8)}"  # the agent makes it, and removes it
    copied = [(str(source), name) for name, source in folders.items()]
    setup = _setup(writable=[folder], folders=copied, env={"TMPDIR": f"{folder}/tmp"})
    sweep = ("sh", "-c", 'chmod -R u+rwX "$0"; rm -rf "$0"', folder)
    families = (socket.AF_UNIX,)
    return Start((sys.executable, *AGENT), setup, root=f"{folder}/workspace", sweep=sweep, families=families)


BACKENDS: Mapping[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("bubblewrap", "Linux namespaces, a user of its own, a filter of system calls.", _bubblewrap),
        Backend("process", "No sandbox: bounds only, and no network. For code that you trust.", _process),
    )
}


@dataclass(frozen=True)
class Usable:
    """A back end on this machine."""

    name: str
    works: bool
    why: str
    """One sentence: what it does, or why it does not work."""
    seconds: float | None = None
    """Time to open a workspace."""


def find_sandbox(name: str) -> Sandbox:
    """Return a back end that works here; `auto` takes the first that contains what runs in it, never `process`."""
    if name != "auto" and name not in BACKENDS:
        raise SandboxFailed(f"There is no sandbox {name!r}; there are auto, {', '.join(BACKENDS)}.")
    tried = []
    for wanted in [name] if name != "auto" else [known for known in BACKENDS if known != "process"]:
        found = _try(BACKENDS[wanted])
        if found.works:
            return BACKENDS[wanted]
        tried.append(f"{wanted}: {found.why}")
    raise SandboxFailed(f"No sandbox works here. {' '.join(tried)} `uptrend sandbox check` says more.")


def survey() -> list[Usable]:
    """Try every back end."""
    return [_try(backend) for backend in BACKENDS.values()]


def _try(backend: Backend) -> Usable:
    async def work() -> tuple[float, str]:
        began = time.perf_counter()
        workspace = await backend.open({}, Bounds())
        opened = time.perf_counter() - began
        try:
            return opened, (await workspace.run("python3 -c 'print(6 * 7)'")).output
        finally:
            await workspace.close()

    try:
        with ThreadPoolExecutor(1) as pool:  # the caller's thread may have a loop that runs
            opened, output = pool.submit(asyncio.run, work()).result()
    except SandboxFailed as error:
        return Usable(backend.name, False, str(error))
    if output.strip() != "42":
        return Usable(backend.name, False, f"Python does not run in it: {output.strip()[-300:]}")
    return Usable(backend.name, True, backend.contains, opened)


def _need(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise SandboxFailed(f"{program} is not installed; install the system package {package}.")
    return found


def _setup(**told: Any) -> dict[str, Any]:
    env = {
        "PATH": f"{sys.prefix}/bin:/run/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": HOME, "USER": "agent",
        "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0", **told.pop("env", {}),
    }  # fmt: skip
    hidden = [path for path in _system() if path.startswith(HOME + "/")]
    return {"writable": WRITABLE, "folders": [], "hidden": hidden, "uid": 0, "counted": False, **told, "env": env}


def _new_user() -> int:
    """Return a user id that nobody has, out of those that this machine knows: a container may have only 65,536."""
    top = min(1 << 31, int(Path("/proc/self/uid_map").read_text().split()[2]))
    return top // 2 + secrets.randbelow(top // 2)


def _counts_apart() -> bool:
    """Tell whether the kernel counts the processes of a user in a new user namespace apart, as from 5.14 on."""
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2]) >= (5, 14)


def _system() -> dict[str, str]:
    """Return what of the host's system is shown: read-only paths, and links with their targets."""
    shown = {"/usr": ""}
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")):
        if os.path.exists(path):
            shown[str(path)] = os.readlink(path) if path.is_symlink() else ""
    shown |= {path: "" for path in ("/etc/alternatives", "/etc/ld.so.cache") if os.path.exists(path)}
    if not os.path.exists(f"{sys.prefix}/bin/python"):  # many systems have python3 alone
        shown["/run/bin/python"] = sys.executable
    for prefix in dict.fromkeys([sys.base_prefix, str(Path(sys.executable).resolve().parents[1]), sys.prefix]):
        # Only these: a virtual environment may be made in the folder of a project.
        for part in ("bin", "lib", "lib64", "pyvenv.cfg"):
            path = Path(prefix, part)
            if os.path.exists(path) and not path.is_relative_to("/usr"):
                shown[str(path)] = ""
    return shown


def _answers() -> list[str]:
    """Return folders that are shown but must look empty: this package, which makes tasks with their answers."""
    package = Path(uptrend.__file__).parent
    checkout = package.parents[1]
    hidden = {package, *(Path(folder, "uptrend") for folder in sys.path)}
    hidden |= {checkout} if (checkout / "pyproject.toml").exists() else set()
    shown = [path for path, target in _system().items() if not target]
    return sorted(str(path) for path in hidden if path.is_dir() and any(path.is_relative_to(place) for place in shown))
