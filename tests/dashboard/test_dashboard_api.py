"""Every question of the API, asked over HTTP, against what the records hold."""

import json
import math
import random
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import httpx
import numpy as np
import pytest

from synthetic import evaluation_of, info_of, line_of, metrics_of, rollout_of, write_run
from uptrend.dashboard import curves, server
from uptrend.dashboard.api import ENDPOINTS
from uptrend.records import Ending, Message, Role, Run, RunDirectory, ToolCall, rollouts_table
from uptrend.records.lines import append_line
from uptrend.runner import reports_of
from uptrend.stats.comparison import pair_runs, paired_interval

ROOT = Path(__file__).parents[2]
FORMATS = ROOT / "tests" / "data" / "formats"
JOURNAL = ROOT / "examples" / "journal"
LOG = FORMATS / "trl-bars" / "raw" / "out.log"
Ask = Callable[..., Any]
Serve = Callable[..., str]


def write_rollouts(path: Path, steps: int = 3) -> Path:
    """A run whose rollouts have all that one can have; the evaluation has two sampled attempts for
    each task.
    """
    with RunDirectory.create(path, info_of(path.name, (f"learning.steps={steps}",))) as directory:
        directory.event("started", step=0)
        for step in range(1, steps + 1):
            pairs = [(group, index) for group in range(3) for index in range(4)]
            rollouts = [full_rollout(step, group, index) for group, index in pairs]
            directory.step(
                metrics_of(step, steps, random.Random(step)), rollouts_table(path.name, rollouts)
            )
        attempts = [
            replace(rollout_of(steps, f"e{i}", 0, n == i, f"task-{i}"), seconds=n)
            for i in (0, 1)
            for n in range(3)
        ]
        directory.evaluation(
            line_of(evaluation_of(steps, 1, 2)), rollouts_table(path.name, attempts)
        )
        directory.event("finished", step=steps)
    return path


