"""`uptrend.train` on data and a reward of one's own, as a script or notebook would call it."""
# ruff: noqa: ARG001 (a reward function takes what it is given)

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import uptrend
from uptrend.policy.known import local_folder
from uptrend.records import (
    Basis,
    ConfigError,
    Finding,
    Report,
    Role,
    RunRefused,
    Severity,
    Stop,
    TasksetError,
    Trend,
    TrendKind,
)

ROWS = [
    {"prompt": f"Calculate: {a} + {b} = ", "answer": str(a + b)} for a in range(8) for b in range(8)
]
QUICK = ["tasks.chat=false", "sampling.max_tokens=4", "sampling.groups=2", "sampling.size=4", "eval.tasks=8",
         "doctor.live=false", "checkpoints.every=1"]  # fmt: skip


def first_number(prompt, completion, answer, **row):
    return {"correct": float(completion.strip().startswith(answer)), "short": 0.1}


def train(tmp_path, **given):
    asked = {
        "model": "tiny",
        "data": ROWS,
        "reward": first_number,
        "steps": 2,
        "preflight": False,
        "progress": False,
    }
    return uptrend.train(
        **asked | given, runs=tmp_path, overrides=[*QUICK, *given.pop("overrides", ())]
    )


def test_rows_and_a_function_train_and_resume(tmp_path, capsys):
    run = train(tmp_path)
    assert (run.status, run.last_step, run.name) == ("finished", 2, "tiny")
    assert (
        run.config["tasks"]["reward"] == ["test_api:first_number"] == run.config["eval"]["reward"]
    )
    assert any(
        "held out, chosen by the hash of their content" in note for note in run.info["notes"]
    )
    assert any("bounds are unknown" in note for note in run.info["notes"])
    table = run.rollouts(1)
    assert table["reward_low"].null_count == table.num_rows  # unknown, so absent
    assert {part["name"] for parts in table["parts"].to_pylist() for part in parts} == {
        "correct",
        "short",
    }
    assert "reward/part/correct/mean" in run.metric_lines[-1]
    assert "advantage/dead_low/share" not in run.metric_lines[-1]
    again = uptrend.resume(run.path, ["learning.steps=3"], progress=False)
    assert (again.last_step, capsys.readouterr().out) == (3, "")


class StopAfterOneStep:
    def __init__(self, by):
        self.by = by

    def before(self, run): ...

    def step(self, record):
        return Stop("Rewards are gone.", by=self.by) if record.step == 1 else None

    def after(self, run): ...


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        ("user", "Stopped after step 1. Resume with: uptrend.resume('{path}', reward=…)"),
        (
            "doctor",
            "The doctor stopped it after step 1: Rewards are gone. Its last checkpoint has the fault too.",
        ),
    ],
)
def test_a_run_that_was_stopped_says_why_and_how_to_resume(tmp_path, capsys, by, sentence):
    run = train(tmp_path, observers=[StopAfterOneStep(by)])
    assert run.status == "stopped"
    assert sentence.format(path=run.path) in capsys.readouterr().err


def test_a_function_that_is_nowhere_is_asked_for_again(tmp_path):
    run = train(tmp_path, reward=lambda completion: float(len(completion)), name="anonymous")
    assert run.config["tasks"]["reward"] == ["test_api:<lambda>"]
    with pytest.raises(TasksetError, match="has no function <lambda>"):
        uptrend.resume(run.path, ["learning.steps=3"], progress=False)
    done = uptrend.resume(
        run.path,
        ["learning.steps=3"],
        reward=lambda completion: float(len(completion)),
        progress=False,
    )
    assert done.last_step == 3


def test_several_rewards_with_weights_a_file_and_bounds(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"q": row["prompt"], "a": row["answer"]}) for row in ROWS))
    run = train(
        tmp_path,
        data=file,
        prompt="q",
        answer="a",
        reward={"exact": 1.0, first_number: 0.5},
        bounds=(0, 1.1),
    )
    assert run.config["tasks"]["weights"] == [1.0, 0.5]
    assert set(run.rollouts(1)["reward_high"].to_pylist()) == {1.55}
    assert run.name == "rows"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"config": {}}, "The recipe is empty"),
        ({"data": ROWS}, "Nothing to train on: give a recipe, or data and reward."),
        ({"data": ["a"], "reward": "exact"}, "data should be a list of dicts"),
        ({"data": [], "reward": "exact"}, "data has no rows"),
        ({"data": ROWS, "reward": 5}, "should be a function"),
        ({"data": ROWS, "reward": "exact", "bounds": 1}, "tasks.bounds = 1 should be [low, high]"),
        ({"data": [{"prompt": "a"}], "reward": "exact"}, "data:1 has no answer"),
        ({"config": uptrend.load_config({}), "steps": 3}, "A loaded config is trained as it is"),
    ],
)
def test_what_cannot_be_trained(tmp_path, given, said):
    with pytest.raises((ConfigError, TasksetError, TypeError)) as error:
        uptrend.train(**given, runs=tmp_path, progress=False, preflight=False)
    assert said in str(error.value)
    assert not [path for path in tmp_path.iterdir() if path.name != ".data"]


