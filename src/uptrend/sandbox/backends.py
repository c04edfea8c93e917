"""Back ends: ways to start the agent behind a wall. They differ in the command that starts it."""

import asyncio
import hashlib
import io
import os
import secrets
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

from uptrend.records import SandboxFailed
from uptrend.sandbox.agent import SPARE
from uptrend.sandbox.launch import can_map_users, find_memory_cgroups, hard_limit, launch, removal
from uptrend.sandbox.seccomp import make_filter
from uptrend.sandbox.workspace import HOME, Bounds, Workspace

SOURCE = Path(__file__).with_name("agent.py").read_bytes()
AGENT = ("-I", "-S", "-c", f"import sys; exec(sys.stdin.buffer.read({len(SOURCE)}))")
WRITABLE = (HOME, "/tmp", "/dev/shm")
# where a container has its memory cgroup: versions 2 and 1
GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
IMAGE = "localhost/uptrend-sandbox"
CONTAINERFILE = Path(__file__).with_name("Containerfile")


@dataclass(frozen=True)
class AgentStart:
    """A command that starts an agent, and what to tell it."""

    command: Sequence[str]
    setup: Mapping[str, Any]
    env: Mapping[str, str] = field(
        default_factory=lambda: {"PATH": os.environ.get("PATH", os.defpath)}
    )
    root: str = HOME
    sweep: Sequence[str] = ()
    group: Path | None = None
    """Memory cgroup to start in; containers have one of their own."""
    maps_users: bool = False
    """Bubblewrap waits until the users of its namespace are mapped."""


@dataclass(frozen=True)
class Sandbox:
    """A back end: opens workspaces with the command that a function of its own makes."""

    name: str
    contains: str
    """One sentence for people who choose."""
    start: Callable[[Bounds, Mapping[str, Path]], AgentStart]

    async def open(
        self, files: Mapping[str, bytes], bounds: Bounds, folders: Mapping[str, Path] = {}
    ) -> Workspace:
        """Open a fresh workspace with some files; `folders` of the host are seen read-only at
        /workspace/KEY.
        """
        real = {}
        for name, folder in folders.items():
            real[name] = Path(folder).resolve(strict=True)
            if PurePosixPath(name).is_absolute() or ".." in name.split("/"):
                raise SandboxFailed(
                    f"The folder {name!r} would not be inside the workspace; give a relative name."
                )
            if (
                os.geteuid() == 0
                and self.name != "process"
                and real[name].stat().st_mode & 0o5 != 0o5
            ):
                raise SandboxFailed(
                    f"Commands run as another user, who may not read {folder}: chmod -R o+rX"
                    f" {folder}"
                )
        try:
            start = await asyncio.to_thread(self.start, bounds, real)  # it may ask a program
            process = await launch(start.command, start.env, start.group, start.maps_users)
        except OSError as error:
            raise SandboxFailed(
                f"{error.filename}: {error.strerror}; install the system package {self.name}."
            ) from None
        workspace = Workspace(process, bounds, start.root, start.sweep)
        try:
            await workspace.begin(SOURCE, start.setup, make_filter(), files)
        except BaseException:
            await workspace.close()
            raise
        return workspace


def _bubblewrap(bounds: Bounds, folders: Mapping[str, Path]) -> AgentStart:
    is_root = os.geteuid() == 0
    maps_users = can_map_users()
    # Root's agent becomes a user that nobody else is, and then gives up these too. Without a user
    # namespace they are rights on the whole machine until then, not on the sandbox alone.
    rights = (
        "--cap-drop ALL --cap-add CAP_SETUID --cap-add CAP_SETGID --cap-add CAP_SETPCAP"
        if is_root
        else ""
    )
    shared = "--unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try"
    users = "--unshare-user" if maps_users or not is_root else ""
    same = "--die-with-parent --new-session --as-pid-1 --hostname sandbox --proc /proc --dev /dev"
    command = ["bwrap", *f"{rights} {shared} {users} {same}".split()]
    # It reads like /dev/zero, whose shared mappings would hold memory that no process is seen to
    # have.
    command += ["--dev-bind-try", "/dev/full", "/dev/zero"]
    for path in WRITABLE:
        command += ["--perms", "1777", "--size", str(bounds.disk + SPARE), "--tmpfs", path]
    # after the writable places: an environment may be in /tmp, or even in /workspace
    system = _system()
    places = {f"{HOME}/{name}": str(folder) for name, folder in folders.items()}
    cgroups = find_memory_cgroups()
    group = cgroups.make(hard_limit(bounds)) if cgroups else None
    if cgroups:
        places[cgroups.files.seen_at] = str(group)
    # bubblewrap's default lets nobody else in
    for path in sorted(_above([*system, *places]) - {*WRITABLE}):
        command += ["--perms", "755", "--dir", path]
    for path, target in system.items():
        command += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    for path in _answers(system):
        command += ["--tmpfs", path]
    for path, folder in places.items():
        command += ["--ro-bind", folder, path]
    for path in ("/proc", "/dev", "/"):  # in /proc, a process may make another one the first to go
        command += ["--remount-ro", path]
    command += ["--", sys.executable, *AGENT]
    setup = _setup(system, uid=_new_user() if is_root else 0, counted=is_root or _counts_apart())
    return AgentStart(
        command, setup, sweep=removal(group) if group else (), group=group, maps_users=maps_users
    )


