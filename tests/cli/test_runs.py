"""`uptrend runs` on run directories that the real writer wrote, and the blocks of its curves."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from synthetic import info_of, rollout_of, write_refused_run
from uptrend.present.terminal import BLOCK_HEIGHTS, phase_shares, sparkline
from uptrend.records import Message, Role, Run, RunDirectory, Sequence, ToolCall, rollouts_table

MakeRun = Callable[..., Path]
Uptrend = Callable[..., Any]


@pytest.fixture
def two_runs(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """`slow` and `fast`, which is newer; the working directory is the one above ./runs."""
    slow = make_run("slow", rights=(15, 22), lift=0.2)
    fast = make_run("fast", steps=10, seed=1, overrides=("learning.lr=2e-5", "learning.loss=dapo"))
    info = json.loads((fast / "run.json").read_text())
    (fast / "run.json").write_text(json.dumps({**info, "created": "2025-12-01T08:30:00+00:00"}))
    monkeypatch.chdir(slow.parents[1])
    return slow, fast


@pytest.mark.usefixtures("two_runs")
def test_list(uptrend: Uptrend) -> None:
    header, fast, slow = (line.split() for line in uptrend("runs", "list").out.splitlines())
    assert header[:2] == ["run", "status"]
    assert fast[:6] == ["fast", "finished", "10/10", "37.5%", "(24.2–53.0)", "→"]
    assert fast[-7:] == ["tiny", "arithmetic", "dapo", "2025-12-01", "08:30", "1.0", "s"]
    assert slow[0] == "slow"
    listed = uptrend("runs", "list", "--json").json
    assert ([run["name"] for run in listed["runs"]], listed["broken"]) == (["fast", "slow"], [])
    run = listed["runs"][1]
    assert [run[key] for key in ("status", "step", "steps", "model", "taskset", "loss", "seed", "path")] == [
        "finished", 20, 20, "tiny", "arithmetic", "grpo", 0, "runs/slow",
    ]  # fmt: skip
    assert (run["before"]["accuracy"], run["after"]["step"], run["after"]["correct"]) == (
        15 / 40,
        20,
        22,
    )


def test_list_names_what_cannot_be_read(two_runs: tuple[Path, Path], uptrend: Uptrend) -> None:
    folder = two_runs[0].parent
    (folder / "notes").mkdir()
    for name, text in {"torn": "{", "newer": '{"schema": 9, "config": {}}'}.items():
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(text)
    (two_runs[1] / "evals.jsonl").write_text('{"step": 0}\n')
    assert "torn can't be read:" in uptrend("runs", "list", folder).out
    listed = uptrend("runs", "list", folder, "--json").json
    assert {Path(b["path"]).name for b in listed["broken"]} == {"torn", "newer"}
    assert {run["name"]: run["before"] is None for run in listed["runs"]} == {
        "slow": False,
        "fast": True,
    }
    assert (
        "1 line of evals.jsonl could not be read and is left out."
        in uptrend("runs", "show", two_runs[1]).flat
    )


def test_a_run_that_has_just_begun(
    two_runs: tuple[Path, Path], tmp_path: Path, uptrend: Uptrend
) -> None:
    info = json.loads((two_runs[0] / "run.json").read_text())
    with RunDirectory.create(tmp_path / "runs" / "new", info):
        assert "running" in uptrend("runs", "list").out
        assert "0 of 20 steps" in uptrend("runs", "show", "new").out
        assert "share no held-out task" in uptrend("runs", "compare", "slow", "new").out
    assert (
        "nowhere does not exist. Make one with: uptrend train"
        in uptrend("runs", "list", "nowhere", code=2).err
    )


def test_show(two_runs: tuple[Path, Path], uptrend: Uptrend) -> None:
    shown = uptrend("runs", "show", "slow").flat
    assert shown.startswith("slow finished 20 of 20 steps, 1.0 s per step runs/slow")
    assert "loss grpo, scale group, lr 1e-05" in shown
    assert "kl/reference/mean ▁▁▁▂▂▃▃▃▄▄▅▅▆▆▆▇▇███ 0.001 → 0.02" in shown
    assert "held-out after step 20 55.0% (39.8–69.3) 22 of 40" in shown
    assert "step time sample 60%, update 30%" in shown
    described = uptrend("runs", "show", two_runs[0], "--json").json
    assert len(described["curves"]["reward/mean"]) == 20
    assert described["phases"]["sample"] == pytest.approx(0.6)
    assert described["config"]["learning"]["lr"] == 1e-5
    assert described["files"]["run.json"] == (two_runs[0] / "run.json").stat().st_size
    assert "Did you mean slow?" in uptrend("runs", "show", "slo", code=2).err
    assert "runs/ holds fast, slow." in uptrend("runs", "show", "zzzzzz", code=2).err


def test_show_says_why_a_run_was_stopped(two_runs: tuple[Path, Path], uptrend: Uptrend) -> None:
    stop = {"event": "stopped", "time": "2026-01-01T00:00:00+00:00", "step": 0, "reason": "All equal.",
            "stopped_by": "preflight", "finding": "reward.constant"}  # fmt: skip
    with (two_runs[0] / "events.jsonl").open("a") as file:
        file.write(json.dumps(stop) + "\n")
    assert (
        "stopped by preflight reward.constant: All equal."
        in uptrend("runs", "show", two_runs[0]).flat
    )
    assert uptrend("runs", "show", two_runs[0], "--json").json["stopped"]["by"] == "preflight"


@pytest.mark.usefixtures("two_runs")
def test_compare(uptrend: Uptrend) -> None:
    compared = uptrend("runs", "compare", "slow", "fast", "--json").json
    assert compared["difference"]["learning.lr"] == [1e-5, 2e-5]
    assert set(compared["difference"]) == {
        "name",
        "seed",
        "learning.lr",
        "learning.loss",
        "learning.steps",
    }
    paired = compared["paired"]
    counts = {key: paired[key] for key in ("tasks", "both", "only_a", "only_b", "neither")}
    assert counts == {"tasks": 40, "both": 22, "only_a": 0, "only_b": 6, "neither": 12}
    assert paired["p"] == pytest.approx(stats.binomtest(0, 6).pvalue)
    assert (paired["step_a"], paired["step_b"]) == (20, 10)
    shown = uptrend("runs", "compare", "slow", "fast")
    assert "6 by B alone (exact McNemar p .031)" in shown.flat
    assert "learning.loss grpo dapo" in shown.flat
    lines = shown.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("reward/mean"))
    a, b = (line.removeprefix("reward/mean").split()[1] for line in lines[start : start + 2])
    assert (len(a), len(b)) == (20, 10)  # equal places are equal steps
    assert "█" in b  # on one scale
    assert "█" not in a
    assert "The configs are the same." in uptrend("runs", "compare", "slow", "slow").out


def test_sampled_attempts_are_not_the_answer(make_run: MakeRun, uptrend: Uptrend) -> None:
    a, b = make_run("a"), make_run("b")
    attempts = [rollout_of(20, f"e{i}", 0, False, f"task-{i}") for i in range(40)]
    table = pa.concat_tables([Run(b).eval_rollouts(20), rollouts_table("b", attempts)])
    pq.write_table(table, b / "evals" / "000020.parquet")
    assert uptrend("runs", "compare", a, b, "--json").json["paired"]["both"] == 28


@pytest.mark.usefixtures("two_runs")
@pytest.mark.parametrize("width", [60, 80])
def test_every_page_fits_its_terminal(width: int, uptrend: Uptrend) -> None:
    for command in (("list",), ("show", "slow"), ("compare", "slow", "fast")):
        lines = uptrend("runs", *command, width=width).out.splitlines()
        assert max(map(len, lines)) <= width, command
        assert not any("…" in line for line in lines), command


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A run of one step with a rollout of two turns that was trained, and one that was not."""
    untrained = rollout_of(3, "a/b", 1)
    roles = np.array([0, 0, 1, 1, 2, 1], np.int8)
    said = np.array([np.nan, np.nan, -0.5, -0.25, np.nan, -1.0], np.float32)
    tokens = Sequence(
        ids=np.array([11, 12, 13, 14, 15, 16], np.int32),
        turns=np.array([0, 0, 0, 0, 1, 1], np.int32),
        roles=roles,
        versions=np.where(roles == Role.MODEL, 2, -1).astype(np.int32),
        sampler=said,
        weights=(roles == Role.MODEL).astype(np.float32) / 3,
        attended=np.array([False, False, True, True, True, True]),
        advantages=np.where(roles == Role.MODEL, -1.5, 0).astype(np.float32),
        learner=said - 1,
    )
    messages = (
        Message("user", "2 + 3 ="),
        Message("assistant", "let me see", (ToolCall("add", {"a": 2, "b": 3}),)),
        Message("tool", "5"),
        Message("assistant", "five"),
    )
    trained = type(untrained)(
        **{**vars(untrained), "index": 2, "messages": messages, "sequences": (tokens,)}
    )
    failed = type(untrained)(
        **{**vars(untrained), "index": 3, "reward": None, "error": "score: RuntimeError()"}
    )
    folder = tmp_path / "runs" / "demo"
    with RunDirectory.create(folder, info_of("demo", ("model.name=elsewhere",))) as directory:
        directory.step({"step": 3}, rollouts_table("demo", [untrained, trained, failed]))
    return folder