def full_rollout(step: int, group: int, index: int) -> Any:
    base = rollout_of(step, f"g{group}", index, index > 1, f"t{group}")
    call = ToolCall("search" if index else "s_arch", {"query": "Bergen"})
    said = (
        *base.messages[:1],
        Message("assistant", "", (call,)),
        Message("tool", f"Found: {step}/{index}"),
        base.messages[1],
    )
    sequence = replace(
        base.sequences[0], turns=np.array([0, 0, 0, 1, 1], np.int32),
        roles=np.array([Role.PROMPT, Role.TOOL, *[Role.MODEL] * 3], np.int8),
        weights=np.array([0, 0, 1, 1, 0], np.float32), attended=np.array([1, 0, 1, 1, 1], bool),
        advantages=np.array([math.nan, math.nan, index, 1.0, 2.0], np.float32),
        learner=np.array([math.nan, math.nan, -0.5, -0.3, -0.1], np.float32),
    )  # fmt: skip
    told = replace(
        base,
        messages=said,
        sequences=(sequence, replace(sequence, advantages=None))[: 1 + (index == 3)],
    )
    if index:
        return replace(told, ended=Ending.LENGTH if index == 1 else Ending.STOP_TOKEN)
    return replace(
        told, reward=None, sequences=(), error="score: no answer", ended=Ending.TASK_ERROR
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `a` and `b` that differ in their seed, `c` with another learning rate, `rollouts` and a
    killed one.
    """
    folder = tmp_path_factory.mktemp("world") / "runs"
    write_run(folder / "a", rights=(10, 20))
    write_run(folder / "b", seed=1, rights=(10, 30))
    write_run(folder / "c", overrides=("learning.lr=3e-4",), lift=0.1)
    write_run(folder / "killed, with a comma", steps=4, end=None)
    write_rollouts(folder / "rollouts")
    return folder


@pytest.fixture(scope="module")
def url(world: Path, serve_once: Serve) -> str:
    return serve_once(world, JOURNAL)


def test_every_question_is_answered_and_the_openapi_page_lists_them(url: str, ask: Ask) -> None:
    rollout = {"run": "runs/rollouts", "step": 1, "group": "g0", "index": 1}
    asked: dict[str, dict[str, Any]] = {
        "status": {}, "runs": {}, "run": {"run": "runs/a"}, "curves": {"run": "runs/a"}, "steps": {"run": "runs/a"},
        "compare": {"runs": "runs/a,runs/b"}, "rollouts": {"run": "runs/a"}, "rollout": rollout, "labs": {},
        "cause": {"id": "kl.runaway"}, "lab": {"lab": "journal"}, "hypothesis": {"lab": "journal", "id": "h01"},
    }  # fmt: skip
    for path, query in asked.items():
        assert ask(url, path, **query), path
    listed = ask(url, "openapi.json")["paths"]
    assert {path.removeprefix("/api/") for path in listed} == {*ENDPOINTS, "live", "doctor"}
    assert set(asked) == set(ENDPOINTS)
    (run,) = listed["/api/run"]["get"]["parameters"]
    assert (run["name"], run["required"], run["in"]) == ("run", True, "query")
    assert list(listed["/api/doctor"]) == ["post"]
    status = ask(url, "status")
    assert status["counts"] == {"run": 5, "log": 0, "lab": 1}


def test_the_table_is_filtered_sorted_grouped_and_paged(url: str, ask: Ask) -> None:
    def names(**query: Any) -> list[str]:
        return [row["name"] for row in ask(url, "runs", **query)["rows"]]

    assert set(names(filter="learning.lr>1e-7 status=finished")) == {"a", "b", "c", "rollouts"}
    assert names(filter="learning.lr>1e-4 status=finished", sort="name") == ["c"]
    assert names(filter="learning.lr<=3e-4 learning.lr>=3e-4 TINY") == ["c"]
    assert (
        names(filter="status!=finished")
        == names(filter='"with a comma"')
        == ["killed, with a comma"]
    )
    assert names(filter="learning.lr=much") == []
    assert names(filter="seed=1") == names(filter="after>0.7") == ["b"]
    assert names(filter="name~oll") == ["rollouts"]
    assert names(sort="name") == sorted(names()) == names(sort="-name")[::-1]
    assert names(sort="-after", filter="after>=0")[0] == "b"
    assert names(sort="before")[-1] == names(sort="-before")[-1] == "rollouts"  # it has none
    page = ask(url, "runs", sort="name", limit=2, offset=1, columns="learning.lr,seed")
    assert (page["total"], [row["name"] for row in page["rows"]]) == (5, ["b", "c"])
    assert list(page["rows"][1]["config"]) == ["learning.lr", "seed"]
    assert page["rows"][1]["config"]["learning.lr"] == 3e-4
    groups = [row["group"] for row in ask(url, "runs", sort="name", group="status")["rows"]]
    assert groups == ["finished"] * 4 + ["killed"]
    assert "learning.lr" in ask(url, "runs")["keys"]


@pytest.mark.parametrize(
    ("path", "query", "named"),
    [
        ("runs", {"limit": "many"}, "limit=many"), ("runs", {"limit": -1}, "limit=-1"),
        ("runs", {"limit": 10**9}, "limit=1000000000"), ("runs", {"limit": "9" * 5000}, "limit=999"),
        ("runs", {"offset": "1.5"}, "offset=1.5"), ("runs", {"sorted": "x"}, "sorted"), ("status", {"x": 1}, "x"),
        ("run", {}, "run"), ("rollout", {"run": "runs/a", "group": "g0", "index": 0}, "step"),
        ("rollout", {"run": "runs/a", "step": "", "group": "g0", "index": 0}, "step"),
        ("curves", {"run": "runs/a", "first": "NaN"}, "first=NaN"), ("curves", {"run": "a", "points": 1e9}, "points="),
        ("rollouts", {"run": "runs/a", "low": "nan"}, "low=nan"), ("rollouts", {"run": "a", "high": "inf"}, "high=inf"),
        ("rollouts", {"run": "runs/a", "correct": "perhaps"}, "correct=perhaps"),
        ("rollouts", {"run": "runs/a", "heldout": 1, "label": "../../x"}, "label=../../x"),
        ("rollouts", {"run": "runs/a", "sort": "x"}, "sort=x is no order of rollouts: step, reward, advantage"),
        ("rollouts", {"run": "runs/a", "sort": "--step"}, "sort=--step"),
        ("rollouts", {"run": "runs/a", "sort": "x", "text": "y"}, "sort=x"),
        ("rollouts", {"run": "runs/a", "ended": "lenght"}, "ended=lenght is no ending: stop-token"),
        ("rollouts", {"run": "runs/a", "heldout": 1, "label": "hard"}, "label=hard is no further held-out set"),
        ("rollout", {"run": "runs/a", "step": 1, "group": "g", "index": 0, "label": "hard"}, "label=hard"),
        ("runs", {"sort": "x"}, "column or config key x. The columns are id, name"),
        ("runs", {"group": "x"}, "The columns are id, name"), ("runs", {"columns": "seed,x"}, "The columns are"),
        ("runs", {"filter": "x=1"}, "The columns are id, name"),
        ("compare", {"runs": ",".join(f"runs/{n}" for n in range(41))}, "41 runs"),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_named(
    url: str, ask: Ask, path: str, query: dict[str, Any], named: str
) -> None:
    told = ask(url, path, code=400, **query)["error"]
    assert named in told
    assert told.endswith(".")
    assert len(told) < 400


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("run", {"run": "runs/x"}), ("curves", {"run": "journal"}), ("lab", {"lab": "runs/a"}), ("live", {"run": "x"}),
        ("rollouts", {"run": "runs/a", "step": 99}), ("cause", {"id": "no.such"}), ("compare", {"runs": "a,b"}),
        ("rollout", {"run": "runs/rollouts", "step": 1, "group": "g0", "index": 9}),
        ("rollout", {"run": "runs/rollouts", "step": 1, "group": "g0", "index": 1, "nth": 1}),
        ("hypothesis", {"lab": "journal", "id": "h99"}), ("nothing", {}),
    ],
)  # fmt: skip
def test_what_is_not_there_is_a_sentence(
    url: str, ask: Ask, path: str, query: dict[str, Any]
) -> None:
    assert re.search(r"no |no$", ask(url, path, code=404, **query)["error"])


def test_a_run_shows_what_its_records_have(url: str, world: Path, ask: Ask) -> None:
    told, run = ask(url, "run", run="runs/a"), Run(world / "a")
    assert (told["row"]["step"], told["row"]["status"]) == (20, "finished")
    assert told["row"]["after"]["accuracy"] == pytest.approx(run.eval_lines[-1]["accuracy"])
    assert [e["step"] for e in told["evals"]] == [0, 10, 20]
    assert {"key": "learning.steps", "value": 20} in [
        {k: s[k] for k in ("key", "value")} for s in told["settings"]
    ]
    assert next(s for s in told["settings"] if s["key"] == "learning.steps")["default"] != 20
    keys = {metric["key"] for section in told["metrics"] for metric in section["metrics"]}
    assert keys == set(run.metrics.column_names) - {"step", "time"}
    assert told["panels"][0]["keys"] == ["reward/mean"]
    assert told["bounds"] == [0.0, 1.0]


def test_the_page_of_a_run_with_several_sources_draws_each(
    tmp_path: Path, serve: Serve, ask: Ask
) -> None:
    keys = ["source/sums/reward/mean", "source/words/reward/mean"]
    path = tmp_path / "runs" / "two"
    with RunDirectory.create(path, info_of("two")):
        for step in range(1, 6):
            line = {"step": step, "reward/mean": 0.5, **dict.fromkeys(keys, 0.1 * step)}
            append_line(path / "metrics.jsonl", line)
    told = ask(serve(tmp_path / "runs"), "run", run="runs/two")
    panels = {panel["id"]: panel for panel in told["panels"]}
    assert panels["source-reward"]["keys"] == keys
    assert "source-dead" not in panels
    (section,) = [section for section in told["metrics"] if section["title"] == "Reward"]
    assert [metric["key"] for metric in section["metrics"]] == ["reward/mean", *keys]


def test_thinned_curves_are_means_and_extremes_of_their_pieces(
    tmp_path: Path, serve: Serve, ask: Ask
) -> None:
    path, values = tmp_path / "runs" / "long", np.random.default_rng(0).normal(size=1003)
    values[[17, 500]], values[800:830] = (1e6, -1e6), math.nan
    with RunDirectory.create(path, info_of("long")):
        for step, value in enumerate(values, 1):
            line = {
                "step": step,
                "time": 100.0 + 2 * step,
                "reward/mean": value,
                "sampling/rollouts/count": 8,
            }
            append_line(path / "metrics.jsonl", line)
    url = serve(tmp_path / "runs")
    for query, seen in (({}, values), ({"first": 101, "last": 900}, values[100:900])):
        told = ask(
            url, "curves", run="runs/long", keys="reward/mean,not/there", points=100, **query
        )
        ends = np.array(told["step"]) - query.get("first", 1) + 1
        pieces, curve = np.split(seen, ends[:-1]), told["curves"]["reward/mean"]
        assert told["thinned"]
        assert len(pieces) == 100
        assert ends[-1] == len(seen)
        assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
        for name, by_hand in (("mean", np.nanmean), ("low", np.nanmin), ("high", np.nanmax)):
            expected = [
                float(by_hand(piece)) if np.isfinite(piece).any() else None for piece in pieces
            ]
            assert curve[name] == [
                None if e is None else pytest.approx(e, rel=1e-5) for e in expected
            ]
        assert told["rollouts"] == [8 * step for step in told["step"]]
        assert told["time"] == [2.0 * (step - 1) for step in told["step"]]
        assert list(told["curves"]) == ["reward/mean"]
    whole = ask(url, "curves", run="runs/long", keys="reward/mean", points=2000)
    assert not whole["thinned"]
    assert [v is None for v in whole["curves"]["reward/mean"]["mean"]] == np.isnan(values).tolist()
    assert (
        1e6
        in ask(url, "curves", run="runs/long", keys="reward/mean")["curves"]["reward/mean"]["high"]
    )


def test_each_byte_of_a_file_that_grows_is_read_once(
    make_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_run("a", steps=4) / "metrics.jsonl"
    columns, read, parse = curves.Columns(), list[int](), curves.parse
    monkeypatch.setattr(curves, "parse", lambda data: read.append(len(data)) or parse(data))
    for text in ("", '{"step": 5, "reward/mean": 0.5}\n', '{"step": 6, "reward/me', 'an": 0.6}\n'):
        with file.open("a") as out:
            out.write(text)
        table, _ = columns.of_run(Run(file.parent), tmp_path / "columns.arrow")
    assert table["step"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert sum(read) == file.stat().st_size


def test_a_file_that_grows_is_torn_damaged_or_rewound_reads_as_it_stands(
    make_run: Callable[..., Path], serve: Serve, ask: Ask
) -> None:
    file = make_run("a", steps=4) / "metrics.jsonl"
    url = serve(file.parents[1])

    def rewards() -> list[tuple[int, float | None]]:
        told = ask(url, "curves", run="runs/a", keys="reward/mean")
        return list(zip(told["step"], told["curves"]["reward/mean"]["mean"], strict=True))

    def append(text: str) -> list[tuple[int, float | None]]:
        with file.open("a") as out:
            out.write(text)
        return rewards()

    before = rewards()
    assert [step for step, _ in before] == [1, 2, 3, 4]
    assert append('{"step": 5, "reward/mean": 0.5}\n') == [*before, (5, 0.5)]
    assert append('{"step": 6, "reward/me') == [*before, (5, 0.5)]
    assert append('an": 0.6}\n')[-1] == (6, 0.6)
    assert append('{"step": 7, no JSON\n[1]\n{"step": 8, "reward/mean": 0.8}\n')[5:] == [
        (6, 0.6),
        (8, 0.8),
    ]
    odd = append('{"step": 9, "reward/mean": "high"}\n')
    assert odd[-2:] == [(8, 0.8), (9, None)]
    mixed = '{"step": 10, "reward/mean": 1}\n{"step": 11, "reward/mean": {"a": 1}}\n{"step": 12, "reward/mean": 0.25}\n'
    assert append(mixed)[-3:] == [(10, 1.0), (11, None), (12, 0.25)]
    kept = file.read_bytes().splitlines(keepends=True)[:2]
    file.write_bytes(b"".join([*kept, b'{"step": 3, "reward/mean": 0.125}\n']))
    assert rewards() == [*before[:2], (3, 0.125)]
    longer = b"".join(
        [*kept, *(b'{"step": %d, "reward/mean": 0.75}\n' % step for step in range(3, 40))]
    )
    file.write_bytes(longer)  # rewound, and further along than before
    assert rewards() == [*before[:2], *((step, 0.75) for step in range(3, 40))]


def test_rollouts_have_the_figures_of_the_records(url: str, world: Path, ask: Ask) -> None:
    rows = Run(world / "rollouts").rollouts(2).to_pylist()
    listed = ask(url, "rollouts", run="runs/rollouts", step=2)
    assert (listed["total"], len(listed["rollouts"])) == (12, 12)
    for line in listed["rollouts"]:
        own = [
            row for row in rows if (row["group"], row["index"]) == (line["group"], line["index"])
        ]
        roles = [role for row in own for role in row["roles"] or ()]
        known = [
            a for row in own for a, role in zip(row["advantages"] or (), row["roles"] or (), strict=False)
            if role == Role.MODEL
        ]  # fmt: skip
        assert line["tokens"] == roles.count(Role.MODEL)
        assert line["advantage"] == (pytest.approx(np.mean(known)) if known else None)
        assert [line[key] for key in ("task", "reward", "ended", "error", "turns")] == [
            *(own[0][key] for key in ("task", "reward", "ended", "error")), 2
        ]  # fmt: skip
        told = ask(
            url, "rollout", run="runs/rollouts", step=2, group=line["group"], index=line["index"]
        )["rollout"]
        sequences = [row for row in own if row["ids"] is not None]
        assert len(told["sequences"]) == len(sequences)
        for shown, row in zip(told["sequences"], sequences, strict=True):
            for key in (
                "ids",
                "turns",
                "roles",
                "versions",
                "sampler",
                "weights",
                "attended",
                "advantages",
                "learner",
            ):
                assert shown[key] == (row[key] or []), key
            assert shown["texts"] is None or len(shown["texts"]) == 5
            assert shown["counts"] == [
                {"role": "prompt", "tokens": 1, "trained": 0, "hidden": 0},
                {"role": "model", "tokens": 3, "trained": 2, "hidden": 0},
                {"role": "tool", "tokens": 1, "trained": 0, "hidden": 1},
            ]
        assert told["parts"] == own[0]["parts"]
        assert told["turns"][0]["message"]["calls"][0]["arguments"] == {"query": "Bergen"}
        assert told["turns"][0]["replies"][0]["content"] == f"Found: 2/{line['index']}"
    cut = ask(
        url, "rollout", run="runs/rollouts", step=2, group="g0", index=1, characters=3, tokens=2
    )["rollout"]
    assert (
        cut["prompt"][0]["content"],
        cut["prompt"][0]["length"],
        cut["sequences"][0]["length"],
    ) == ("2 +", 7, 5)
    assert len(cut["sequences"][0]["ids"]) == 2


def test_rollouts_are_found_by_what_they_are(url: str, ask: Ask) -> None:
    def found(**query: Any) -> list[tuple[int, str, int]]:
        lines = ask(url, "rollouts", run="runs/rollouts", **query)["rollouts"]
        return [(line["step"], line["group"], line["index"]) for line in lines]

    everything = found()
    assert len(everything) == 36
    assert found(task="t1") == [key for key in everything if key[1] == "g1"]
    assert found(ended="length", step=3) == [(3, f"g{g}", 1) for g in range(3)]
    assert found(tool="s_arch") == [
        key for key in everything if key[2] == 0
    ]  # no pattern: search is another tool
    assert found(correct="true") == found(low=0.5) == [key for key in everything if key[2] > 1]
    assert found(correct=0) == found(high=0.5) == [key for key in everything if key[2] == 1]
    assert found(text="FOUND: 2/3") == [(2, f"g{g}", 3) for g in range(3)]
    assert found(text="bergen", group="g2", step=1) == [(1, "g2", index) for index in range(4)]
    assert found(sort="-step", limit=5) == everything[::-1][:5]
    assert [key[2] for key in found(step=1, sort="-advantage", limit=3)] == [3] * 3
    pages = [key for offset in range(0, 36, 7) for key in found(limit=7, offset=offset)]
    assert pages == everything
    first = ask(url, "rollouts", run="runs/rollouts", text="found:", limit=30)
    rest = ask(url, "rollouts", run="runs/rollouts", text="found:", limit=30, offset=first["next"])
    assert (len(first["rollouts"]), len(rest["rollouts"]), rest["next"]) == (30, 6, None)
    assert ask(url, "steps", run="runs/rollouts") == {"steps": [1, 2, 3], "evals": [3], "sets": []}


def test_sampled_attempts_that_share_a_name_are_told_apart(url: str, ask: Ask) -> None:
    listed = ask(url, "rollouts", run="runs/rollouts", heldout="true", step=3)["rollouts"]
    assert [(line["group"], line["nth"]) for line in listed] == [
        (f"e{i}", n) for i in (0, 1) for n in range(3)
    ]
    for line in listed:
        query = {"heldout": 1, "step": 3, "group": line["group"], "index": 0, "nth": line["nth"]}
        told = ask(url, "rollout", run="runs/rollouts", **query)["rollout"]
        assert (
            (told["seconds"], told["correct"])
            == (line["seconds"], line["correct"])
            == (line["nth"], line["correct"])
        )


def test_damaged_rollouts_say_so_and_the_rest_goes_on(
    tmp_path: Path, serve: Serve, ask: Ask
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = write_rollouts(tmp_path / "runs" / "a", steps=4) / "rollouts"
    (parts / "000002" / "part-0.parquet").write_bytes(b"PAR1 and no more")
    pq.write_table(
        pa.table({"step": ["one"], "messages": [1]}), parts / "000003" / "part-0.parquet"
    )
    (parts / "²").mkdir()
    url = serve(tmp_path / "runs")
    assert {line["step"] for line in ask(url, "rollouts", run="runs/a")["rollouts"]} == {1, 4}
    one = {"run": "runs/a", "group": "g0", "index": 1}
    assert "part-0.parquet is damaged" in ask(url, "rollout", code=404, step=2, **one)["error"]
    assert "part-0.parquet is damaged" in ask(url, "rollout", code=404, step=3, **one)["error"]
    assert ask(url, "rollout", step=4, **one)["rollout"]["step"] == 4


def test_runs_are_compared_task_by_task_and_seeds_are_folded(
    url: str, world: Path, ask: Ask
) -> None:
    comma = "runs/killed, with a comma"
    told = ask(url, "compare", runs=f"runs/a,{comma},runs/b,runs/c")
    assert told["ids"] == ["runs/a", comma, "runs/b", "runs/c"]
    assert ["runs/a", "runs/b"] in told["seeds"]
    assert [ids for ids in told["seeds"] if "runs/c" in ids] == [["runs/c"]]
    lr = Run(world / "a").config["learning"]["lr"]
    assert told["differences"]["learning.lr"] == [lr, lr, lr, 3e-4]
    assert not {"name", "seed"} & set(told["differences"])
    pair = next(pair for pair in told["paired"] if pair["b"] == "runs/b")
    expected = pair_runs(Run(world / "a"), Run(world / "b"))
    assert expected is not None
    assert pair == {
        "a": "runs/a",
        "b": "runs/b",
        **expected,
        "interval": list(expected["interval"]),
    }
    assert (pair["only_a"], pair["only_b"], pair["tasks"]) == (0, 10, 40)
    assert pair["interval"] == pytest.approx(list(paired_interval(10, 0, 40)))


def test_the_paired_interval_covers_as_often_as_it_says() -> None:
    """Agresti and Min 2005: Wald's interval of paired proportions with half a task more in each
    cell.
    """
    quantile = NormalDist().inv_cdf(0.975)
    for gained, lost, tasks in ((10, 0, 40), (0, 0, 10), (7, 5, 100), (3, 30, 33)):
        both = (tasks - gained - lost) / 2  # however they are split
        cells = np.array([[both, gained], [lost, both]]) + 0.5
        shares = cells / cells.sum()
        difference = shares[0, 1] - shares[1, 0]
        variance = (shares[0, 1] + shares[1, 0] - difference**2) / cells.sum()
        ends = difference + quantile * np.sqrt(variance) * np.array([-1, 1])
        assert paired_interval(gained, lost, tasks) == pytest.approx(np.clip(ends, -1, 1))
    draws = np.random.default_rng(0).multinomial(60, [0.2, 0.1, 0.7], size=2000)
    intervals = [paired_interval(gained, lost, 60) for gained, lost, _ in draws.tolist()]
    covered = [low <= 0.1 <= high for low, high in intervals]
    assert 0.93 < np.mean(covered) < 0.98


def test_a_journal_has_the_verdicts_of_its_files(url: str, ask: Ask) -> None:
    told = ask(url, "lab", lab="journal")
    assert told["broken"] == []
    assert len(told["hypotheses"]) == 9
    assert sorted(id for phase in told["phases"] for id in phase["ids"]) <= [
        h["id"] for h in told["hypotheses"]
    ]
    for row in told["hypotheses"]:
        stored = json.loads(
            (JOURNAL / "experimental-results" / row["id"] / "verdict.json").read_text()
        )
        assert (row["status"], row["sentence"]) == (stored["status"], stored["sentence"])
        page = ask(url, "hypothesis", lab="journal", id=row["id"])
        assert page["verdict"]["confidence"] == stored["confidence"]
        effects = [abs(c["interval"]["effect"]) for c in stored["comparisons"]]
        assert [abs(e["effect"]) for e in page["verdict"]["effects"]] == pytest.approx(effects)
        for effect, comparison in zip(
            page["verdict"]["effects"], stored["comparisons"], strict=True
        ):
            assert effect["ends"][0] <= effect["effect"] <= effect["ends"][1]
            assert len(effect["seeds"]) == len(comparison["seeds"])
        assert page["curves"]


@pytest.mark.slow
def test_logs_of_other_trainers_appear_with_trainer_and_steps(
    tmp_path: Path, serve: Serve, ask: Ask
) -> None:
    for meta in FORMATS.glob("*/meta.json"):
        shutil.copytree(meta.parent / "raw", tmp_path / "logs" / meta.parent.name)
    url = serve(tmp_path / "logs")
    rows = ask(url, "runs")["rows"]
    for meta in FORMATS.glob("*/meta.json"):
        own = [
            row
            for row in rows
            if Path(row["path"]).is_relative_to(tmp_path / "logs" / meta.parent.name)
        ]
        expected = {
            (run["trainer"], run["last_step"]) for run in json.loads(meta.read_text())["runs"]
        }
        assert {(row["trainer"], row["step"]) for row in own} == expected, meta.parent.name
        for row in own:
            told = ask(url, "run", run=row["id"])
            assert told["report"]["steps"] == len(ask(url, "curves", run=row["id"])["step"])


@pytest.mark.slow
def test_a_dropped_log_gets_the_doctor_s_findings_and_is_not_kept(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for log in (LOG, FORMATS / "json-named-runs" / "raw" / "log.json"):
        told = httpx.post(
            f"{url}/api/doctor", params={"name": log.name}, content=log.read_bytes(), timeout=60
        ).json()
        reports = reports_of(log)
        for run, report in zip(told["runs"], reports, strict=True):
            assert [finding["id"] for finding in run["report"]["findings"]] == [
                f.id for f in report.findings
            ]
            assert run["report"]["trend"] == str(report.trend.kind)
            assert len(run["curves"]["step"]) == report.steps
    for name in ("..", "../../x", "\0", "é" * 300, ".", "C:\\x\\log.txt"):
        answer = httpx.post(
            f"{url}/api/doctor", params={"name": name}, content=b"garbage", timeout=60
        )
        assert answer.status_code == 404
        assert re.match(r"[^/]* holds no metrics that could be recognized", answer.json()["error"])
    assert httpx.post(f"{url}/api/doctor", content=b"", timeout=60).status_code == 404
    monkeypatch.setattr(server, "MAX_UPLOAD_BYTES", 1000)
    large = httpx.post(f"{url}/api/doctor", content=LOG.read_bytes())
    assert (large.status_code, "larger than" in large.json()["error"]) == (413, True)
    assert list(tmp_path.iterdir()) == []


def test_a_step_is_told_of_within_two_seconds(make_run: Callable[..., Path], serve: Serve) -> None:
    file = make_run("a", steps=3) / "metrics.jsonl"
    url, begun, delays = serve(file.parents[1]), list[float](), list[float]()

    def step() -> None:
        begun.append(time.monotonic())
        append_line(file, {"step": 3 + len(begun), "reward/mean": 0.5})

    with httpx.stream("GET", f"{url}/api/live", params={"run": "runs/a"}, timeout=60) as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        lines = events.iter_lines()
        assert next(lines) == "retry: 2000"
        for _ in range(3):
            timer = threading.Timer(1.0, step)
            timer.start()
            assert (
                next(line for line in lines if line.startswith("data: "))
                == 'data: {"run": "runs/a"}'
            )
            timer.join()
            delays.append(time.monotonic() - begun[-1])
    assert min(delays) < 2, delays  # a loaded machine may hold up the others


def test_an_unknown_order_of_no_runs_is_told(tmp_path: Path, serve: Serve, ask: Ask) -> None:
    url = serve(tmp_path / "runs")
    assert "The columns are id, name" in ask(url, "runs", code=400, sort="x")["error"]
    assert (
        ask(url, "runs", sort="learning.lr", filter="seed=1 learning.lr>0", columns="learning.lr")[
            "rows"
        ]
        == []
    )


@pytest.mark.parametrize(
    ("filter", "told"),
    [
        ("learning.lrr>1", "Did you mean learning.lr?"),
        ("lr>1e-5", "Did you mean learning.lr?"),
        ("learning.lr>", "needs a value"),
        ("learning.lr>abc", "abc is no number"),
        ("status>1", "status is no number"),
        ("critical>0 OR warning>0", "There is no OR"),
    ],
)
def test_a_mistake_in_a_filter_is_told(
    filter: str, told: str, serve: Any, ask: Any, make_run: Any
) -> None:
    url = serve(make_run("one").parent)
    assert told in ask(url, "runs", code=400, filter=filter)["error"]
    assert "bogus" in ask(url, "runs", code=400, sort="bogus")["error"]
    assert "bogus" in ask(url, "runs", code=400, group="bogus")["error"]
    kept = ask(
        url, "runs", filter="After > 50%  Status = finished critical>=0 tiny"
    )  # spaces, capitals and percent
    assert [row["name"] for row in kept["rows"]] == []  # nobody judged it: it has no count
    assert ask(url, "runs", filter="After > 50%  Status = finished")["total"] == 1