@pytest.mark.slow
def test_a_script_shows_progress_and_a_refusal_raises_with_its_finding(tmp_path):
    script = tmp_path / "learn.py"
    script.write_text(
        "import uptrend\n"
        f"rows = {ROWS!r}\n"
        "def blind(completion, answer):\n    return 1.0\n"
        "def fair(completion, answer):\n    return float(completion.strip().startswith(answer))\n"
        f"kept = dict(model='tiny', data=rows, steps=1, bounds=(0, 1), overrides={QUICK!r})\n"
        "print(uptrend.train(reward=fair, **kept))\n"
        "try:\n"
        "    uptrend.train(reward=blind, **kept)\n"
        "except uptrend.records.RunRefused as refusal:\n"
        "    print(refusal.finding.id, refusal.finding.severity)\n"
        "uptrend.train(reward=blind, **kept)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "step 1/1" in done.stdout
    assert "Run('runs/tiny', finished, 1 of 1 steps)" in done.stdout
    assert "reward.gold-rejected critical" in done.stdout
    assert done.returncode == 1
    last_lines = done.stderr.splitlines()[-2:]
    assert "RunRefused: Not started: reward.gold-rejected: " in last_lines[0]
    assert last_lines[1] == "To train anyway: allows=['reward.gold-rejected'], or preflight=False"
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [".data", "tiny"]


@pytest.mark.slow
def test_the_smallest_thing_that_anybody_tries_trains(tmp_path):
    run = uptrend.train(
        model="tiny", data=ROWS, reward=first_number, steps=2, progress=False, runs=tmp_path
    )
    assert (run.status, run.last_step) == ("finished", 2)
    assert run.config["model"]["chat"] is False
    assert (
        "model.chat = false: tiny was not taught to chat, so it reads raw text."
        in run.info["notes"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("asks", [True, False])
def test_an_unknown_model_is_asked_in_the_way_that_it_answers_better(tmp_path, asks):
    folder = tmp_path / "unknown"
    shutil.copytree(local_folder("tiny"), folder)
    given = {
        "data": ROWS,
        "reward": first_number,
        "steps": 1,
        "progress": False,
        "preflight": asks,
        "runs": tmp_path,
    }
    small = ["sampling.max_tokens=4", "eval.tasks=8", "doctor.live=false"]
    run = uptrend.train(model=str(folder), name="auto", **given, overrides=small)
    (note,) = (note for note in run.info["notes"] if note.startswith("model.chat"))
    right = re.fullmatch(
        r"model.chat = false: (\d+)% of 32 answers are right through the chat template, (\d+)% to raw text\.",
        note,
    )
    assert int(right[2]) >= int(right[1]) + 20
    assert run.config["model"]["chat"] is False
    # What was decided stays, also where the model's folder is a known one's copy.
    again = uptrend.resume(run.path, ["learning.steps=2"], progress=False)
    assert again.config["model"]["chat"] is False
    stated = uptrend.train(
        model=str(folder),
        name="stated",
        **{**given, "preflight": False},
        overrides=[*small, "model.chat=true"],
    )
    assert stated.config["model"]["chat"] is True
    assert not [note for note in stated.info["notes"] if note.startswith("model.chat")]
    first = {run.name: run.rollouts(1)["ids"][0].as_py() for run in (run, stated)}
    assert len(first["stated"]) > len(first["auto"])  # the template's tokens


@pytest.mark.slow
def test_a_run_from_before_the_choice_goes_on_as_it_was_asked(tmp_path):
    given = {
        "data": ROWS,
        "reward": first_number,
        "steps": 1,
        "progress": False,
        "preflight": False,
        "runs": tmp_path,
    }
    small = [
        "sampling.max_tokens=4",
        "eval.tasks=8",
        "doctor.live=false",
        "checkpoints.every=1",
        "model.chat=true",
    ]
    run = uptrend.train(model="tiny", name="earlier", **given, overrides=small)
    path = run.path / "run.json"
    info = json.loads(path.read_text())
    del info["config"]["model"]["chat"]
    path.write_text(json.dumps(info))
    again = uptrend.resume(run.path, ["learning.steps=2"], progress=False)
    prompts = [
        [token for token, role in zip(row["ids"], row["roles"], strict=True) if role == Role.PROMPT]
        for row in again.eval_rollouts(0).to_pylist() + again.eval_rollouts(2).to_pylist()
    ]
    half = len(prompts) // 2
    assert prompts[:half] == prompts[half:]
    assert len(prompts[0]) > len("Calculate: 0 + 0 = ")  # the template's tokens
    scored = uptrend.evaluate(run.path)
    assert [rollout.sequences[0].ids[:9].tolist() for rollout in scored.rollouts] == [
        p[:9] for p in prompts[:half]
    ]


def test_runs_and_reports_show_themselves_in_notebooks(tmp_path):
    run = train(tmp_path, steps=1)
    assert repr(run) == f"Run({str(run.path)!r}, finished, 1 of 1 steps)"
    page = run._repr_html_()
    assert page.startswith("<table>")
    assert "held-out after step 1" in page
    assert "reward/mean" in page
    finding = Finding("reward.constant", Severity.CRITICAL, Basis.PROOF, "All <equal>.", ())
    report = Report(
        "x.json", "trl", "x", 9, Trend(TrendKind.FLAT, "Nothing moved."), (finding,), ()
    )
    assert (
        repr(report) == "Report('x.json', 9 steps, flat)\n  critical  reward.constant: All <equal>."
    )
    assert "critical: reward.constant</th><td>All &lt;equal&gt;." in report._repr_html_()


def test_init_writes_a_recipe_that_loads_validates_and_trains(tmp_path, monkeypatch, capsys):
    from uptrend.cli.main import main

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return ended.value.code, capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(
        "question,answer\n" + "".join(f"{r['prompt']},{r['answer']}\n" for r in ROWS)
    )
    code, said = call("init", "mine", "--data", "rows.csv", "--reward", "own", "--model", "tiny")
    assert (code, "48 tasks to train on, 16 held out" in said.out) == (0, True)
    assert sorted(path.name for path in Path("mine").glob("*.*")) == [
        "recipe.toml",
        "rewards.py",
        "test_rewards.py",
    ]
    config = uptrend.load_config("mine/recipe.toml")
    assert (config.name, config.tasks.options["file"]) == ("mine", "mine/../rows.csv")
    code, said = call("tasks", "validate", "mine/recipe.toml", "--json")
    assert (code, json.loads(said.out)["passed"]) == (0, True)
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "mine", "-p", "no:cacheprovider"], check=False
    )
    assert tested.returncode == 0
    code, said = call("init", "mine", "--data", "rows.csv", "--reward", "exact", "--model", "tiny")
    assert (code, "exists already" in said.err) == (2, True)
    code, said = call("init", "other", "--data", "rows.csv", "--reward", "exakt", "--model", "tiny")
    assert (code, "Did you mean exact?" in said.err) == (2, True)
    code, said = call("init", "other")
    assert (code, "--data is missing" in said.err, Path("other").exists()) == (2, True, False)


def one_of_them(completion, answer):
    return float(completion.strip() in answer)


def as_printed(completion, answer):
    return float(completion.strip() == str(answer))


@pytest.mark.parametrize(
    ("reward", "answer_of"),
    [(one_of_them, lambda n: [str(n), f"{n}.0"]), (as_printed, lambda n: n % 2 == 0)],
)
def test_gold_answers_that_are_no_text_are_said_as_the_function_wants_them(
    tmp_path, capsys, reward, answer_of
):
    rows = [
        {"prompt": f"Calculate: {a} + {b} = ", "answer": answer_of(a + b)}
        for a in range(8)
        for b in range(8)
    ]
    run = train(
        tmp_path, data=rows, reward=reward, bounds=(0, 1), steps=1, preflight=True, progress=True
    )
    assert run.stopped is None
    assert "reward.gold-rejected" not in "".join(capsys.readouterr())


def test_a_function_that_takes_numbers_for_texts_is_told_their_type(tmp_path, capsys):
    rows = [
        {"prompt": f"Calculate: {a} + {b} = ", "answer": a + b} for a in range(8) for b in range(8)
    ]

    def as_text(completion, answer):
        return float(completion.strip() == answer)

    with pytest.raises(RunRefused) as refusal:
        train(
            tmp_path,
            data=rows,
            reward=as_text,
            bounds=(0, 1),
            steps=1,
            preflight=True,
            progress=True,
        )
    assert refusal.value.finding.id == "reward.gold-rejected"
    assert "the function gets this row's answer as int: " in capsys.readouterr().err
