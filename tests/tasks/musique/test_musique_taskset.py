"""The taskset: files, hub datasets and the invented world; splits, noise, experts and ceilings."""

import asyncio
import importlib.util
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from questions import OFFICIAL, ROW, row, write_rows

from uptrend.config import load_config
from uptrend.records import ConfigError, Message, Task, TasksetError, tasks_hash
from uptrend.tasks.musique import embedding, expert
from uptrend.tasks.musique.play import QuestionPlay
from uptrend.tasks.musique.rows import HubSource, documents_of, read_sources, to_task
from uptrend.tasks.musique.taskset import RETRIEVERS, Musique, MusiqueOptions
from uptrend.tasks.pool import heldout, make_taskset, pool
from uptrend.tasks.taskset import play_script
from uptrend.tasks.validate import Requirement, validate


def make(**options: Any) -> Musique:
    return Musique(MusiqueOptions(**{"retriever": "golden", **options}), 0)


def numbered(count: int) -> list[dict[str, Any]]:
    return [row(id=f"2hop__{i}", question=f"Where was the author of Book {i} born?") for i in range(count)]


def test_a_row_becomes_a_task() -> None:
    task = to_task(ROW, "here")
    assert [m.role for m in task.messages] == ["system", "user"]
    assert task.messages[1].content == ROW["question"]
    assert (task.answer, task.family, task.difficulty) == ("Elhaven", "2hop", 2.0)
    assert task.data["accepted"] == ["Elhaven", "Old Elhaven"]
    assert [(d.id, d.supporting) for d in documents_of(task)] == [("0", False), ("1", True), ("2", False), ("3", True)]
    json.dumps(task.data)


