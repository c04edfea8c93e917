"""Tools, shared state, skipped updates and processes."""

from tampered import Row, findings, tampered, untold, without
from uptrend.doctor.checks import state_leaks, tool_use_by_rollout
from uptrend.records import RunView, Severity


def test_tools_that_are_never_called(musique: RunView) -> None:
    def talk(rows: list[Row]) -> None:
        for row in rows:
            row["messages"] = [*row["messages"][:2], {**row["messages"][2], "calls": None}]

    found = findings(tool_use_by_rollout.check, tampered(musique, talk))
    assert set(found) == {"tool.never-called"}
    assert found["tool.never-called"].evidence[0].text.startswith("0 of 128 rollouts")

    def talk_without_tools(rows: list[Row]) -> None:
        talk(rows)
        for row in rows:
            row["messages"] = row["messages"][1:]

    assert findings(tool_use_by_rollout.check, tampered(musique, talk_without_tools)) == {}


def test_tool_failures_that_are_scored(musique: RunView) -> None:
    def fail(rows: list[Row]) -> None:
        for row in rows[:32]:
            row["correct"] = False
            for message in row["messages"]:
                if message["role"] == "tool":
                    message["content"] = "TimeoutError: the search did not answer"

    found = findings(tool_use_by_rollout.check, tampered(musique, fail))["tool.errors-swallowed"]
    assert found.severity is Severity.WARNING
    assert 0.3 < found.evidence[0].value < 0.7  # type: ignore[operator]
    assert "TimeoutError" in found.evidence[1].text

    def misuse(rows: list[Row]) -> None:
        fail(rows)
        for message in (m for row in rows for m in row["messages"] if m["role"] == "tool"):
            message["content"] = message["content"].replace("TimeoutError: the search", "ValueError: this query")

    assert findings(tool_use_by_rollout.check, tampered(musique, misuse)) == {}  # the model's own mistake
    assert set(untold(tool_use_by_rollout.check, without(musique, "messages"))) == {
        "tool.never-called", "tool.errors-swallowed",
    }  # fmt: skip


def act(row: Row, answer: str) -> None:
    call = {"role": "assistant", "content": "look", "calls": "[]", "problem": None}
    row["messages"] = [*row["messages"][:2], call, {"role": "tool", "content": answer, "calls": None, "problem": None}]


def test_the_same_actions_with_other_observations(musique: RunView) -> None:
    def leak(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            act(row, "a file" if n % 2 else "a file, and what another rollout left")

    found = findings(state_leaks.check, tampered(musique, leak))["task.state-leaks"]
    assert found.evidence[0].text.startswith("64 of 112 answers")
    assert found.evidence[0].rollout.startswith("1/")


def test_clocks_are_no_leak(musique: RunView) -> None:
    def tick(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            act(row, f"done in {n} ms")

    assert state_leaks.check(tampered(musique, tick)) == []


def test_no_repeated_action_is_nothing_to_tell(tiny: RunView) -> None:
    assert untold(state_leaks.check, tiny) == {
        "task.state-leaks": "no two rollouts of a task did the same and were answered"
    }
