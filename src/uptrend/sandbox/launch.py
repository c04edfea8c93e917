"""Starts an agent's command where the kernel bounds it: in a memory cgroup, and in a user namespace
that root maps.

A cgroup counts memory that no process is seen to have: pages of shared mappings, buffers and tables
of the kernel. If this user may make no group, only the filter of system calls (seccomp.py) refuses
such memory.
"""

import asyncio
import contextlib
import errno
import functools
import json
import os
import secrets
import shutil
import subprocess
from asyncio.subprocess import Process
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from uptrend.sandbox.agent import DISK_RESERVE_BYTES
from uptrend.sandbox.workspace import Bounds

# Bytes above all bounds: the agent, which ends the command alone and names the bound, must notice
# before the kernel does.
HARD_LIMIT_MARGIN_BYTES = 256 << 20
# Limit of the group that is made to see whether groups can be made.
PROBE_LIMIT_BYTES = 1 << 30
SHELL_PATH = "/bin/sh"
# Makes the command the first that the kernel ends if the machine runs out of memory. If root sets
# it, nothing inside can lower it.
BE_KILLED_FIRST = "{ echo 1000 > /proc/self/oom_score_adj; } 2> /dev/null"
# Ends what is left in an agent's group; 10 seconds are enough for any kill.
REMOVE_GROUP = """
PATH="$PATH:/usr/bin:/bin" tries=200
while [ -d "$0" ] && ! rmdir "$0" 2> /dev/null && [ $tries -gt 0 ]; do
    kill -9 $(cat "$0/cgroup.procs") 2> /dev/null
    tries=$((tries - 1))
    sleep 0.05
done"""
# The shell stays outside of the group and removes it, even if the process that started it was
# killed.
RUN_IN_GROUP = f"""({BE_KILLED_FIRST}; echo 0 > "$0/cgroup.procs" && exec "$@"); \
code=$?{REMOVE_GROUP}; exit $code"""
RUN_WITHOUT_GROUP = f'{BE_KILLED_FIRST}; exec "$@"'
ID_MAPS = (Path("/proc/self/uid_map"), Path("/proc/self/gid_map"))


def hard_limit(bounds: Bounds) -> int:
    """Return the bytes above which the kernel stops a workspace; its files count, since they are in
    memory.
    """
    return bounds.memory + bounds.disk + DISK_RESERVE_BYTES + HARD_LIMIT_MARGIN_BYTES


@dataclass(frozen=True)
class CgroupFiles:
    """File names of one version of cgroups."""

    folder_inside: str
    """Folder of a group inside a sandbox, the same as in containers."""
    memory: str
    """File of the limit of memory."""
    swap: str
    """File of the limit of swap."""
    swap_includes_memory: bool


VERSION_1 = CgroupFiles(
    "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", True
)
VERSION_2 = CgroupFiles("/sys/fs/cgroup", "memory.max", "memory.swap.max", False)


@dataclass(frozen=True)
class MemoryCgroups:
    """A folder in which this process can make memory cgroups."""

    parent: Path
    files: CgroupFiles

    def make(self, limit: int) -> Path:
        """Make a group with a limit."""
        group = self.parent / f"uptrend-{os.getpid()}-{secrets.token_hex(8)}"
        group.mkdir()
        try:
            (group / self.files.memory).write_text(str(limit))
            swap_file = group / self.files.swap
            if swap_file.exists():  # some kernels do not count swap
                swap_limit = limit if self.files.swap_includes_memory else 0
                swap_file.write_text(str(swap_limit))
        except OSError:
            group.rmdir()
            raise
        return group


