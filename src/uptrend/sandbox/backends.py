"""Back ends: ways to start the agent in isolation. They differ in the command that starts it."""

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
from uptrend.sandbox.agent import DISK_RESERVE_BYTES
from uptrend.sandbox.launch import can_map_users, find_memory_cgroups, hard_limit, launch, removal
from uptrend.sandbox.seccomp import make_filter
from uptrend.sandbox.workspace import WORKSPACE_PATH, Bounds, Workspace

AGENT_SOURCE = Path(__file__).with_name("agent.py").read_bytes()
# Python's arguments: the agent's source comes on stdin, before the requests.
AGENT_ARGUMENTS = (
    "-I",
    "-S",
    "-c",
    f"import sys; exec(sys.stdin.buffer.read({len(AGENT_SOURCE)}))",
)
WRITABLE_FOLDERS = (WORKSPACE_PATH, "/tmp", "/dev/shm")
# Folders in which a container has its memory cgroup: versions 2 and 1.
CGROUP_FOLDERS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
# Shown read-only where they exist, beside /usr and Python's own folders.
SYSTEM_PATHS = (
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
)
# Packages in which answers of tasks are.
HIDDEN_PACKAGES = ("uptrend", "sklearn/datasets/data")
IMAGE_NAME = "localhost/uptrend-sandbox"
CONTAINERFILE = Path(__file__).with_name("Containerfile")
IMAGE_TIMEOUT_S = 120
# Processes beyond the bound for the container's own limit: the agent counts first, and names the
# bound.
PROCESS_MARGIN = 32
# Without root, an engine may have 65,536 user ids at most; these are from the upper half.
MIN_CONTAINER_UID = 1 << 15
CONTAINER_UIDS = 1 << 14


@dataclass(frozen=True)
class AgentStart:
    """A command that starts an agent, and its setup."""

    command: Sequence[str]
    setup: Mapping[str, Any]
    env: Mapping[str, str] = field(
        default_factory=lambda: {"PATH": os.environ.get("PATH", os.defpath)}
    )
    root: str = WORKSPACE_PATH
    cleanup: Sequence[str] = ()
    """Command that removes what an agent leaves if it is killed."""
    group: Path | None = None
    """Memory cgroup to start in; containers have one of their own."""
    maps_users: bool = False
    """True for bubblewrap that waits until the users of its namespace are mapped."""


@dataclass(frozen=True)
class Sandbox:
    """A back end: opens workspaces with the command that a function of its own makes."""

    name: str
    isolation: str
    """One sentence on what it isolates, to choose by."""
    start: Callable[[Bounds, Mapping[str, Path]], AgentStart]

    async def open(
        self, files: Mapping[str, bytes], bounds: Bounds, folders: Mapping[str, Path] = {}
    ) -> Workspace:
        """Open a fresh workspace with some files; `folders` of the host are visible read-only at
        /workspace/KEY.
        """
        real_folders = {}
        for name, folder in folders.items():
            real_folders[name] = self._check_folder(name, folder)
        try:
            # In a thread, as it may run a container engine.
            start = await asyncio.to_thread(self.start, bounds, real_folders)
            process = await launch(start.command, start.env, start.group, start.maps_users)
        except OSError as error:
            raise SandboxFailed(
                f"{error.filename}: {error.strerror}; install the system package {self.name}."
            ) from None
        workspace = Workspace(process, bounds, start.root, start.cleanup)
        try:
            await workspace.begin(AGENT_SOURCE, start.setup, make_filter(), files)
        except BaseException:
            await workspace.close()
            raise
        return workspace

    def _check_folder(self, name: str, folder: Path) -> Path:
        real_folder = Path(folder).resolve(strict=True)
        if PurePosixPath(name).is_absolute() or ".." in name.split("/"):
            raise SandboxFailed(
                f"The folder {name!r} would not be inside the workspace; give a relative name."
            )
        runs_as_other_user = os.geteuid() == 0 and self.name != "process"
        can_others_read = real_folder.stat().st_mode & 0o5 == 0o5
        if runs_as_other_user and not can_others_read:
            raise SandboxFailed(
                f"Commands run as another user, who may not read {folder}: chmod -R o+rX {folder}"
            )
        return real_folder


