"""This machine: its cores, memory, installed packages and environment, and its way to the Hugging
Face hub. No torch.
"""

import http.client
import math
import os
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

HUB_TIMEOUT_S = 3.0
"""Time limit of the hub's answer."""
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
RECORDED_PACKAGES = (
    "uptrend",
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "trl",
    "accelerate",
    "datasets",
    "deepspeed",
    "vllm",
    "unsloth",
    "verifiers",
    "bitsandbytes",
    "flash-attn",
    "flashinfer-python",
    "liger-kernel",
    "triton",
    "xformers",
    "pyarrow",
)
"""Packages whose versions a run records: those that compute, sample or synchronize."""
RECORDED_VARIABLES = (
    "VLLM_",
    "NCCL_",
    "PYTORCH_",
    "TORCH",
    "CUBLAS_",
    "CUDA_",
    "NVIDIA_TF32_OVERRIDE",
    "FLASHINFER_",
    "TRITON_",
    "XFORMERS_",
    "UNSLOTH_",
    "ACCELERATE_",
    "DEEPSPEED_",
    "OMP_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
)
"""Beginnings of the names of environment variables that a run records."""
# Words in the name of a variable whose value may be a secret, and characters of a longer one than
# any switch.
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "AUTH")
MAX_VARIABLE_CHARACTERS = 200


def hub_problem() -> str:
    """Return the reason why the hub does not answer; empty if it does, or if the user switched it
    off: then libraries use their caches at once.
    """
    for name in OFFLINE_VARIABLES:
        if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE"):
            return ""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    scheme = endpoint.partition(":")[0]
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all") or ""
    if proxy.startswith("socks"):  # the libraries can use it, urllib can't
        return ""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({scheme: proxy} if proxy else {})
    )
    # The last one counts, empty for an answer.
    problems = [f"no answer within {HUB_TIMEOUT_S:g} s"]

    def request_head() -> None:
        request = urllib.request.Request(endpoint, method="HEAD")
        try:
            opener.open(request, timeout=HUB_TIMEOUT_S).close()
            problems.append("")
        except urllib.error.HTTPError:  # any status is an answer
            problems.append("")
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            # The libraries may trust certificates that Python does not.
            if isinstance(reason, ssl.SSLError):
                problems.append("")
            elif not isinstance(reason, TimeoutError):
                problems.append(getattr(reason, "strerror", None) or str(reason))

    # In a thread, because no timeout applies to the lookup of a host name.
    thread = threading.Thread(target=request_head, daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT_S)
    problem = problems[-1]
    if not problem:
        return ""
    proxy_text = f" through the proxy {proxy}" if proxy else ""
    return (
        f"{endpoint} can't be reached{proxy_text} ({problem}). Connect to it, or set HF_ENDPOINT to"
        " a mirror"
    )


def count_cores() -> int:
    """Return the number of cores that this process may use: a container may allow fewer than the
    machine has.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package; those that are not installed are left out."""
    versions: dict[str, str] = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def recorded_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables that change how a run computes; never one that may hold a
    secret or an address.
    """
    variables = os.environ if environment is None else environment
    recorded: dict[str, str] = {}
    for name, value in sorted(variables.items()):
        is_named = name.startswith(RECORDED_VARIABLES)
        # `TOKENIZERS_PARALLELISM` holds no token, though its name has the word.
        words = name.upper().split("_")
        may_be_secret = any(word in words for word in SECRET_WORDS) or "://" in value
        if is_named and not may_be_secret and len(value) <= MAX_VARIABLE_CHARACTERS:
            recorded[name] = value
    return recorded


def free_memory() -> float:
    """Return the bytes of free memory, within the limit of a container; infinite if the system does
    not report it.
    """
    free = math.inf
    try:
        free = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            # Memory that only the disk cache uses counts as free.
            if line.startswith("MemAvailable:"):
                free = 1024.0 * int(line.split()[1])
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        used = int((group / "memory.current").read_text(encoding="ascii"))
        free = min(free, float(limit - used))
    except (OSError, ValueError):  # another system, or no limit
        pass
    return free
