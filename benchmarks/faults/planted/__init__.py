"""Every fault that can be planted, by its id in the catalogue."""

from benchmarks.faults.fault import Fault
from benchmarks.faults.planted import (
    data,
    kl,
    learning,
    masks,
    operation,
    reward,
    sampling,
    signal,
    sync,
    task,
)

FAULTS: dict[str, Fault] = {
    fault.id: fault
    for family in (reward, signal, sampling, masks, kl, learning, sync, data, task, operation)
    for fault in family.FAULTS
}