def _bubblewrap(bounds: Bounds, folders: Mapping[str, Path]) -> AgentStart:
    is_root = os.geteuid() == 0
    maps_users = can_map_users()
    options: list[str] = []
    if is_root:
        # The agent needs these to become another user, and then gives them up. Without a user
        # namespace, they are rights on the whole machine until then, not on the sandbox alone.
        capabilities = "--cap-add CAP_SETUID --cap-add CAP_SETGID --cap-add CAP_SETPCAP"
        options += shlex.split(f"--cap-drop ALL {capabilities}")
    options += shlex.split("--unshare-ipc --unshare-pid --unshare-net --unshare-uts")
    options.append("--unshare-cgroup-try")
    if maps_users or not is_root:
        options.append("--unshare-user")
    options += shlex.split("--die-with-parent --new-session --as-pid-1 --hostname sandbox")
    options += shlex.split("--proc /proc --dev /dev")
    # /dev/full reads like /dev/zero, whose shared mappings would hold memory that no process is
    # seen to have.
    options += ["--dev-bind-try", "/dev/full", "/dev/zero"]
    size = str(bounds.disk + DISK_RESERVE_BYTES)
    for path in WRITABLE_FOLDERS:
        options += ["--perms", "1777", "--size", size, "--tmpfs", path]

    # After the writable folders: Python's environment may be in /tmp, or even in /workspace.
    system = _system()
    mounts = {f"{WORKSPACE_PATH}/{name}": str(folder) for name, folder in folders.items()}
    cgroups = find_memory_cgroups()
    group = cgroups.make(hard_limit(bounds)) if cgroups else None
    if cgroups:
        mounts[cgroups.files.folder_inside] = str(group)
    # By bubblewrap's default, folders above these could not be entered by other users.
    for path in sorted(_above([*system, *mounts]) - {*WRITABLE_FOLDERS}):
        options += ["--perms", "755", "--dir", path]
    for path, target in system.items():
        options += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    for path in _answer_folders(system):
        options += ["--tmpfs", path]
    for path, folder in mounts.items():
        options += ["--ro-bind", folder, path]
    # /proc too, where a process could make another one the first that the kernel kills.
    for path in ("/proc", "/dev", "/"):
        options += ["--remount-ro", path]

    uid = _unused_uid() if is_root else 0
    setup = _setup(system, uid=uid, counted=is_root or _counts_by_namespace())
    return AgentStart(
        ["bwrap", *options, "--", sys.executable, *AGENT_ARGUMENTS],
        setup,
        cleanup=removal(group) if group else (),
        group=group,
        maps_users=maps_users,
    )


def _process(bounds: Bounds, folders: Mapping[str, Path]) -> AgentStart:
    # The agent makes this folder, and removes it.
    folder = f"{tempfile.gettempdir()}/uptrend-{secrets.token_hex(8)}"
    copies = [(str(source), name) for name, source in folders.items()]
    path = f"{sys.prefix}/bin:{folder}/bin:{SYSTEM_PATH}"
    env = {"HOME": f"{folder}/workspace", "TMPDIR": f"{folder}/tmp", "PATH": path}
    cgroups = find_memory_cgroups()
    group = cgroups.make(hard_limit(bounds)) if cgroups else None
    groups = [str(group)] if group else []
    setup = _setup(_system(), writable=[folder], folders=copies, env=env, groups=groups)
    end_group = shlex.join(removal(group)) if group else ":"
    return AgentStart(
        [sys.executable, *AGENT_ARGUMENTS],
        setup,
        root=f"{folder}/workspace",
        cleanup=["sh", "-c", f'{end_group}; chmod -R u+rwX "$0"; rm -rf "$0"', folder],
        group=group,
    )


def _container(program: str, bounds: Bounds, folders: Mapping[str, Path]) -> AgentStart:
    image, is_own_image = _image(program)
    container = f"uptrend-{secrets.token_hex(8)}"
    if os.geteuid() == 0:
        uid = _unused_uid()
    else:
        uid = MIN_CONTAINER_UID + secrets.randbelow(CONTAINER_UIDS)
    size = bounds.disk + DISK_RESERVE_BYTES
    tmpfs_options = f"rw,exec,size={size},mode=1777"
    podman_options = ""
    if program == "podman":
        # Podman would copy into a tmpfs what it covers, and add writable folders of its own.
        tmpfs_options += ",notmpcopyup"
        podman_options = "--read-only-tmpfs=false"
    # Hard limits above the agent's own; files in memory count as memory. The host's limits may be
    # too low for the defaults of open files and processes.
    memory = hard_limit(bounds)
    processes = bounds.processes + PROCESS_MARGIN
    options = f"""run --rm --interactive --name {container} --pull never --log-driver none
        --network none --read-only --cap-drop all --security-opt no-new-privileges
        --user {uid}:{uid} --hostname sandbox --stop-timeout 0
        --shm-size {size} --memory {memory} --memory-swap {memory} --pids-limit {processes}
        --oom-score-adj 1000 --ulimit nofile=1024:1024 --ulimit nproc=1024:1024
        {podman_options}"""
    command = [program, *options.split()]
    for folder in (WORKSPACE_PATH, "/tmp"):  # /dev/shm by --shm-size
        command += ["--tmpfs", f"{folder}:{tmpfs_options}"]
    command += ["--volume", "/dev/full:/dev/zero"]  # as in bubblewrap's
    system = {} if is_own_image else _system()
    for path, target in system.items():
        if not target:
            command += ["--volume", f"{path}:{path}:ro"]
    for name, source in folders.items():
        command += ["--volume", f"{source}:{WORKSPACE_PATH}/{name}:ro"]
    for folder in _answer_folders(system):
        command += ["--tmpfs", f"{folder}:{tmpfs_options}"]
    python = "python3" if is_own_image else sys.executable
    return AgentStart(
        [*command, image, python, *AGENT_ARGUMENTS],
        _setup(system, counted=True, env={"PATH": SYSTEM_PATH} if is_own_image else {}),
        env=os.environ,
        cleanup=[program, "rm", "--force", container],
    )


