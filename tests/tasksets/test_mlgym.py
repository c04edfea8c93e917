"""`mlgym`: commands, scoring from outside, rewards by scheme, MLGym's files; in the back end that
runs anywhere.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlgym_folder import write_folder
from uptrend.records import Message, Reward, Task, TasksetError, ToolCall
from uptrend.sandbox import Bounds, find_sandbox
from uptrend.tasks import event_loop
from uptrend.tasks.validate import validate
from uptrend.tasksets.mlgym.commands import CommandReply, Terminal
from uptrend.tasksets.mlgym.play import DenseParts, Facts, ResearchPlay, reward_of
from uptrend.tasksets.mlgym.problem import load_problem
from uptrend.tasksets.mlgym.scoring import read_metrics
from uptrend.tasksets.mlgym.taskset import MlGym, MlGymOptions

SOURCE = b"import os\n\n\ndef f(x):\n    return x + 1\n\n\nprint(f(2))\n"


def talk(*commands: str, files: dict[str, bytes] | None = None) -> list[CommandReply]:
    """Give commands in one fresh workspace."""

    async def converse() -> list[CommandReply]:
        async with await find_sandbox("process").open(
            files or {"a.py": SOURCE}, Bounds(output=2000)
        ) as workspace:
            terminal = Terminal(workspace, window=10, seconds=5)
            return [await terminal.carry_out(command) for command in commands]

    return event_loop.run(converse())


def test_the_editor_shows_changes_and_lints() -> None:
    opened, edited, ran, refused, undefined, again = talk(
        "open a.py", "edit 5:5\n    return x + 2\nend_of_edit", "python a.py", "edit 5:5\nreturn x +\nend_of_edit",
        "insert 8\nprint(y)\nend_of_insert", "python a.py",
    )  # fmt: skip
    assert opened.text.startswith("[File: /workspace/a.py (8 lines)]")
    assert "5:    return x + 1" in opened.text
    assert "5:    return x + 2" in edited.text
    assert "the linter found no new errors" in edited.text
    assert not edited.code
    assert ran.text == again.text == "4"
    assert refused.code
    assert "NOT applied" in refused.text
    assert "line 5" in refused.text
    assert undefined.code
    assert "undefined name 'y'" in undefined.text


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("edit 5:5\nx", "end_of_edit"), ("edit 5\nx\nend_of_edit", "no range"), ("edit 5:50\nx\nend_of_edit", "has 8"),
        ("goto 90", "has 8"), ("goto 0", "has 8"), ("goto x", "no line number"), ("open", "Usage: open"), ("open none.py", "none.py"),
        ("open .", "folder"), ("create a.py", "exists already"), ("search_file", "Usage"), ('open "a', "quot"),
        ("ls none", "exit code 2"), ("sleep 60", "longer than 5 seconds"),
    ],
)  # fmt: skip
def test_mistakes_are_answered_with_the_way_to_do_it(command: str, says: str) -> None:
    reply = talk("open a.py", command)[-1]
    assert says in reply.text
    assert reply.code or reply.stopped


def test_search_scroll_and_a_folder_that_is_kept() -> None:
    many = "\n".join(f"line {n}" for n in range(1, 41)).encode() + b"\n"
    found, file, name, _, _, third, here = talk(
        "search_dir 'line 33'", "search_file 'line 7' many.txt", "find_file *.txt", "open many.txt 20", "scroll_down",
        "mkdir deep && cd deep", "pwd", files={"many.txt": many},
    )  # fmt: skip
    assert "many.txt:33:line 33" in found.text
    assert "7:line 7" in file.text
    assert "./many.txt" in name.text
    assert third.code == 0
    assert here.text == "/workspace/deep"


def play(
    taskset: MlGym, *commands: str, task: Task | None = None
) -> tuple[list[str], Reward, ResearchPlay]:
    """Play commands on the first held-out example."""
    opened = taskset.open(task or taskset.heldout(1)[0], 0)

    async def converse() -> tuple[list[str], Reward]:
        said = []
        try:
            for command in commands:
                answers: Sequence[Message] | None = await opened.respond(
                    Message("assistant", command)
                )
                said.append(answers[0].content if answers else "")
            return said, await opened.score()
        finally:
            await opened.close()

    said, reward = event_loop.run(converse())
    return said, reward, opened


RIGHT = "python -c \"open('submission.csv','w').write('id,y\\n'+''.join(f'{n},{n%2}\\n' for n in range(20)))\""


def test_a_mlgym_folder_is_played_as_it_is(tmp_path: Path) -> None:
    taskset = MlGym(MlGymOptions(folder=write_folder(tmp_path), sandbox="process"), 0)
    said, reward, opened = play(
        taskset, "ls . data", "python baseline.py", "validate", RIGHT, "validate", "submit"
    )
    assert "answers.csv" not in said[0]
    assert "test.csv" in said[0]
    assert "Validation accuracy: 0." in said[2]
    assert "Validation accuracy: 1.0000 (baseline 0.5000)" in said[4]
    assert reward.total == 1
    assert reward.correct
    assert reward.is_best
    assert [c.score for c in opened.commands if c.score is not None][-2:] == [1.0, 1.0]
    _, nothing, _ = play(taskset, "ls")
    assert nothing.total == -1  # submitted at the end of the rollout, and there is nothing
    _, baseline, _ = play(taskset, "python baseline.py")
    assert abs(baseline.total) < 0.5
    assert taskset.notes == ["examples of toy repeat one task, to train on and held out alike"]


def test_a_folder_without_players_is_not_called_unfit(tmp_path: Path) -> None:
    root = write_folder(tmp_path)
    report = validate(
        lambda: MlGym(MlGymOptions(folder=root, sandbox="process"), 0), train=2, heldout=1
    )
    assert report.passed
    assert {check.name: check.figure for check in report.checks}[
        "ceiling of gold under final"
    ] == "not judged: none"


@pytest.mark.parametrize(("turns", "command"), [(0, "submit"), (2, "(automatic submission)")])
def test_the_end_is_recorded_with_its_reason(tmp_path: Path, turns: int, command: str) -> None:
    taskset = MlGym(MlGymOptions(folder=write_folder(tmp_path), sandbox="process", turns=turns), 0)
    _, reward, opened = play(taskset, "ls", "submit" if command == "submit" else "echo last words")
    end = opened.commands[-1]
    assert (reward.total, end.command, end.code, end.error, end.score) == (
        -1,
        command,
        1,
        True,
        None,
    )
    assert "no valid submission.csv" in end.said
    if turns:
        assert [ran.said for ran in opened.commands[:-1]] == ["", "last words"]


def test_validation_and_test_score_different_rows(tmp_path: Path) -> None:
    taskset = MlGym(MlGymOptions(folder=write_folder(tmp_path), sandbox="process", keep="last"), 0)
    problem = taskset.problems["toy"]
    arena = taskset._arena("toy")
    example, scorer = event_loop.run(arena.example(taskset.heldout(1)[0])), arena.scorer
    for split in ("validation", "test"):
        files = {
            "submission.csv": ("id,y\n" + "".join(f"{n},{n % 2}\n" for n in range(20))).encode()
        }
        assert event_loop.run(scorer.judge(files, split, example.test)).score == 1  # type: ignore[arg-type]
    from uptrend.tasksets.mlgym.scoring import _cut_to_split

    halves = [
        _cut_to_split(problem, files, example.test, split)[1]["data/answers.csv"]
        for split in ("validation", "test")
    ]  # type: ignore[arg-type]
    rows = [set(half.decode().splitlines()[1:]) for half in halves]
    assert rows[0]
    assert rows[1]
    assert not rows[0] & rows[1]
    assert len(rows[0] | rows[1]) == 20


CODE = "import random\n\n\ndef row_strategy(history):\n    return {}\n"


def test_submitted_code_is_kept_apart_from_its_evaluator(tmp_path: Path) -> None:
    root = Path(
        write_folder(
            tmp_path,
            "PythonSubmissionTasks",
            "  metric: score\n  direction: up\n  par: 5\n  submission: strategy.py\n",
        )
    )
    (root / "data/toy/evaluate.py").write_text(
        "import json\nfrom strategy import row_strategy\nfrom target import other\n"
        "total = sum(row_strategy([(0, other)] * n) for n in range(50))\nprint(json.dumps({'Score': total / 50}))\n"
    )
    (root / "data/toy/target.py").write_text("other = 1\n")
    (root / "data/toy/strategy.py").write_text(CODE.format(1))
    table = root / "configs/tasks/toy.yaml"
    table.write_text(
        table.read_text()
        .replace(
            "data/toy/evaluate.py]",
            "data/toy/evaluate.py, data/toy/strategy.py, data/toy/target.py]",
        )
        .replace("Accuracy: 0.5", "Score: 1.0")
    )
    taskset = MlGym(MlGymOptions(folder=str(root), sandbox="process", seconds=20), 0)

    def submit(body: str) -> tuple[list[str], Reward, ResearchPlay]:
        return play(
            taskset, f"cat > strategy.py <<'END'\n{CODE.format(body)}END", "validate", "submit"
        )

    said, reward, _ = submit("len(history) and history[0][1] + 4")
    assert "Validation score: 4.9000" in said[1]
    assert reward.total == pytest.approx(3.9 / 4)
    assert submit("2")[1].total == pytest.approx(0.25)
    # It can neither replace the evaluator's output nor reach its files or its memory.
    for cheat in (
        "print('{\"Score\": 5}') or 1", "__import__('os')._exit(0)", "open('evaluate.py')",
        "__import__('target').other * 5", "__import__('os').write(2, b'{\"Score\": 5}') and __import__('os')._exit(0)",
        "__import__('sys').exit('{\"Score\": 5}')",
        "__import__('sys').modules['__main__'].__dict__", "'5'", "float('nan')",
    ):  # fmt: skip
        assert submit(cheat)[1].total <= 0, cheat
    table.write_text(table.read_text().replace("training_timeout: 20", "training_timeout: 2"))
    hasty = MlGym(MlGymOptions(folder=str(root), sandbox="process"), 0)
    sleeping = CODE.format(
        "__import__('time').sleep(0.1) or 5"
    )  # each call is quick, all together are not
    assert play(hasty, f"cat > strategy.py <<'END'\n{sleeping}END", "submit")[1].total == -1


def facts(**changes: object) -> Facts:
    given = {"final": 0.5, "relative": 0.2, "validations": [0.1, 0.4], "commands": 10, "errors": 2, "edits": 4,
             "bad_edits": 1, "runs": 5, "bad_runs": 1}  # fmt: skip
    return Facts(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scheme", "changes", "total"),
    [
        ("final", {}, 0.5), ("final", {"validations": []}, 0.5), ("final", {"final": None}, -1.0),
        ("validation-change", {}, 0.4), ("validation-change", {"validations": []}, 0.0),
        ("validate-required", {}, 0.5), ("validate-required", {"validations": []}, -1.0),
        ("graded", {}, 5 * 0.2 - 0.5 - 0.5 * 0.2), ("graded", {"validations": []}, -1.0),
        ("graded", {"relative": 9.0}, 1.0),
        ("code-quality", {}, 0.5 * 0.5 + 0.2 * 0.75 + 0.2 * 0.8 + 0.1 * 0.8),
    ],
)  # fmt: skip
def test_rewards_by_scheme(scheme: str, changes: dict[str, object], total: float) -> None:
    reward = reward_of(facts(**changes), scheme, DenseParts())  # type: ignore[arg-type]
    assert reward.total == pytest.approx(total)
    assert reward.low <= reward.total <= reward.high


def test_dense_parts_widen_the_bounds() -> None:
    reward = reward_of(facts(), "final", DenseParts(validated=0.5, clean=1.0, change=0.2))
    assert reward.total == pytest.approx(0.5 + 0.5 + 0.8 + 0.2 * 0.15)
    assert (reward.low, reward.high) == (-1 - 0.2, 1 + 0.5 + 1 + 0.2)


def test_lower_is_better_for_errors(tmp_path: Path) -> None:
    root = Path(write_folder(tmp_path, extra="  metric: rmse\n"))
    table = root / "configs/tasks/toy.yaml"
    table.write_text(table.read_text().replace("Accuracy: 0.5", "rmse: 10.0"))
    problem = load_problem("toy", str(root))
    assert problem.improvement(5.0, baseline=10.0) == 0.5
    assert problem.improvement(40.0, baseline=10.0) == -1
    table.write_text(table.read_text().replace("metric: rmse", "metric: oddness"))
    with pytest.raises(TasksetError, match="more or less of 'oddness' is better"):
        load_problem("toy", str(root))
    with pytest.raises(TasksetError, match="There are toy"):
        load_problem("titanic", str(root))
    with pytest.raises(TasksetError, match="configs/tasks"):
        load_problem("titanic", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message("assistant", "First I look.\n```\nls\n```"), "a.py"),
        (Message("assistant", "```\nls\n```\n```\nls\n```"), "2 commands"),
        (Message("assistant", "  "), "no command"),
        (Message("assistant", "", (ToolCall("command", {"command": "ls"}),)), "baseline.py"),
        (Message("assistant", "", (ToolCall("bash", {"command": "ls"}),)), "one tool"),
        (Message("assistant", "", (ToolCall("command", {"command": "ls"}),) * 2), "2 commands"),
    ],
)
def test_a_turn_is_one_command(message: Message, says: str, tmp_path: Path) -> None:
    taskset = MlGym(
        MlGymOptions(
            folder=write_folder(tmp_path), sandbox="process", tool_calls=bool(message.calls)
        ),
        0,
    )
    opened = taskset.open(taskset.heldout(1)[0], 0)

    async def once() -> Message:
        try:
            answers = await opened.respond(message)
            assert answers is not None
            return answers[0]
        finally:
            await opened.close()

    answer = event_loop.run(once())
    assert says.replace("a.py", "baseline.py") in answer.content
    assert answer.role == ("tool" if message.calls else "user")


def test_metrics_are_the_last_json_object_with_numbers() -> None:
    assert read_metrics('warning {x}\n{"Accuracy": 0.5}\n') == {"accuracy": 0.5}
    assert read_metrics('{"a": 1} {"b": "no"}') == {"a": 1.0}
    assert read_metrics("nothing") == {}


def test_a_time_limit_scores_what_the_command_leaves(tmp_path: Path) -> None:
    taskset = MlGym(MlGymOptions(folder=write_folder(tmp_path), sandbox="process"), 0)
    opened = taskset.open(taskset.heldout(1)[0], 0)

    async def converse() -> Reward:
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(
                    opened.respond(Message("assistant", f"sleep 1; {RIGHT}")), 0.5
                )
            return await opened.score()
        finally:
            await opened.close()

    assert event_loop.run(converse()).total == 1


def test_an_evaluator_that_fails_gives_no_score(tmp_path: Path) -> None:
    taskset = MlGym(MlGymOptions(folder=write_folder(tmp_path), sandbox="process"), 0)
    quoting = "printf 'id,y\\n{\"accuracy\": 1},0\\n' > submission.csv"
    said, reward, _ = play(taskset, quoting, "validate", "printf '' > submission.csv", "validate")
    assert "not valid" in said[1]
    assert "can't be read as CSV" in said[3]
    assert reward.total == -1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("answers: data/answers.csv", "answers: data/answer.csv"), "are not there"),
        (("  key: id\n", ""), "names a row"),
        ((", data/toy/evaluate.py]", "]"), "evaluator evaluate.py is not among"),
        (
            ("task_entrypoint: CSVSubmissionTasks", "task_entrypoint: Other"),
            "task_entrypoint Other",
        ),
        (
            ("task_entrypoint: CSVSubmissionTasks", "task_entrypoint: ModelSubmissionTasks"),
            "trust = true",
        ),
    ],
)
def test_a_folder_that_could_leak_or_not_be_scored_is_refused(
    change: tuple[str, str], says: str, tmp_path: Path
) -> None:
    table = Path(write_folder(tmp_path)) / "configs/tasks/toy.yaml"
    table.write_text(table.read_text().replace(*change))
    with pytest.raises(TasksetError, match=says):
        MlGym(MlGymOptions(folder=str(tmp_path), sandbox="process"), 0)


def test_odd_names_and_repairs() -> None:
    source = b"print(one)\nprint(two)\n"
    replies = talk(
        "open a.py", "edit 1:1\nprint(1)\nend_of_edit", "insert 0\n# first\nend_of_insert", "goto \u00b2",
        "create big.txt", "printf '\\xff' > raw.txt", "open raw.txt", "insert 0\nx\nend_of_insert",
        files={"a.py": source, "big.txt": b"x" * (2 << 20)},
    )  # fmt: skip
    codes = [reply.code for reply in replies]
    assert codes == [
        0,
        0,
        0,
        1,
        1,
        0,
        0,
        1,
    ]  # an old error elsewhere does not keep a repair from being made
    assert "no UTF-8" in replies[-1].text
    assert "larger than" in replies[4].text


def test_a_folder_without_a_name_in_unicode_can_be_shown(tmp_path: Path) -> None:
    taskset = MlGym(MlGymOptions(folder=write_folder(tmp_path), sandbox="process"), 0)
    said, _, _ = play(taskset, "mkdir $'\\xff\\x1b[31m' && cd $'\\xff\\x1b[31m'", "pwd")
    assert all(text.encode().isascii() or "\ufffd" in text for text in said)
    assert not any("\x1b" in text for text in said)