def _process(bounds: Bounds, folders: Mapping[str, Path]) -> AgentStart:
    # the agent makes it, and removes it
    folder = f"{tempfile.gettempdir()}/uptrend-{secrets.token_hex(8)}"
    copied = [(str(source), name) for name, source in folders.items()]
    path = f"{sys.prefix}/bin:{folder}/bin:{SYSTEM_PATH}"
    env = {"HOME": f"{folder}/workspace", "TMPDIR": f"{folder}/tmp", "PATH": path}
    cgroups = find_memory_cgroups()
    group = cgroups.make(hard_limit(bounds)) if cgroups else None
    setup = _setup(
        _system(), writable=[folder], folders=copied, env=env, groups=[str(group)] if group else []
    )
    end = shlex.join(removal(group)) if group else ":"
    sweep = ["sh", "-c", f'{end}; chmod -R u+rwX "$0"; rm -rf "$0"', folder]
    return AgentStart(
        [sys.executable, *AGENT], setup, root=f"{folder}/workspace", sweep=sweep, group=group
    )


def _container(program: str, bounds: Bounds, folders: Mapping[str, Path]) -> AgentStart:
    (image, is_ours), name = _image(program), f"uptrend-{secrets.token_hex(8)}"
    # else there are 65,536 at most
    user = _new_user() if os.geteuid() == 0 else 1 << 15 | secrets.randbelow(1 << 14)
    size = bounds.disk + SPARE
    is_podman = program == "podman"
    # Podman would first copy into a tmpfs what it covers, and give every container places to write
    # of its own.
    options = f"rw,exec,size={size},mode=1777" + (",notmpcopyup" if is_podman else "")
    # As hard limits above the agent's own; files in memory count as memory. A host's own limits may
    # be too low for the defaults of open files and processes.
    most = hard_limit(bounds)
    options_of_all = f"""run --rm --interactive --name {name} --pull never --log-driver none
        --network none --read-only --cap-drop all --security-opt no-new-privileges
        --user {user}:{user} --hostname sandbox --stop-timeout 0
        --shm-size {size} --memory {most} --memory-swap {most} --pids-limit {bounds.processes + 32}
        --oom-score-adj 1000 --ulimit nofile=1024:1024 --ulimit nproc=1024:1024
        {"--read-only-tmpfs=false" if is_podman else ""}"""
    command = [program, *options_of_all.split()]
    for place in WRITABLE[:2]:
        command += ["--tmpfs", f"{place}:{options}"]
    command += ["--volume", "/dev/full:/dev/zero"]  # as in bubblewrap's
    system = {} if is_ours else _system()
    shown = {path: path for path, target in system.items() if not target}
    for place, folder in {
        **shown,
        **{f"{HOME}/{name}": folder for name, folder in folders.items()},
    }.items():
        command += ["--volume", f"{folder}:{place}:ro"]
    for place in _answers(system):
        command += ["--tmpfs", f"{place}:{options}"]
    setup = _setup(system, counted=True, env={"PATH": SYSTEM_PATH} if is_ours else {})
    command += [image, "python3" if is_ours else sys.executable, *AGENT]
    return AgentStart(command, setup, env=os.environ, sweep=[program, "rm", "--force", name])


@cache
def _image(program: str) -> tuple[str, bool]:
    """Return the image to run, and whether it was built from our Containerfile; else it shows the
    host's system.
    """

    def call(*arguments: str, data: bytes = b"") -> str:
        done = subprocess.run([program, *arguments], input=data, capture_output=True, timeout=120)
        return done.stderr.decode(errors="replace").strip() or "failed" if done.returncode else ""

    if not call("image", "inspect", IMAGE):
        return IMAGE, True
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        system = _system()
        for path in sorted(_above(system) | {*system, *WRITABLE}):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.linkname = link = system.get(path, "")
            entry.type = (
                tarfile.SYMTYPE
                if link
                else tarfile.REGTYPE
                if os.path.isfile(path)
                else tarfile.DIRTYPE
            )
            entry.mode = 0o1777 if path in WRITABLE else 0o755  # which a tmpfs there takes over
            archive.addfile(entry)
    name = f"localhost/uptrend-host:{hashlib.sha256(packed.getvalue()).hexdigest()[:12]}"
    if call("image", "inspect", name) and (
        why := call("import", "-", name, data=packed.getvalue())
    ):
        raise SandboxFailed(f"{program} does not work: {why.splitlines()[-1].rstrip('.?')}.")
    return name, False


