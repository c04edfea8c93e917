"""This machine: its cores, memory and installed packages, and its way to the Hugging Face hub. No
torch.
"""

import http.client
import math
import os
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

HUB_TIMEOUT_S = 3.0
"""Seconds within which the hub must answer."""
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


def hub_problem() -> str:
    """Return why the hub does not answer; empty where it does, and where the user switched it off:
    then libraries look into their caches at once.
    """
    if any(
        os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in OFFLINE_VARIABLES
    ):
        return ""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    scheme = endpoint.partition(":")[0]
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all") or ""
    if proxy.startswith("socks"):  # the libraries speak it, urllib does not
        return ""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({scheme: proxy} if proxy else {})
    )
    said = [f"no answer within {HUB_TIMEOUT_S:g} s"]

    def ask() -> None:
        try:
            opener.open(
                urllib.request.Request(endpoint, method="HEAD"), timeout=HUB_TIMEOUT_S
            ).close()
            said.append("")
        except urllib.error.HTTPError:  # an answer, whatever it says
            said.append("")
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            # the libraries may trust certificates that Python does not
            if isinstance(reason, ssl.SSLError):
                said.append("")
            elif not isinstance(reason, TimeoutError):
                said.append(getattr(reason, "strerror", None) or str(reason))

    # In a thread, as no timeout holds for looking up a name.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT_S)
    if not said[-1]:
        return ""
    through = f" through the proxy {proxy}" if proxy else ""
    return (
        f"{endpoint} can't be reached{through} ({said[-1]}). Connect to it, or set HF_ENDPOINT to a"
        " mirror"
    )


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
