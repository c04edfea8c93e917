"""Checks of how a run went: not finite, collapsed, restarted, too short, evaluations, tools."""

import numpy as np

from curve_runs import findings, flat, healthy, lacks, severities
from uptrend.records import RunView, Severity

EMPTY = RunView(source="log", trainer="unknown", name="", steps=np.arange(30), metrics={})


def test_tools_that_are_never_called() -> None:
    tools = {"sampling/turns/mean": 1.0, "tokens/tool/count": 0.0, "reward/mean": flat()}
    view = healthy(config={"sampling": {"max_turns": 10}}, **tools)
    assert severities(view, "tools") == {"tool.never-called": Severity.WARNING}
    assert findings(healthy(config={"sampling": {"max_turns": 1}}, **tools), "tools") == {}
    # TRL's log counts calls only where there are tools; another's turns say nothing.
    assert severities(healthy(**tools), "tools") == {"tool.never-called": Severity.WARNING}
    assert findings(healthy(trainer="verl", **tools), "tools") == {}
    assert "tool.never-called" in lacks(healthy(), "tools")


def test_rollouts_that_could_not_be_scored() -> None:
    counts = {"sampling/failed/count": 16.0, "sampling/rollouts/count": 64.0}
    assert severities(healthy(**counts), "tools") == {"reward.error-scored": Severity.WARNING}
    by_tool = healthy(**counts, **{"sampling/ended/tool-error/share": 0.25})
    assert severities(by_tool, "tools") == {"tool.errors-swallowed": Severity.WARNING}
    assert "reward.error-scored" in lacks(healthy(), "tools")
