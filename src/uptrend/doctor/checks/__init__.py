"""The checks by subject. A new check is a function in one of these modules."""

from uptrend.doctor.case import Case
from uptrend.doctor.check import Check, Outcomes
from uptrend.doctor.checks import (
    advantages,
    data,
    evaluations,
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
    settings,
    tools,
)
from uptrend.doctor.sources import name_sources
from uptrend.records.view import source_views

# The order breaks ties between findings of one severity and basis: checks of curves come last.
CHECK_MODULES = (
    masks,
    tools,
    advantages,
    data,
    sampling,
    kl,
    optimizer,
    sampler,
    settings,
    golds,
    scoring,
    payments,
    rewards,
    evaluations,
    operation,
)


def _collect_checks() -> tuple[Check, ...]:
    checks: list[Check] = []
    for module in CHECK_MODULES:
        for value in vars(module).values():
            # A module that uses another's check has it among its names too.
            if isinstance(value, Check) and value.judge.__module__ == module.__name__:
                checks.append(value)
    return tuple(checks)


ALL_CHECKS = _collect_checks()


def run_checks(case: Case) -> Outcomes:
    """Run every check on a run and return their outcomes in no particular order; what is about
    tasks and rewards on each of several sources alone.
    """
    cases = {label: Case(view) for label, view in source_views(case.view).items()}
    if not cases:
        return [outcome for check in ALL_CHECKS for outcome in check(case)]
    outcomes: Outcomes = []
    for check in ALL_CHECKS:
        if check.by_source:
            outcomes_by_label = {label: check(own_case) for label, own_case in cases.items()}
            outcomes += name_sources(outcomes_by_label, case.view)
        else:
            outcomes += check(case)
    return outcomes
