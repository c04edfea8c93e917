"""Memory that is free, for those that take as much as there is."""

import torch

from uptrend.records.machine import free_memory


def free_bytes(device: torch.device) -> float:
    """Return the memory that is free: of the device on a GPU, of this machine or container on a CPU."""
    if device.type != "cuda":
        return free_memory()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + unused)