def test_a_rollout_is_shown_with_its_tokens(talk: Path, uptrend: Uptrend) -> None:
    shown = uptrend("runs", "show", talk, "--rollout", "3/a/b/2").out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0] == "3/a/b/2 task t0 family add ended stop-token 0.1 s"
    assert lines[1] == "reward 1 correct of 0 to 1 answer 1 gold answer '5'"
    assert 'calls [{"name": "add", "arguments": {"a": 2, "b": 3}}]' in lines
    assert "0 prompt 2 no hidden 0 – – 11 12" in lines
    assert "0 model 2 yes yes −1.5 −0.375 −1.38 13 14" in lines
    assert "1 tool 1 no yes 0 – – 15" in lines
    assert "1 model 1 yes yes −1.5 −1 −2 16" in lines
    untrained = uptrend("runs", "show", talk, "--rollout", "3/a/b/1").flat
    assert "0 model 3 – – – −0.292 – 3 4 5" in untrained
    failed = uptrend("runs", "show", talk, "--rollout", "3/a/b/3").flat
    assert "error: score: RuntimeError() no reward" in failed
    described = uptrend("runs", "show", talk, "--rollout", "3/a/b/2", "--json").json
    assert (described["step"], described["group"], described["index"], described["reward"]) == (
        3,
        "a/b",
        2,
        1.0,
    )
    assert described["sequences"][0]["ids"] == [11, 12, 13, 14, 15, 16]
    tokenizers = pytest.importorskip("tokenizers")
    folder = talk / "checkpoints" / "step-000003" / "model"
    folder.mkdir(parents=True)
    words = {f"w{i}": i for i in range(20)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(
        str(folder / "tokenizer.json")
    )
    assert "w13 w14" in uptrend("runs", "show", talk, "--rollout", "3/a/b/2").out


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("3/a/c/2", "has no group a/c. Did you mean a/b?"),
        ("3/a/b/7", "has no rollout 7 in group a/b. Its rollouts are 1 to 3."),
        ("4/a/b/2", "has no rollouts of step 4; it has 3 to 3"),
        ("3/2", "has no group 2. It has 1: 0 to 0."),
        ("3/a/x", "has no group a/x. Did you mean a/b?"),
        ("x/a/2", "should be STEP, STEP/GROUP or STEP/GROUP/INDEX"),
    ],
)
def test_a_rollout_that_is_not_there(
    talk: Path, named: str, message: str, uptrend: Uptrend
) -> None:
    assert message in uptrend("runs", "show", talk, "--rollout", named, code=2).err