@functools.cache
def find_memory_cgroups() -> MemoryCgroups | None:
    """Return the folder in which groups can be made and entered; None if this user has none."""
    for cgroups in _candidates():
        try:
            group = cgroups.make(PROBE_LIMIT_BYTES)
        except OSError:
            continue
        command = [SHELL_PATH, "-c", RUN_IN_GROUP, str(group), "true"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return cgroups
        subprocess.run(removal(group), capture_output=True, check=False)
    return None


def _candidates() -> Iterator[MemoryCgroups]:
    """Yield folders in which a group may be possible: below this process's own group, so that its
    limits stay in force.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        version = VERSION_1 if "memory" in controllers.split(",") else VERSION_2
        root = Path(version.folder_inside)
        own = root / path.lstrip("/")
        if version is VERSION_1:
            # In a container, the path may be the one that its group has outside.
            yield MemoryCgroups(own if own.is_dir() else root, version)
        elif not controllers:
            # A group of version 2 that has processes can't have groups with limits below it, so the
            # new one is beside it in most cases.
            parents = [own] if own == root else [own, own.parent]
            for parent in parents:
                with contextlib.suppress(OSError):
                    if "memory" in (parent / "cgroup.subtree_control").read_text().split():
                        yield MemoryCgroups(parent, version)


def removal(group: Path) -> list[str]:
    """Return the command that ends what is in a group, and removes it."""
    return [SHELL_PATH, "-c", REMOVE_GROUP, str(group)]


@functools.cache
def can_map_users() -> bool:
    """Return True for root with user namespaces; containers without the right to make them have
    none.
    """
    if os.geteuid() != 0:
        return False
    command = "bwrap --unshare-user --unshare-pid --cap-drop ALL --ro-bind / / --proc /proc true"
    return subprocess.run(command.split(), capture_output=True, check=False).returncode == 0


async def launch(
    command: Sequence[str], env: Mapping[str, str], group: Path | None, maps_users: bool
) -> Process:
    """Start a command, in a group if there is one; `maps_users` is for a command of bubblewrap that
    waits for the mapping of its users.
    """
    if group:
        script = [SHELL_PATH, "-c", RUN_IN_GROUP, str(group)]
    else:
        script = [SHELL_PATH, "-c", RUN_WITHOUT_GROUP, SHELL_PATH]
    try:
        if not shutil.which(command[0], path=env.get("PATH")):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        if maps_users:
            return await _start_with_users(script, command, env)
        return await _start([*script, *command], env)
    except BaseException:
        if group:
            await asyncio.to_thread(subprocess.run, removal(group), capture_output=True)
        raise


async def _start_with_users(
    script: Sequence[str], command: Sequence[str], env: Mapping[str, str]
) -> Process:
    # Bubblewrap writes the id of its child to the first pipe, and then reads the second one.
    info_fd, child_info_fd = os.pipe()
    child_ready_fd, ready_fd = os.pipe()
    options = ["--info-fd", str(child_info_fd), "--userns-block-fd", str(child_ready_fd)]
    full_command = [*script, command[0], *options, *command[1:]]
    try:
        process = await _start(full_command, env, pass_fds=[child_info_fd, child_ready_fd])
    except BaseException:
        os.close(info_fd)
        os.close(ready_fd)
        raise
    finally:
        os.close(child_info_fd)
        os.close(child_ready_fd)
    try:
        await asyncio.to_thread(_map_users, info_fd, ready_fd)
    except BaseException:
        process.kill()
        raise
    return process


async def _start(
    command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int] = ()
) -> Process:
    return await asyncio.create_subprocess_exec(
        *command,
        env=env,
        cwd="/",
        start_new_session=True,  # Ctrl-C in a terminal is for this process alone
        pass_fds=pass_fds,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def _map_users(info_fd: int, ready_fd: int) -> None:
    """Map every user to itself once bubblewrap has made its namespace: ids stay, their rights
    outside do not.

    If bubblewrap fails, it closes its end and says why on stderr; if users can't be mapped, it
    fails next.
    """
    with (
        open(ready_fd, "wb", buffering=0) as ready_pipe,
        open(info_fd, "rb") as info_pipe,
        contextlib.suppress(OSError),
    ):
        info = b""
        while b"}" not in info:
            line = info_pipe.readline()
            if not line:
                return
            info += line
        child_pid = json.loads(info)["child-pid"]
        for id_map in ID_MAPS:
            identity = ""
            for id_range in id_map.read_text().splitlines():
                first_id, _, count = id_range.split()
                identity += f"{first_id} {first_id} {count}\n"
            Path(f"/proc/{child_pid}/{id_map.name}").write_text(identity)
        ready_pipe.write(b"x")
