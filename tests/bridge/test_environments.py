"""reasoning-gym's generators and verifiers' environments are tasksets, and ours are an environment
of verifiers.
"""

import asyncio
import json
import math
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from reasoning_gym.factory import DATASETS
from typer.testing import CliRunner
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

import uptrend
from uptrend.cli.tasks import app
from uptrend.records import (
    ConfigError,
    Message,
    MissingExtra,
    Task,
    TasksetError,
    ToolCall,
    UptrendError,
    tasks_hash,
)
from uptrend.records.errors import install_command
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.registry import LIBRARY_BY_PREFIX, find
from uptrend.tasks.taskset import Script, Taskset, known_gold, may_be_held_out, play_script, say
from uptrend.tasks.validate import validate

SUM = {"max_terms": 2, "max_digits": 1, "instruction": "", "chat": False}


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("environments")))


def play(taskset: Taskset, task: Task, script: Script) -> uptrend.Reward:
    return asyncio.run(play_script(taskset, task, script))[1]


def test_prefixes_are_listed_and_load_nothing() -> None:
    code = """
import sys, uptrend
from uptrend.cli.tasks import app
app(["list"], standalone_mode=False)
assert not {"verifiers", "reasoning_gym"} & set(sys.modules), "loaded"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "reasoning-gym:NAME" in done.stdout
    assert "verifiers:NAME" in done.stdout


@pytest.mark.parametrize("prefix", LIBRARY_BY_PREFIX)
def test_a_missing_package_names_its_extra(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("reasoning_gym", "verifiers", "verifiers.v1"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=re.escape(install_command(prefix))):
        find(f"{prefix}:anything")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("reasoning-gym:chain_sm", {}, "no generator 'chain_sm'. Did you mean chain_sum?"),
        (
            "reasoning-gim:chain_sum",
            {},
            "neither a module nor a prefix. Did you mean reasoning-gym?",
        ),
        (
            "reasoning-gym:chain_sum",
            {"min_term": 2},
            "tasks.min_term is not a known key. Did you mean min_terms?",
        ),
        (
            "reasoning-gym:chain_sum",
            {"min_terms": "2"},
            "tasks.min_terms = '2' should be a whole number.",
        ),
        ("reasoning-gym:chain_sum", {"min_terms": 9}, "max_terms must be >= min_terms"),
        (
            "verifiers:no-such-package",
            {},
            "There is no verifiers environment 'no-such-package' among the installed",
        ),
        ("verifiers:json", {}, "can't be loaded"),
        ("verifiers:add-up", {"hihg": 3}, "tasks.hihg is not a known key. Did you mean high?"),
        ("verifiers:add-up", {"bounds": [1]}, "tasks.bounds = [1.0] should be [lowest, highest]."),
        (
            "verifiers:add-up",
            {"heldout": {"high": "x"}},
            "tasks.heldout.high: Input should be a valid integer",
        ),
        ("verifiers:openenv", {}, "tasks.options: Value error, pass `env` or `base_url`."),
    ],
)
def test_a_name_or_option_that_is_wrong_is_explained(
    name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UptrendError) as error:
        make_taskset(name, options, 0)
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["reasoning-gym:chain_sum", "verifiers:add-up"])
def test_tasks_are_split_by_content_and_the_same_every_time(name: str) -> None:
    options = SUM if "gym" in name else {}
    one, again, other = (make_taskset(name, options, seed) for seed in (0, 0, 1))
    train, held = one.train(40), one.heldout(20)
    assert len(train) == 40
    assert len(held) == 20
    assert tasks_hash(train + held) == tasks_hash(again.train(40) + again.heldout(20))
    assert [task.id for task in train] != [task.id for task in other.train(40)]
    assert not {task.id for task in held} & {task.id for task in other.train(500)}
    assert not {task.id for task in train} & {task.id for task in other.heldout(500)}
    assert held[0].id not in {task.id for task in one.train(500, exclude={held[0].id})}


def test_a_generator_scores_an_answer_with_and_without_tags() -> None:
    plain, tagged = (
        make_taskset("reasoning-gym:chain_sum", {**SUM, **more}, 0)
        for more in ({}, {"tagged": True})
    )
    (task,) = plain.train(1)
    assert may_be_held_out(task.id) is False
    assert plain.open(task, 0).messages == task.messages
    right = {
        text: play(plain, task, say(text)) for text in (task.answer, f" {task.answer}\n", "x", "")
    }
    assert [reward.correct for reward in right.values()] == [True, True, False, False]
    assert [(r.low, r.high) for r in right.values()] == [(0.0, 1.0)] * 4
    said = f"I think <answer>1{task.answer}</answer> no <answer>{task.answer}</answer>"
    assert play(plain, task, say(said)).total == play(tagged, task, say(said)).total == 1.0
    assert play(tagged, task, say(task.answer)).total == 0.0
    instructed = make_taskset("reasoning-gym:chain_sum", {**SUM, "instruction": " Think."}, 0)
    assert instructed.open(task, 0).messages[0].content == task.messages[0].content + " Think."
    assert [t.id for t in instructed.train(5)] == [
        t.id for t in plain.train(5)
    ]  # the split knows the question alone


def test_a_family_that_is_smaller_than_asked_for_is_a_note() -> None:
    taskset = make_taskset("reasoning-gym:chain_sum", {**SUM, "min_terms": 1, "max_terms": 1}, 0)
    train, held = taskset.train(100), taskset.heldout(100)
    assert len(train) + len(held) == 10
    assert taskset.notes == [
        f"reasoning-gym:chain_sum has 10 tasks, fewer than asked for: {len(train)} to train on, {len(held)} held out "
        "(3 to 1)"
    ]


@pytest.mark.parametrize(
    ("name", "gold"),
    [
        ("reasoning-gym:chain_sum", "15 of 15 do"),
        ("reasoning-gym:graph_color", "not judged"),
        ("verifiers:add-up", "not judged"),
    ],
)
def test_validation_judges_what_there_is(name: str, gold: str) -> None:
    report = validate(lambda: make_taskset(name, {}, 0), train=10, heldout=5)
    assert report.passed, report
    assert next(
        check.figure for check in report.checks if check.name.startswith("gold")
    ).startswith(gold)
    notes = {"graph_color": "gives no gold answers", "add-up": "does not tell the bounds"}
    assert all(
        any(note in said for said in report.notes)
        for end, note in notes.items()
        if name.endswith(end)
    )


def test_rewards_of_an_environment_are_parts_with_weights_and_unknown_bounds() -> None:
    taskset = make_taskset("verifiers:add-up", {"high": 4}, 0)
    task = taskset.train(1)[0]
    reward = play(taskset, task, say(task.answer))
    assert {part.name: (part.value, part.weight) for part in reward.parts} == {
        "right": (1.0, 2.0),
        "short": (-0.01, 1.0),
    }
    assert reward.total == pytest.approx(1.99)
    assert all(math.isnan(bound) for bound in (reward.low, reward.high, reward.parts[0].high))
    assert reward.correct  # 1 or more, where nobody knows the most
    assert not play(taskset, task, say("no")).correct
    known = make_taskset("verifiers:add-up", {"high": 4, "bounds": [-1, 1.99]}, 0)
    assert play(known, task, say(task.answer)).correct
    assert not play(known, task, say("no")).correct
    assert not any("bounds" in note for note in known.notes)
    assert known_gold(known, task) == []


def test_an_environment_can_hold_out_another_split() -> None:
    taskset = make_taskset("verifiers:add-up", {"heldout": {"split": "test"}}, 0)
    train, held = taskset.train(500), taskset.heldout(500)
    assert (len(train), len(held)) == (9 * 9 - 2 * 9, 9 * 9)
    assert not {task.id for task in train} & {task.id for task in held}
    assert not any("quarter" in note for note in taskset.notes)


def counts(goal: int, heard: list[str]) -> Script:
    """Count to a goal in two calls, call wrongly, and say something before being done."""
    for calls, words in (
        ((ToolCall("count_add", {"amount": 1}), ToolCall("count_add", {"amount": goal - 1})), ""),
        ((ToolCall("nothing", {}), ToolCall("count_add", {"amount": "many"})), ""),
        ((), "I think so"),
        ((), "done"),
    ):
        answers = yield Message("assistant", words, calls)
        heard += [f"{answer.role}: {answer.content}" for answer in answers]


def first_turn(script: Script) -> Script:
    """Only the first turn of a script."""
    yield next(script)


def test_tools_state_users_and_stops_are_the_environments() -> None:
    taskset = make_taskset("verifiers:counter-game", {"bounds": [0, 1]}, 0)
    task, heard = taskset.train(1)[0], list[str]()
    goal = int(task.messages[1].content.removeprefix("Count to ").removesuffix("."))
    assert [m.role for m in task.messages] == ["system", "user"]
    (tool,) = taskset.open(task, 0).tools
    assert (tool.name, tool.description, tool.parameters["required"]) == (
        "count_add",
        "Add to the total.",
        ["amount"],
    )
    reward = play(taskset, task, counts(goal, heard))
    assert heard[:3] == [
        f"tool: 1 of {goal}",
        f"tool: {goal} of {goal}",
        "tool: error: unknown tool 'nothing'",
    ]
    assert "Input should be a valid integer" in heard[3]
    assert heard[4:] == ["user: Are you done? You said 'I think so'."]
    assert {part.name: part.value for part in reward.parts} == {"reached": 1.0, "turns": 4.0}
    assert reward.correct
    heard.clear()
    over = play(taskset, task, counts(goal + 1, heard))
    assert (over.total, heard) == (0.0, [])  # the stop ends it after the first turn
    assert [part.value for part in over.parts] == [0.0, 1.0]
    one_turn = first_turn(counts(goal, heard))
    assert play(taskset, task, one_turn).correct  # no turn was left for it to say so


@pytest.mark.parametrize(
    ("fields", "member", "said"),
    [
        ("prompt='?', image='python:3'", "", "needs a sandbox (image python:3)"),
        ("prompt=None", "", "lets its user open the conversation"),
        ("prompt='?'", "NEEDS_CONTAINER = True", "needs a sandbox"),
        (
            "prompt='?'",
            "@vf.stop\n    async def s(self, request: vf.Request) -> bool: ...",
            "stops on single requests",
        ),
        (
            "prompt='?'",
            "@vf.intercept\n    async def i(self, request: vf.Request) -> None: ...",
            "rewrites messages",
        ),
    ],
)
def test_what_a_chat_can_not_play_is_refused(
    fields: str, member: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TasksetError) as error:
        make_taskset(write_environment(tmp_path, fields, member), {}, 0)
    assert said in str(error.value)


def test_an_episode_that_is_over_before_the_model_speaks_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = ("@vf.stop\n    async def at_once(self, trace: vf.Trace) -> bool: return True",
             "@vf.reward\n    async def told(self, trace: vf.Trace) -> float: return len(trace.messages)")  # fmt: skip
    monkeypatch.syspath_prepend(str(tmp_path))
    taskset = make_taskset(write_environment(tmp_path, "prompt='?'", "\n    ".join(hooks)), {}, 0)
    tasks = [*taskset.train(1), *taskset.heldout(1)]
    assert play(taskset, tasks[0], say("hello")).total == 1.0  # the prompt alone


def write_environment(folder: Path, fields: str, member: str) -> str:
    """Write an environment with one task; return its name in recipes."""
    name = f"written_{abs(hash((fields, member)))}"
    (folder / f"{name}.py").write_text(
        "import verifiers.v1 as vf\n"
        f"class T(vf.Task[vf.TaskData]):\n    {member or 'pass'}\n"
        "class S(vf.Taskset[T, vf.TasksetConfig]):\n"
        f"    def load(self): return [T(vf.TaskData({fields}), self.config.task)]\n__all__ = ['S']\n"
    )
    return f"verifiers:{name}"


def test_an_environment_that_needs_a_judge_is_refused() -> None:
    with pytest.raises(TasksetError, match="is scored by a judge, which is another model"):
        make_taskset("verifiers:add-up", {"task": {"judges": [{"id": "reference"}]}}, 0)


def recipe(name: str, **options: Any) -> dict[str, Any]:
    section = {"name": name, "chat": False, **options}
    return {
        "model": {"name": "tiny"}, "tasks": {**section, "train": 12}, "eval": {**section, "tasks": 4},
        "sampling": {"groups": 2, "size": 4, "max_tokens": 4, "context": 512}, "learning": {"steps": 2},
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "table", [recipe("reasoning-gym:chain_sum", **SUM), recipe("verifiers:add-up")]
)
def test_training_and_resuming_on_an_environment(table: dict[str, Any], tmp_path: Path) -> None:
    run = uptrend.train(table, runs=tmp_path, name="one", preflight=True)
    assert (run.status, run.last_step) == ("finished", 2)
    assert set(run.rollouts(1)["error"].to_pylist()) == {None}
    resumed = uptrend.resume(tmp_path / "one", ["learning.steps=3"])
    assert resumed.last_step == 3
    described = json.loads((tmp_path / "one" / "run.json").read_text())["tasks"]
    taskset = make_taskset(
        table["tasks"]["name"],
        {k: v for k, v in table["tasks"].items() if k not in ("name", "train")},
        0,
    )
    held = {task.id for task in taskset.heldout(4)}
    assert described["hash"] == tasks_hash(taskset.train(12, held))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("counting", {"reward": "rich"}),
        ("musique", {"retriever": "golden", "atlas": {"hops": [2], "paragraphs": 5}}),
    ],
)
def test_an_exported_taskset_gives_the_same_rewards(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "package"
    sets = [f"tasks.{key}={_toml(value)}" for key, value in options.items()]
    given = [arg for each in (*sets, "tasks.train=12", "eval.tasks=4") for arg in ("--set", each)]
    done = CliRunner().invoke(
        app, ["package", name, "--to", str(folder), "--json", *given], catch_exceptions=False
    )
    assert json.loads(done.stdout) == {"package": f"uptrend-{name}", "folder": str(folder)}
    monkeypatch.syspath_prepend(str(folder))
    ours = make_taskset(name, options, 0)
    theirs = make_taskset(f"verifiers:uptrend-{name}", {"heldout": {"split": "eval"}}, 0)
    held = ours.heldout(4)
    by_prompt = {t.messages[-1].content: t for t in (*ours.train(12, {t.id for t in held}), *held)}
    tasks = (*theirs.train(12), *theirs.heldout(4))
    assert len(tasks) == 16
    assert {tool.name for tool in theirs.open(tasks[0], 0).tools} == {
        t.name for t in ours.open(held[0], 0).tools
    }
    compared = []
    for task in tasks:
        own = by_prompt[task.messages[-1].content]
        scripts = [
            partial(ours.gold, own),
            *(partial(_nth, ours, own, n) for n in range(len(list(ours.corrupted(own))))),
        ]
        compared += [
            (play(ours, own, script()).total, play(theirs, task, script()).total)
            for script in scripts
        ]
    assert [a for a, _ in compared] == pytest.approx([b for _, b in compared])
    assert len({a for a, _ in compared}) > 1
    with pytest.raises(ConfigError, match="is not empty"):
        CliRunner().invoke(app, ["package", name, "--to", str(folder)], catch_exceptions=False)


def _nth(taskset: Taskset, task: Task, n: int) -> Script:
    return list(taskset.corrupted(task))[n]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


class ScriptedModel:
    """A server with OpenAI's interface, behind which a script speaks."""

    def __init__(self, script: Script) -> None:
        self.script, self.heard, self.requests = script, 0, 0
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reply = json.dumps(model.reply(body["messages"])).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: Any) -> None:
                """Nothing is printed."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def reply(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        new = [Message(m["role"], m["content"]) for m in messages[self.heard :]]
        said = self.script.send(new) if self.requests else next(self.script)
        self.heard, self.requests = len(messages) + 1, self.requests + 1
        calls = [
            {"id": f"c{self.requests}-{i}", "type": "function",
             "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
            for i, call in enumerate(said.calls)
        ]  # fmt: skip
        message = {"role": "assistant", "content": said.content} | (
            {"tool_calls": calls} if calls else {}
        )
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if calls else "stop",
        }
        return {
            "id": "r",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.slow
def test_verifiers_itself_plays_an_exported_taskset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a model's server over HTTP and the tools' server in a process of its own."""
    folder, options = (
        tmp_path / "package",
        {"retriever": "golden", "atlas": {"hops": [2], "paragraphs": 5}},
    )
    given = [f"tasks.{key}={_toml(value)}" for key, value in options.items()]
    arguments = [
        arg for each in (*given, "tasks.train=2", "eval.tasks=2") for arg in ("--set", each)
    ]
    CliRunner().invoke(
        app, ["package", "musique", "--to", str(folder), *arguments], catch_exceptions=False
    )
    (folder / "uptrend_musique").rename(
        folder / "uptrend_questions"
    )  # a package of another name than others test
    for file in (folder / "uptrend_questions").glob("*.py"):
        file.write_text(file.read_text().replace("uptrend_musique", "uptrend_questions"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{':'.join(sys.path)}")  # of the tools' process
    monkeypatch.setenv("SCRIPTED_KEY", "none")
    agent = {"harness": {"id": "chat-in-process"}, "runtime": {"type": "subprocess"}}
    config = resolve_env_config(
        {"taskset": {"id": "uptrend-questions", "split": "eval"}, "agent": agent}
    )
    ours = make_taskset("musique", options, 0)
    own = ours.heldout(2)[0]

    async def episode(script: Script) -> vf.Trace:
        environment = load_environment(config)
        row = next(
            row
            for row in environment.taskset
            if row.data.prompt[-1].content == own.messages[-1].content
        )
        with ScriptedModel(script) as url:
            context = ModelContext("m", EvalClientConfig(base_url=url, api_key_var="SCRIPTED_KEY"))
            async with environment.serving():
                found = await environment.run_episode(row, context)
        assert found.ok, (found.errors, [trace.errors for trace in found.traces])
        return found.traces[0]

    trace = asyncio.run(episode(ours.gold(own)))
    assert trace.reward == pytest.approx(play(ours, own, ours.gold(own)).total)
    assert trace.info["uptrend"]["correct"]
    assert [message.name for message in trace.tool_messages] == ["retrieve_documents"]
    wrong = asyncio.run(episode(_nth(ours, own, 0)))
    assert wrong.reward == pytest.approx(play(ours, own, _nth(ours, own, 0)).total)
    assert wrong.reward < trace.reward


# Generators without answers of their own, and the one that is a mix of others and needs to be told
# which.
NO_GOLD = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
NO_TASKS = {"composite"}


def _generators() -> Iterator[tuple[str, str]]:
    def too_long(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_long)
    for name in DATASETS:
        signal.alarm(60)
        try:
            taskset = make_taskset(f"reasoning-gym:{name}", {}, 0)
            tasks = taskset.train(3)
            golds = [(task, script) for task in tasks for script in known_gold(taskset, task)]
            right = sum(play(taskset, task, script).correct for task, script in golds)
            yield (
                name,
                "gold" if tasks and right == len(tasks) else "no gold" if tasks else "no tasks",
            )
        except UptrendError as error:
            yield name, str(error)
        except TimeoutError:
            yield name, "too slow"
        finally:
            signal.alarm(0)


@pytest.mark.slow
def test_every_generator_gives_tasks_and_accepts_its_own_answers() -> None:
    """All 106, in about a minute; those in the lists above can't."""
    found = dict(_generators())
    assert {name for name, kind in found.items() if kind == "no gold"} == NO_GOLD
    assert {
        name for name, kind in found.items() if kind not in ("gold", "no gold", "too slow")
    } == NO_TASKS
    assert sum(kind == "gold" for kind in found.values()) >= 95
