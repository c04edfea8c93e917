"""Cores and memory of this machine, or of the container that this process runs in, and its
packages.
"""

import math
import os
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path


def count_cores() -> int:
    """Return the number of cores that this process may use: a container may allow fewer than the
    machine has.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package; those that are not installed are left out."""
    versions: dict[str, str] = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def free_memory() -> float:
    """Return the bytes of memory that are free, within the limit of a container; infinite where
    nothing says so.
    """
    free = math.inf
    try:
        free = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            # memory in use by the disk cache alone counts as free
            if line.startswith("MemAvailable:"):
                free = 1024.0 * int(line.split()[1])
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        used = int((group / "memory.current").read_text(encoding="ascii"))
        free = min(free, float(limit - used))
    except (OSError, ValueError):  # another system, or no limit
        pass
    return free
