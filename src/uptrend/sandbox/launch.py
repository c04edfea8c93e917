"""Starts an agent's command where the kernel bounds it: in a memory cgroup, and in a user namespace
that root maps.

A cgroup counts what no look at processes sees: pages of shared mappings, buffers and tables of the
kernel. Where this user may make no group, what can't be seen is refused by the filter of system
calls alone.
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

from uptrend.sandbox.agent import SPARE
from uptrend.sandbox.workspace import Bounds

HARD_LIMIT_MARGIN = 256 << 20
"""Bytes above all bounds, so that the agent, which spares itself and names the bound, comes before
the kernel.
"""
SHELL = "/bin/sh"
# The first to go where the machine runs out of memory. Root can set it so that nothing inside
# lowers it.
FIRST_TO_GO = "{ echo 1000 > /proc/self/oom_score_adj; } 2> /dev/null"
# Ends what an agent leaves in its group that did not end by itself; 10 seconds are enough for any
# kill.
REMOVE_GROUP = """
PATH="$PATH:/usr/bin:/bin" tries=200
while [ -d "$0" ] && ! rmdir "$0" 2> /dev/null && [ $tries -gt 0 ]; do
    kill -9 $(cat "$0/cgroup.procs") 2> /dev/null
    tries=$((tries - 1))
    sleep 0.05
done"""
# The shell stays outside of the group and removes it, also when whoever started it was killed.
IN_GROUP = (
    f'({FIRST_TO_GO}; echo 0 > "$0/cgroup.procs" && exec "$@"); code=$?{REMOVE_GROUP}; exit $code'
)
WITHOUT_GROUP = f'{FIRST_TO_GO}; exec "$@"'
USERS = Path("/proc/self/uid_map"), Path("/proc/self/gid_map")


def hard_limit(bounds: Bounds) -> int:
    """Return the bytes above which the kernel stops a workspace: files in memory count as
    memory.
    """
    return bounds.memory + bounds.disk + SPARE + HARD_LIMIT_MARGIN


@dataclass(frozen=True)
class CgroupFiles:
    """Names of one version of cgroups."""

    seen_at: str
    """Folder of a group inside a sandbox, which is where containers have it."""
    memory: str
    """Limit of memory."""
    swap: str
    """Limit of swap."""
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
            if (group / self.files.swap).exists():  # the kernel may not count swap
                (group / self.files.swap).write_text(
                    str(limit) if self.files.swap_includes_memory else "0"
                )
        except OSError:
            group.rmdir()
            raise
        return group


@functools.cache
def find_memory_cgroups() -> MemoryCgroups | None:
    """Return where groups can be made and entered; none where the system gives this user no such
    place.
    """
    for cgroups in _places():
        try:
            group = cgroups.make(1 << 30)
        except OSError:
            continue
        entered = subprocess.run(
            [SHELL, "-c", IN_GROUP, str(group), "true"], capture_output=True, check=False
        )
        if entered.returncode == 0:
            return cgroups
        subprocess.run(removal(group), capture_output=True, check=False)
    return None


def _places() -> Iterator[MemoryCgroups]:
    """Yield where a group may be possible: below this process's own, so that the limits of that one
    stay in force.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        version = VERSION_1 if "memory" in controllers.split(",") else VERSION_2
        root = Path(version.seen_at)
        own = root / path.lstrip("/")
        if version is VERSION_1:
            # A container may be given the path that its group has outside.
            yield MemoryCgroups(own if own.is_dir() else root, version)
        elif not controllers:
            # A group of version 2 that has processes has no groups with limits, so ours is beside
            # it in most cases.
            for parent in [own, own.parent] if own != root else [own]:
                with contextlib.suppress(OSError):
                    if "memory" in (parent / "cgroup.subtree_control").read_text().split():
                        yield MemoryCgroups(parent, version)


def removal(group: Path) -> list[str]:
    """Return the command that ends what is in a group, and removes it."""
    return [SHELL, "-c", REMOVE_GROUP, str(group)]


@functools.cache
def can_map_users() -> bool:
    """Tell whether root gets a user namespace here; a container without the right to make them does
    not.
    """
    probe = "bwrap --unshare-user --unshare-pid --cap-drop ALL --ro-bind / / --proc /proc true"
    return (
        os.geteuid() == 0
        and subprocess.run(probe.split(), capture_output=True, check=False).returncode == 0
    )


async def launch(
    command: Sequence[str], env: Mapping[str, str], group: Path | None, maps_users: bool
) -> Process:
    """Start a command in a group, if there is one; bubblewrap gets its users mapped, if it asks for
    that.
    """
    script = [SHELL, "-c", IN_GROUP, str(group)] if group else [SHELL, "-c", WITHOUT_GROUP, SHELL]
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
    (info, info_there), (ready_there, ready) = os.pipe(), os.pipe()
    options = ["--info-fd", str(info_there), "--userns-block-fd", str(ready_there)]
    try:
        started = _start(
            [*script, command[0], *options, *command[1:]], env, pass_fds=[info_there, ready_there]
        )
        process = await started
    except BaseException:
        os.close(info)
        os.close(ready)
        raise
    finally:
        os.close(info_there)
        os.close(ready_there)
    try:
        await asyncio.to_thread(_map_users, info, ready)
    except BaseException:
        process.kill()
        raise
    return process


async def _start(
    command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int] = ()
) -> Process:
    return await asyncio.create_subprocess_exec(
        # Ctrl-C in a terminal is for us alone
        *command,
        env=env,
        cwd="/",
        start_new_session=True,
        pass_fds=pass_fds,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def _map_users(info: int, ready: int) -> None:
    """Map every user to itself once bubblewrap has made its namespace: an id stays, its rights
    outside do not.

    Bubblewrap that fails closes its end, and says why on stderr; where users can't be mapped it
    fails next.
    """
    with (
        open(ready, "wb", buffering=0) as go_on,
        open(info, "rb") as told,
        contextlib.suppress(OSError),
    ):
        text = b""
        while b"}" not in text:
            line = told.readline()
            if not line:
                return
            text += line
        child = json.loads(text)["child-pid"]
        for mapped in USERS:
            ranges = [line.split() for line in mapped.read_text().splitlines()]
            lines = "".join(f"{first} {first} {count}\n" for first, _, count in ranges)
            Path(f"/proc/{child}/{mapped.name}").write_text(lines)
        go_on.write(b"x")