NAMESPACES = "Linux namespaces, a user of its own, a filter of system calls."
LIMITED = "The kernel limits its memory."
MEASURED = "Its memory is measured, not limited: no memory cgroup can be made here."
CONTAINER = "A container without network, with a read-only system and a filter of system calls."
BACKENDS: Mapping[str, Sandbox] = {
    "bubblewrap": Sandbox("bubblewrap", NAMESPACES, _bubblewrap),
    "podman": Sandbox("podman", CONTAINER, partial(_container, "podman")),
    "docker": Sandbox("docker", CONTAINER, partial(_container, "docker")),
    "process": Sandbox(
        "process", "No sandbox: bounds only, and no network. For code that you trust.", _process
    ),
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
    """Return a back end that works here; `auto` takes the first that contains what runs in it,
    never `process`.
    """
    tried = ""
    for kind in [
        kind for kind in BACKENDS if kind == name or (name == "auto" and kind != "process")
    ]:
        found = _try(BACKENDS[kind])
        if found.works:
            return BACKENDS[kind]
        tried += f" {kind}: {found.why}"
    raise SandboxFailed(
        f"No sandbox of kind {name} works here; there are auto, {', '.join(BACKENDS)}.{tried}"
    )


def survey() -> list[Usable]:
    """Try every back end."""
    return [_try(backend) for backend in BACKENDS.values()]


def _try(backend: Sandbox) -> Usable:
    async def work() -> Usable:
        began = time.perf_counter()
        workspace = await backend.open({}, Bounds())
        seconds = time.perf_counter() - began
        try:
            output = (await workspace.run("python3 -c 'print(6 * 7)'")).output
        finally:
            await workspace.close()
        if output != "42\n":
            return Usable(
                backend.name, False, f"Python does not run in it: {output.strip()[-300:]}", seconds
            )
        why = [backend.contains, LIMITED if workspace.has_hard_limit else MEASURED]
        if backend.name == "bubblewrap" and os.geteuid() == 0 and not can_map_users():
            why.append("This machine has no user namespaces for it.")
        return Usable(backend.name, True, " ".join(why), seconds)

    try:
        with ThreadPoolExecutor(1) as pool:  # the caller's thread may have a loop that runs
            return pool.submit(asyncio.run, work()).result()
    except SandboxFailed as error:
        return Usable(backend.name, False, str(error))


def _setup(shown: Iterable[str] = (), **told: Any) -> dict[str, Any]:
    env = {
        "PATH": f"{sys.prefix}/bin:/run/bin:{SYSTEM_PATH}",
        "HOME": HOME,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        **told.pop("env", {}),
    }
    hidden = [path for path in shown if path.startswith(HOME + "/")]
    same = {
        "writable": WRITABLE,
        "folders": [],
        "hidden": hidden,
        "uid": 0,
        "counted": False,
        "groups": GROUPS,
    }
    return {**same, **told, "env": env}


def _new_user() -> int:
    """Return a user id that nobody has, out of those that this machine knows: a container may have
    only 65,536.
    """
    top = min(1 << 31, int(Path("/proc/self/uid_map").read_text().split()[2]))
    return top // 2 + secrets.randbelow(top // 2)


def _counts_apart() -> bool:
    """Tell whether the kernel counts the processes of a user in a new user namespace apart, as from
    5.14 on.
    """
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2]) >= (5, 14)


def _above(paths: Iterable[str]) -> set[str]:
    """Return the folders above some paths, but not the root."""
    return {str(parent) for path in paths for parent in Path(path).parents[:-1]}


def _system() -> dict[str, str]:
    """Return what of the host's system is shown: read-only paths, and links with their targets."""
    if sys.platform != "linux":
        raise SandboxFailed(
            f"This is {sys.platform}: use podman or docker, with an image built from"
            f" {CONTAINERFILE}."
        )
    shown = {"/usr": ""}
    for place in [
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/etc/alternatives",
        "/etc/ld.so.cache",
    ]:
        if os.path.exists(place):
            shown[place] = os.readlink(place) if os.path.islink(place) else ""
    if not os.path.exists(f"{sys.prefix}/bin/python"):  # many systems have python3 alone
        shown["/run/bin/python"] = sys.executable
    for prefix in dict.fromkeys(
        [sys.base_prefix, str(Path(sys.executable).resolve().parents[1]), sys.prefix]
    ):
        # Only these: a virtual environment may be made in the folder of a project.
        for part in ("bin", "lib", "lib64", "pyvenv.cfg"):
            path = Path(prefix, part)
            if os.path.exists(path) and not path.is_relative_to("/usr"):
                shown[str(path)] = ""
    return shown


def _answers(system: Mapping[str, str]) -> list[str]:
    """Return folders that are shown but must look empty: they make or hold answers of tasks."""
    package = Path(__file__).parents[2]
    checkout = package.parents[1]
    hidden = {
        package,
        *(
            Path(folder, part)
            for folder in sys.path
            for part in ("uptrend", "sklearn/datasets/data")
        ),
    }
    hidden |= {checkout} if (checkout / "pyproject.toml").exists() else set()
    shown = [path for path, target in system.items() if not target]
    return sorted(
        str(path)
        for path in hidden
        if path.is_dir() and any(path.is_relative_to(place) for place in shown)
    )
