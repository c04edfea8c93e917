"""Memory that is free, for those that take as much as there is."""

import os
from pathlib import Path

import torch


def free_bytes(device: torch.device) -> float:
    """Return the memory that is free: of the device on a GPU, of this machine or container on a CPU."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    free = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):  # memory in use by the disk cache alone counts as free
                free = 1024.0 * int(line.split()[1])
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, limit - used)
    except (OSError, ValueError):  # another system, or no limit
        pass
    return free