@cache
def _image(program: str) -> tuple[str, bool]:
    """Return the image to run, and True if it was built from Uptrend's Containerfile; otherwise it
    is empty, for the host's system to be mounted in.
    """
    if not _error_of(program, "image", "inspect", IMAGE_NAME):
        return IMAGE_NAME, True
    archive = _pack_empty_system()
    name = f"localhost/uptrend-host:{hashlib.sha256(archive).hexdigest()[:12]}"
    if _error_of(program, "image", "inspect", name):
        error = _error_of(program, "import", "-", name, stdin=archive)
        if error:
            last_line = error.splitlines()[-1].rstrip(".?")
            raise SandboxFailed(f"{program} does not work: {last_line}.")
    return name, False


def _error_of(program: str, *arguments: str, stdin: bytes = b"") -> str:
    """Run a program; return its error, empty if it succeeded."""
    result = subprocess.run(
        [program, *arguments], input=stdin, capture_output=True, timeout=IMAGE_TIMEOUT_S
    )
    if not result.returncode:
        return ""
    return result.stderr.decode(errors="replace").strip() or "failed"


def _pack_empty_system() -> bytes:
    """Return a tar archive with the folders, links and empty files that the host's system is
    mounted on.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        system = _system()
        for path in sorted(_above(system) | {*system, *WRITABLE_FOLDERS}):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.linkname = system.get(path, "")
            if entry.linkname:
                entry.type = tarfile.SYMTYPE
            elif os.path.isfile(path):
                entry.type = tarfile.REGTYPE
            else:
                entry.type = tarfile.DIRTYPE
            # A tmpfs that is mounted on a folder takes its mode over.
            entry.mode = 0o1777 if path in WRITABLE_FOLDERS else 0o755
            archive.addfile(entry)
    return packed.getvalue()


NAMESPACE_ISOLATION = "Linux namespaces, a user of its own, a filter of system calls."
CONTAINER_ISOLATION = (
    "A container without network, with a read-only system and a filter of system calls."
)
NO_ISOLATION = "No sandbox: bounds only, and no network. For code that you trust."
BACKENDS: Mapping[str, Sandbox] = {
    "bubblewrap": Sandbox("bubblewrap", NAMESPACE_ISOLATION, _bubblewrap),
    "podman": Sandbox("podman", CONTAINER_ISOLATION, partial(_container, "podman")),
    "docker": Sandbox("docker", CONTAINER_ISOLATION, partial(_container, "docker")),
    "process": Sandbox("process", NO_ISOLATION, _process),
}


@dataclass(frozen=True)
class BackendStatus:
    """Result of trying a back end on this machine."""

    name: str
    works: bool
    why: str
    """One sentence: what it does, or why it does not work."""
    seconds: float | None = None
    """Time to open a workspace."""


def find_sandbox(name: str) -> Sandbox:
    """Return a back end that works here; `auto` takes the first that does, but never `process`,
    which isolates nothing.
    """
    failures = ""
    for kind, backend in BACKENDS.items():
        if kind != name and (name != "auto" or kind == "process"):
            continue
        status = _try(backend)
        if status.works:
            return backend
        failures += f" {kind}: {status.why}"
    raise SandboxFailed(
        f"No sandbox of kind {name} works here; there are auto, {', '.join(BACKENDS)}.{failures}"
    )


def survey() -> list[BackendStatus]:
    """Try every back end."""
    return [_try(backend) for backend in BACKENDS.values()]


def _try(backend: Sandbox) -> BackendStatus:
    try:
        # In a thread of its own, since the caller's may have an event loop that runs.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, _open_and_run(backend)).result()
    except SandboxFailed as error:
        return BackendStatus(backend.name, False, str(error))


async def _open_and_run(backend: Sandbox) -> BackendStatus:
    began = time.perf_counter()
    workspace = await backend.open({}, Bounds())
    seconds = time.perf_counter() - began
    try:
        outcome = await workspace.run("python3 -c 'print(6 * 7)'")
    finally:
        await workspace.close()
    if outcome.output != "42\n":
        error = outcome.output.strip()[-300:]
        return BackendStatus(backend.name, False, f"Python does not run in it: {error}", seconds)
    sentences = [backend.isolation]
    if workspace.has_hard_limit:
        sentences.append("The kernel limits its memory.")
    else:
        sentences.append("Its memory is measured, not limited: no memory cgroup can be made here.")
    if backend.name == "bubblewrap" and os.geteuid() == 0 and not can_map_users():
        sentences.append("This machine has no user namespaces for it.")
    return BackendStatus(backend.name, True, " ".join(sentences), seconds)


def _setup(
    system: Iterable[str] = (), env: Mapping[str, str] | None = None, **overrides: Any
) -> dict[str, Any]:
    """Return the setup of an agent: see Agent and confine in agent.py."""
    full_env = {
        "PATH": f"{sys.prefix}/bin:/run/bin:{SYSTEM_PATH}",
        "HOME": WORKSPACE_PATH,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        **(env or {}),
    }
    defaults = {
        "writable": WRITABLE_FOLDERS,
        "folders": [],
        # Parts of the system that are in the workspace: an environment of Python, perhaps.
        "hidden": [path for path in system if path.startswith(WORKSPACE_PATH + "/")],
        "uid": 0,
        "counted": False,
        "groups": CGROUP_FOLDERS,
    }
    return {**defaults, **overrides, "env": full_env}


def _unused_uid() -> int:
    """Return a random user id in the upper half of those that exist here: a container may have only
    65,536.
    """
    n_uids = int(Path("/proc/self/uid_map").read_text().split()[2])
    half = min(1 << 31, n_uids) // 2
    return half + secrets.randbelow(half)


def _counts_by_namespace() -> bool:
    """Return True if the kernel counts a user's processes by user namespace, as from 5.14 on."""
    major, minor = os.uname().release.split("-")[0].split(".")[:2]
    return (int(major), int(minor)) >= (5, 14)


