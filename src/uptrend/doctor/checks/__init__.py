"""The checks by subject. A new check is a function in one of these modules."""

from uptrend.doctor.case import Case
from uptrend.doctor.check import Check, Outcomes
from uptrend.doctor.checks import (
    advantages,
    data,
    golds,
    kl,
    masks,
    operation,
    optimizer,
    payments,
    rewards,
    sampler,
    sampling,
    scoring,
    tools,
)

# The order breaks ties between findings of one severity and basis: what a run's course shows comes
# last.
_MODULES = (
    masks,
    tools,
    advantages,
    data,
    sampling,
    kl,
    optimizer,
    sampler,
    golds,
    scoring,
    payments,
    rewards,
    operation,
)

# A module that asks another's check has it among its names too: each counts where it is defined.
ALL_CHECKS: tuple[Check, ...] = tuple(
    found
    for module in _MODULES
    for found in vars(module).values()
    if isinstance(found, Check) and found.judge.__module__ == module.__name__
)


def run_checks(case: Case) -> Outcomes:
    """Run every check on a run and return what each said, in no particular order."""
    return [outcome for check in ALL_CHECKS for outcome in check(case)]