def test_the_question_alone_says_which_task_it_is() -> None:
    other = row(answer="Renstad", paragraphs=ROW["paragraphs"][:2])
    assert to_task(other, "x").id == to_task(ROW, "x").id
    assert to_task(row(question="Else?"), "x").id != to_task(ROW, "x").id


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (row(question=None), "here has no question"),
        (row(answer=""), "here has no answer"),
        (row(paragraphs=[]), "here has no paragraphs"),
        (row(paragraphs=["text"]), r"paragraphs\[0\] should be an object"),
        (row(paragraphs=[{"idx": 0}]), r"paragraphs\[0\] has no paragraph_text"),
        (row(paragraphs=5), "paragraphs = '5' should be a list"),
        (
            row(paragraphs=[{**ROW["paragraphs"][0], "is_supporting": "false"}]),
            "is_supporting is 'false'; it should be",
        ),
        (row(paragraphs=[{"idx": 0, "paragraph_text": "x"}]), "is_supporting is missing"),
        (row(answer=["Paris"]), r"answer = \['Paris'\] should be a text"),
        (row(answer_aliases="NYC"), "answer_aliases = 'NYC' should be a list"),
        (row(question_decomposition=["a"]), "question_decomposition should hold objects"),
        (row(paragraphs=ROW["paragraphs"][:1]), "no paragraph is supporting .*Mark at least one"),
        (row(paragraphs=[ROW["paragraphs"][1]] * 2), "two paragraphs have the same idx"),
    ],
)
def test_a_row_that_can_not_be_played_says_why(given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(TasksetError, match=wrong):
        to_task(given, "here")


def test_a_row_without_a_whole_decomposition_is_played_by_titles() -> None:
    for given in (row(question_decomposition=None), row(question_decomposition=[{"question": "Who?"}]), row(answer=0)):
        task = to_task({**given, "answer": given["answer"]}, "here")
        taskset = make(retriever="golden", returned=1)
        messages, got = asyncio.run(play_script(taskset, task, taskset.gold(task)))
        assert got.total == 1.0
        assert messages[2].calls[0].arguments["query"] in ("Amber Tides", "Who wrote Amber Tides?")


def test_a_file_says_where_it_is_wrong(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps(ROW) + "\n\n{nonsense\n")
    with pytest.raises(TasksetError, match=r"bad\.jsonl:3 is not JSON"):
        make(file=str(bad))
    with pytest.raises(TasksetError, match="can't be read: No such file"):
        make(file=str(tmp_path / "none.jsonl"))
    with pytest.raises(TasksetError, match="no question that can be answered"):
        make(file=str(write_rows(tmp_path / "unanswerable.jsonl", [row(answerable=False)])))


def test_a_file_is_split_shuffled_and_rid_of_repetitions(tmp_path: Path) -> None:
    path = str(write_rows(tmp_path / "some.jsonl", [*numbered(20), *numbered(2), row(answerable=False)]))
    taskset = make(file=path, duplicates=0.5)
    train, held = taskset.train(100), taskset.heldout(100)
    assert (len(train), len(held), taskset.rows, taskset.duplicate_rows) == (15, 5, 22, 2)
    assert not {t.id for t in train} & {t.id for t in held}
    assert any("2 of 22 rows repeat" in note for note in taskset.notes)
    assert [t.data["source"] for t in train] != sorted(t.data["source"] for t in train)
    assert len(make(file=path, split="train").train(100)) == 20
    assert len(make(file=path, split="heldout").heldout(100)) == 20
    whole = make(file=path, split="heldout")
    assert (whole.train(100), len(whole.heldout(100))) == ([], 20)
    assert any("20 tasks, fewer than asked for: all are held out" in note for note in whole.notes)
    excluded = {t.id for t in train[:3]}
    assert len(taskset.train(100, excluded)) == 12


def test_noise_keeps_every_supporting_paragraph() -> None:
    kept = {rate: documents_of(to_task(ROW, "x", rate)) for rate in (0.0, 0.5, 1.0)}
    assert [d.id for d in kept[0.0]] == ["1", "3"]
    assert len(kept[1.0]) == 4
    assert kept[0.5] == documents_of(to_task(ROW, "y", 0.5))
    tasks = make(noise_rate=0.3).train(200)
    noise = [d for t in tasks for d in documents_of(t) if not d.supporting]
    possible = sum(20 - len([d for d in documents_of(t) if d.supporting]) for t in tasks)
    assert len(noise) / possible == pytest.approx(0.3, abs=0.03)


@pytest.mark.slow
def test_the_invented_world_mixes_hops_and_never_trains_on_what_is_held_out() -> None:
    taskset = make()
    train, held = taskset.train(300), taskset.heldout(100)
    assert (len(train), len(held)) == (300, 100)
    assert not {t.id for t in train} & {t.id for t in held}
    other = Musique(MusiqueOptions(retriever="golden"), 7)
    assert not {t.id for t in other.train(300)} & {t.id for t in held}
    assert set(Counter(t.family for t in train)) == {"2hop", "3hop", "4hop"}
    assert min(Counter(t.family for t in train).values()) > 60
    assert {t.family for t in make(atlas=_atlas(hops=(2,))).train(20)} == {"2hop"}


def _atlas(**options: Any) -> Any:
    from uptrend.tasks.musique.atlas import AtlasOptions

    return AtlasOptions(**options)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"noise_rate": 1.5}, "noise_rate = 1.5 should be at least 0 and at most 1"),
        ({"returned": 0}, "returned = 0 should be at least 1"),
        ({"longest": -1}, "longest = -1"),
        ({"file": "a", "datasets": "b,c,d"}, "both given"),
        ({"retriever": "lexial"}, "not one of golden, lexical, semantic, hybrid.* Did you mean lexical"),
        ({"weights": {"f1": -1.0}}, "weights should be 0 or more"),
        ({"weights": {"em": 1.0}}, "tasks.weights.em is not a known key"),
        ({"noise": 0.5}, "tasks.noise is not a known key. Did you mean noise_rate"),
    ],
)
def test_options_that_can_not_work(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        make_taskset("musique", options, 0)


def test_dataset_strings() -> None:
    assert read_sources("bdsaglam/musique,answerable,train[:256]; a/b,,validation") == [
        HubSource("bdsaglam/musique", "answerable", "train[:256]"),
        HubSource("a/b", "", "validation"),
    ]
    for wrong in ("bdsaglam/musique", "a,b,c,d", ",b,train", "a,b,train[:2", "a,b,"):
        with pytest.raises(ConfigError, match="should be path,config,split"):
            read_sources(wrong)


def test_datasets_are_loaded_by_the_hubs_own_library(tmp_path: Path) -> None:
    """A folder is a dataset too: the same call, without a network."""
    pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    write_rows(tmp_path / "set" / "train.jsonl", numbered(8))
    taskset = make(
        datasets=f"{tmp_path / 'set'},default,train[:5]; {tmp_path / 'set'},default,train[6:7]", split="train"
    )
    asked = sorted(t.messages[1].content for t in taskset.train(100))
    assert asked == [f"Where was the author of Book {i} born?" for i in (0, 1, 2, 3, 4, 6)]
    with pytest.raises(TasksetError, match=r"default,test can't be loaded: .+"):
        make(datasets=f"{tmp_path / 'set'},default,test")


def test_a_source_that_nothing_trains_on_is_held_out_whole(tmp_path: Path) -> None:
    train, dev = (str(write_rows(tmp_path / f"{n}.jsonl", numbered(12)[cut])) for n, cut in
                  (("train", slice(0, 8)), ("dev", slice(8, 12))))  # fmt: skip
    recipe = {
        "tasks": {"name": "musique", "file": train, "split": "train"},
        "eval": {"name": "musique", "file": dev},
        "sampling": {"groups": 2},
    }
    config = load_config(recipe)
    held = heldout(config)
    assert len(held.tasks) == 4
    assert len(pool(config, held).stages[0].tasks) == 8
    same = load_config(
        {**recipe, "tasks": {"name": "musique", "file": train}, "eval": {"name": "musique", "file": train}}
    )
    assert len(heldout(same).tasks) == 2


def rewards(taskset: Musique, script: str, count: int = 40) -> list[float]:
    async def one(task: Any) -> float:
        made = taskset.gold(task) if script == "gold" else expert.blind(task)
        return (await play_script(taskset, task, made))[1].total

    return [asyncio.run(one(task)) for task in taskset.train(count)]


def test_the_expert_reaches_the_maximum_with_golden_search_and_a_ceiling_with_another() -> None:
    assert set(rewards(make(), "gold")) == {1.0}
    assert set(rewards(make(scale_by_hops=True), "gold")) == {1.0, 1.5, 2.0}
    lexical = rewards(make(retriever="lexical"), "gold")
    assert all(0.9 < total < 1.0 for total in lexical)
    assert max(rewards(make(), "blind")) < 0.6


def test_the_expert_uses_only_ids_that_it_was_shown() -> None:
    taskset = make(retriever="lexical")
    for task in taskset.train(40):
        messages, _ = asyncio.run(play_script(taskset, task, taskset.gold(task)))
        shown = "".join(m.content for m in messages if m.role == "tool")
        cited = messages[-1].content.partition("<cite>")[2].partition("</cite>")[0].split(", ")
        assert all(f"Document ID: {i}\n" in shown for i in cited)
        assert all(c.name == "retrieve_documents" for m in messages for c in m.calls)


def checks_by_name(report: Any) -> dict[str, Requirement]:
    return {check.name: check for check in report.checks}


@pytest.mark.slow
def test_validate_proves_the_world_and_reports_each_ceiling() -> None:
    report = validate(lambda: make(retriever="lexical"), 60, 20, limit=10)
    assert report.passed
    found = checks_by_name(report)
    assert all(f"ceiling of gold under {name}" in found for name in RETRIEVERS)
    assert "1.000 of the maximum on average" in found["ceiling of gold under golden"].figure
    assert "retrieval_precision 0." in found["ceiling of gold under lexical"].figure
    assert found["cheaters stay below it"].figure == "0 of 20 do"


class FirstAnswer(QuestionPlay):
    """Play that takes the first of many answers."""

    async def respond(self, message: Message) -> Any:
        replies = await super().respond(message)
        if found := re.findall("<answer>(.*?)</answer>", message.content):
            self.reply = replace(self.reply, answer=found[0])
        return replies


class FirstAnswers(Musique):
    """Questions whose first answer counts."""

    def open(self, task: Task, seed: int) -> FirstAnswer:
        return FirstAnswer(**vars(super().open(task, seed)))


def test_a_reader_that_takes_the_first_of_many_answers_pays_a_cheater() -> None:
    report = validate(lambda: FirstAnswers(MusiqueOptions(retriever="golden"), 0), 20, 5, limit=4)
    found = checks_by_name(report)["cheaters stay below it"]
    assert (found.passed, found.figure.partition(":")[0]) == (False, "4 of 8 do")


def test_official_rows_are_played_like_invented_ones() -> None:
    taskset = make(file=str(OFFICIAL), split="train")
    assert sorted(task.family for task in taskset.train(9)) == ["2hop", "3hop", "4hop"]
    assert set(rewards(taskset, "gold")) == {1.0}
    assert max(rewards(taskset, "blind")) < 0.6


@pytest.mark.slow
def test_validate_sees_tasks_sorted_by_hops() -> None:
    class Sorted(Musique):
        def train(self, count: int, exclude: Any = ()) -> list[Any]:
            return sorted(super().train(count, exclude), key=lambda task: task.difficulty)

    report = validate(lambda: Sorted(MusiqueOptions(retriever="golden"), 0), 90, 20, limit=5)
    assert not checks_by_name(report)["difficulty is shuffled"].passed


def test_a_retriever_that_is_not_installed_leaves_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        embedding, "find_spec", lambda name: None if "minilm" in name else importlib.util.find_spec(name)
    )
    report = validate(lambda: make(retriever="golden"), 20, 5, limit=3)
    assert report.passed
    figure = checks_by_name(report)["ceiling of gold under semantic"].figure
    assert "not measured: " in figure
    assert "pip install 'uptrend[retrieval]'" in figure


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights",
    [{"citation_recall": 0.0}, {"citation_precision": 0.5}, {"retrieval_recall": 0.0, "retrieval_precision": 0.0}],
)
def test_validate_proves_any_weights(weights: dict[str, float]) -> None:
    report = validate(lambda: make_taskset("musique", {"retriever": "golden", "weights": weights}, 0), 20, 5, limit=4)
    wrong = [check for check in report.checks if not check.passed and "ceiling" not in check.name]
    assert wrong == []


def test_documents_that_change_change_the_hash(tmp_path: Path) -> None:
    rows = numbered(4)
    before = tasks_hash(make(file=str(write_rows(tmp_path / "a.jsonl", rows)), split="train").train(9))
    rows[2]["paragraphs"][0]["paragraph_text"] = "Another text."
    after = tasks_hash(make(file=str(write_rows(tmp_path / "b.jsonl", rows)), split="train").train(9))
    assert before != after