def _above(paths: Iterable[str]) -> set[str]:
    """Return the folders above some paths, but not the root."""
    folders: set[str] = set()
    for path in paths:
        folders.update(map(str, Path(path).parents[:-1]))
    return folders


def _system() -> dict[str, str]:
    """Return the parts of the host's system that are visible: read-only paths with an empty string,
    and links with their targets.
    """
    if sys.platform != "linux":
        raise SandboxFailed(
            f"This is {sys.platform}: use podman or docker, with an image built from"
            f" {CONTAINERFILE}."
        )
    visible = {"/usr": ""}
    for path in SYSTEM_PATHS:
        if os.path.exists(path):
            visible[path] = os.readlink(path) if os.path.islink(path) else ""
    if not os.path.exists(f"{sys.prefix}/bin/python"):  # many systems have only python3
        visible["/run/bin/python"] = sys.executable
    executable_prefix = str(Path(sys.executable).resolve().parents[1])
    for prefix in dict.fromkeys([sys.base_prefix, executable_prefix, sys.prefix]):
        # Only these: a virtual environment may be in the folder of a project.
        for part in ("bin", "lib", "lib64", "pyvenv.cfg"):
            python_path = Path(prefix, part)
            if os.path.exists(python_path) and not python_path.is_relative_to("/usr"):
                visible[str(python_path)] = ""
    return visible


def _answer_folders(system: Mapping[str, str]) -> list[str]:
    """Return visible folders that must look empty: code or data in them gives answers of tasks
    away.
    """
    package = Path(__file__).parents[2]
    checkout = package.parents[1]
    candidates = {package}
    for folder in sys.path:
        for part in HIDDEN_PACKAGES:
            candidates.add(Path(folder, part))
    if (checkout / "pyproject.toml").exists():
        candidates.add(checkout)
    visible = [path for path, target in system.items() if not target]
    answer_folders = []
    for candidate in candidates:
        is_visible = any(candidate.is_relative_to(path) for path in visible)
        if is_visible and candidate.is_dir():
            answer_folders.append(str(candidate))
    return sorted(answer_folders)