@pytest.fixture
def grouped(tmp_path: Path) -> Path:
    """A run of two steps: a group with a signal, a dead one, and one that was replaced."""
    folder = tmp_path / "runs" / "demo"
    with RunDirectory.create(folder, info_of("demo")) as directory:
        for step in (11, 12):
            rollouts = []
            for group, rights in enumerate([(True, False, False), (True,) * 3, (False,) * 3]):
                for index, right in enumerate(rights):
                    rollout = rollout_of(step, f"{step:06d}-{group:04d}", index, right, f"t{group}")
                    tokens = replace(
                        rollout.sequences[0],
                        advantages=np.array([0, 0, 2, 2, 2 * right], np.float32),
                    )
                    rollouts.append(replace(rollout, sequences=(tokens,), kept=group < 2))
            directory.step({"step": step}, rollouts_table("demo", rollouts))
    return folder


def test_groups_of_a_step_and_rollouts_of_a_group(grouped: Path, uptrend: Uptrend) -> None:
    groups = uptrend("runs", "show", grouped, "--rollout", 12, "--json").json["groups"]
    assert [group["number"] for group in groups] == [0, 1, 2]
    assert [(g["task"], g["rewards"], g["mean"], g["dead"], g["kept"]) for g in groups] == [
        ("t0", [1, 0, 0], pytest.approx(1 / 3), False, True),
        ("t1", [1, 1, 1], 1, True, True),
        ("t2", [0, 0, 0], 0, True, False),
    ]  # fmt: skip
    lines = [
        " ".join(line.split())
        for line in uptrend("runs", "show", grouped, "--rollout", 12).out.splitlines()
    ]
    assert lines == [
        "group mean rewards task", "12/0 0.333 alive 0 ×2, 1 ×1 2 + 3 =", "12/1 1 dead 1 ×3 2 + 3 =",
        "12/2 0 replaced 0 ×3 2 + 3 =",
    ]  # fmt: skip
    shown = uptrend("runs", "show", grouped, "--rollout", "12/0").out
    assert shown == uptrend("runs", "show", grouped, "--rollout", "12/000012-0000").out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[-3:] == [
        "12/0/0 1 2 3 stop-token 5",
        "12/0/1 0 1.33 3 stop-token 6",
        "12/0/2 0 1.33 3 stop-token 6",
    ]
    assert uptrend("runs", "show", grouped, "--rollout", "12/0/1").out.startswith(
        "12/000012-0000/1  task t0"
    )
    listed = uptrend("runs", "show", grouped, "--rollout", "12/0", "--json").json["rollouts"]
    assert [(r["rollout"], r["reward"], r["tokens"], r["text"]) for r in listed[:2]] == [
        ("12/0/0", 1, 3, "5"), ("12/0/1", 0, 3, "6"),
    ]  # fmt: skip


