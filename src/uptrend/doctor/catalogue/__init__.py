"""The catalogue of causes: every way in which a run is known not to learn, by its id."""

from uptrend.doctor.catalogue import (
    advantage,
    data,
    kl,
    operation,
    optimizer,
    precision,
    reward,
    sampling,
    task,
    tokens,
)
from uptrend.doctor.catalogue.cause import Cause, Kind

CATALOGUE: dict[str, Cause] = {
    cause.id: cause
    for family in (reward, advantage, sampling, tokens, kl, optimizer, precision, data, task, operation)
    for cause in family.CAUSES
}

__all__ = ["CATALOGUE", "Cause", "Kind"]
