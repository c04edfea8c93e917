"""What this machine has room for: cores, and memory of its own or of its GPUs."""

import os
import shutil
import subprocess
from pathlib import Path

from uptrend.lab.launcher import PlannedRun
from uptrend.records.directory import read_lines

GPU_CONTEXT = 1.0
"""GiB that a process takes of a GPU before its first tensor."""
MARGIN = 1.25
"""A run may grow by this much after its first step: longer rollouts, evaluations, a checkpoint."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def uses_gpu(planned: PlannedRun) -> bool:
    """Whether a run takes a GPU's memory."""
    return str(planned.config["compute"]["device"]).startswith("cuda")


def need_gib(planned: PlannedRun) -> float | None:
    """What a run takes, from its first step's record with a margin; none before that."""
    line = next(read_lines(planned.folder / "metrics.jsonl"), None)
    peak = None if line is None else line.get("memory/peak/gib")
    if peak is None:
        return None
    return float(peak) * MARGIN + (GPU_CONTEXT if uses_gpu(planned) else 0.0)


def free_gib(on_gpu: bool) -> dict[str, float]:
    """Free memory in GiB by place: every GPU that may be used, or the machine's own under the name ''."""
    return _gpus() if on_gpu else {"": _memory()}


def _gpus() -> dict[str, float]:
    """Each GPU's, as nvidia-smi tells it; nothing known where it is missing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits"]
    told = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60).stdout
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else [name.strip() for name in visible.split(",")]
    free = dict[str, float]()
    for line in told.splitlines():
        index, uuid, mib = (word.strip() for word in line.split(","))
        if wanted is None or index in wanted or uuid in wanted:
            free[index if wanted is None or index in wanted else uuid] = float(mib) / 1024
    return free


def _memory() -> float:
    """What the system could still give, within the limit of a container."""
    available = _available()
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        available = min(available, limit - used)
    return available / 2**30


def _available() -> float:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except OSError:
        pass
    return float("inf")  # a system that does not say


def _number(path: str) -> float | None:
    try:
        return float(Path(path).read_text())
    except (OSError, ValueError):  # no container, or "max"
        return None