def test_best_and_worst_rollouts(grouped: Path, uptrend: Uptrend) -> None:
    of_run = uptrend("runs", "show", grouped, "--best", 5, "--worst", 2, "--json").json
    assert [one["rollout"] for one in of_run["best"]] == [
        "11/0/0",
        "11/1/0",
        "11/1/1",
        "11/1/2",
        "12/0/0",
    ]
    assert [one["rollout"] for one in of_run["worst"]] == ["11/0/1", "11/0/2"]
    of_step = uptrend("runs", "show", grouped, "--worst", 1, "--rollout", 12)
    assert of_step.flat.startswith("worst 1 rollout by reward")
    assert "12/0/1 0 1.33 3 stop-token 6" in of_step.flat
    assert "best" not in of_step.out
    assert (
        "--rollout 12"
        in uptrend("runs", "show", grouped, "--best", 1, "--rollout", "12/0", code=2).err
    )


@pytest.mark.parametrize("width", [60, 160])
def test_lists_of_rollouts_fit_their_terminal(talk: Path, width: int, uptrend: Uptrend) -> None:
    for asked in (["--rollout", "3"], ["--rollout", "3/0"], ["--best", "2"]):
        lines = uptrend("runs", "show", talk, *asked, width=width).out.splitlines()
        assert max(map(len, lines)) <= width
    cut = uptrend("runs", "show", talk, "--rollout", "3/0", width=width).out
    assert ("…" in cut) == (width == 60)
    assert len(cut.splitlines()) == 2 + 1 + 1 + 3  # a group, and its rollouts, on one line each


def test_show_states_the_trend_and_the_first_finding(
    two_runs: tuple[Path, Path], uptrend: Uptrend
) -> None:
    doctor = uptrend("runs", "show", "slow", "--json").json["doctor"]
    uptrend("doctor", two_runs[0])
    saved = json.loads((two_runs[0] / "findings.json").read_text())
    for key in ("trend", "headline", "sentence"):
        assert doctor[key] == saved[key]
    causes = [found for found in saved["findings"] if found["symptom_of"] is None]
    assert [found["id"] for found in doctor["findings"]] == [found["id"] for found in causes]
    shown = uptrend("runs", "show", "slow").flat
    assert f"trend {saved['headline']}: {saved['sentence']}" in shown
    first = causes[0]
    assert (
        f"finding {first['severity']}: {first['id']}: {first['summary']} fix {first['fix']['sentence'][:60]}"
        in shown
    )
    assert "more uptrend doctor runs/slow" in shown
    # What the file says holds as long as it is newer than the metrics, and of as many steps.
    (two_runs[0] / "findings.json").write_text(json.dumps({**saved, "sentence": "As written."}))
    assert "As written." in uptrend("runs", "show", "slow").out
    (two_runs[0] / "findings.json").write_text(
        json.dumps({**saved, "sentence": "As written.", "steps": 3})
    )
    assert "As written." not in uptrend("runs", "show", "slow").out
    (two_runs[0] / "findings.json").write_text("{")
    assert saved["sentence"] in uptrend("runs", "show", "slow").flat


def test_a_curve_that_hardly_moves_is_drawn_flat() -> None:
    noise = np.random.default_rng(0).uniform(-0.001, 0.001, 60)
    assert len(set(sparkline(list(5 * (1 + noise)), 60))) == 1
    assert len(set(sparkline(list(-300 * (1 + noise)), 60))) == 1
    few = [
        0.001,
        0.012,
    ]  # a share: a hundredth is little of 0 to 1, although it is twelve times as much
    assert sparkline(few, 2) == "▁█"
    assert len(set(sparkline(few, 2, metric="advantage/dead/share"))) == 1
    assert sparkline([0.3, 0.5], 2, metric="advantage/dead/share") == "▁█"
    assert sparkline([1.0, 0.97], 2) == "▅▃"  # visible, and no cliff


def test_sparklines() -> None:
    assert sparkline(list(range(8)), 8) == BLOCK_HEIGHTS
    assert sparkline([0, 0, 1, 1], 2) == "▁█"  # neighbors are averaged
    assert sparkline([0, 1], 10) == "▁█"  # never stretched
    assert sparkline([0, None, math.nan, math.inf, 1], 5) == "▁   █"
    assert sparkline([None, math.nan], 5) == "  "
    assert sparkline([3, 3, 3], 3) == "▄▄▄"
    assert sparkline([-5, 50], 2, 0, 8) == "▁█"
    assert phase_shares({}) == "–"


@given(st.lists(st.none() | st.floats(width=32)), st.integers(0, 40))
def test_a_sparkline_always_fits(values: list[float | None], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)
    assert set(line) <= set(BLOCK_HEIGHTS + " ")


def test_show_and_the_doctor_name_a_refused_run_alike(tmp_path: Path, uptrend: Uptrend) -> None:
    run = write_refused_run(tmp_path / "runs" / "refused")
    sentence = "Preflight did not let it begin. reward.constant: All equal."
    # before anybody has asked the doctor, and with the report that it wrote
    for _ in range(2):
        shown = uptrend("runs", "show", run)
        assert f"trend not started: {sentence}" in shown.flat
        assert "too-short" not in shown.out
        doctor = uptrend("runs", "show", run, "--json").json["doctor"]
        assert (doctor["headline"], doctor["sentence"]) == ("not started", sentence)
        assert f"NOT STARTED {sentence}" in uptrend("doctor", run).flat
    page = uptrend("doctor", run, "--format", "html").out
    assert "Not started" in page
    assert "Too short" not in page
