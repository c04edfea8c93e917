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

from uptrend.records import ConfigError, Message, Task, TasksetError, tasks_hash
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.taskset import play_script
from uptrend.tasks.validate import ValidationReport, validate
from uptrend.tasksets.musique import embedding
from uptrend.tasksets.musique.play import MusiqueOptions, QuestionPlay
from uptrend.tasksets.musique.rows import HubSource, documents_of, read_sources, to_task
from uptrend.tasksets.musique.taskset import RETRIEVERS, Musique

PARAGRAPHS = ROW["paragraphs"]


def make(**options: Any) -> Any:
    return make_taskset("musique", {"retriever": "golden", **options}, 0)


def numbered(count: int) -> list[dict[str, Any]]:
    return [
        row(id=f"2hop__{i}", question=f"Where was the author of Book {i} born?")
        for i in range(count)
    ]


def figures(report: ValidationReport) -> dict[str, str]:
    return {check.name: check.figure for check in report.checks}


def rewards(taskset: Musique, script: str, count: int = 40) -> list[float]:
    players = {"gold": taskset.gold, "blind": lambda task: next(iter(taskset.corrupted(task)))}
    tasks = taskset.train(count)
    return [
        asyncio.run(play_script(taskset, task, players[script](task)))[1].total for task in tasks
    ]


def test_a_row_becomes_a_task() -> None:
    task = to_task(ROW, "here")
    assert [m.role for m in task.messages] == ["system", "user"]
    assert task.messages[1].content == ROW["question"]
    assert (task.answer, task.family, task.difficulty) == ("Elhaven", "2hop", 2.0)
    assert task.data["accepted"] == ["Elhaven", "Old Elhaven"]
    assert [(d.id, d.supporting) for d in documents_of(task)] == [
        ("0", False),
        ("1", True),
        ("2", False),
        ("3", True),
    ]
    assert json.loads(json.dumps(task.data)) == task.data
    # The question alone says which task it is; other documents change the hash of a set.
    other = to_task(row(paragraphs=PARAGRAPHS[:2]), "x")
    assert (other.id == task.id, tasks_hash([other]) == tasks_hash([task])) == (True, False)
    assert to_task(row(question="Else?"), "x").id != task.id


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"question": None}, "here has no question"),
        ({"answer": ""}, "here has no answer"),
        ({"paragraphs": []}, "here has no paragraphs"),
        ({"paragraphs": ["text"]}, r"paragraphs\[0\] should be an object"),
        ({"paragraphs": [{"idx": 0}]}, r"paragraphs\[0\] has no paragraph_text"),
        ({"paragraphs": 5}, "paragraphs = '5' should be a list"),
        ({"paragraphs": [{**PARAGRAPHS[0], "is_supporting": "false"}]}, "is_supporting is 'false'"),
        ({"paragraphs": [{"idx": 0, "paragraph_text": "x"}]}, "is_supporting is missing"),
        ({"answer": ["Paris"]}, r"answer = \['Paris'\] should be a text"),
        ({"question_decomposition": ["a"]}, "question_decomposition should hold objects"),
        ({"paragraphs": PARAGRAPHS[:1]}, "no paragraph is supporting"),
        ({"paragraphs": [PARAGRAPHS[1]] * 2}, "two paragraphs have the same idx"),
    ],
)
def test_a_row_that_can_not_be_played_says_why(changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(TasksetError, match=wrong):
        to_task(row(**changes), "here")


@pytest.mark.parametrize(
    "parts", [None, [{"question": "Who?"}], [{"question": "#7", "paragraph_support_idx": 1}]]
)
def test_a_row_without_a_whole_decomposition_is_played_by_titles(parts: Any) -> None:
    task, taskset = to_task(row(question_decomposition=parts), "here"), make(returned=1)
    messages, got = asyncio.run(play_script(taskset, task, taskset.gold(task)))
    assert got.total == 1.0
    assert messages[2].calls[0].arguments["query"] in ("Amber Tides", "#7")


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"noise_rate": 1.5}, "noise_rate = 1.5 should be at least 0 and at most 1"),
        ({"returned": 0}, "returned = 0 should be at least 1"),
        ({"longest": -1}, "longest = -1"),
        ({"file": "a", "datasets": "b,c,d"}, "both given"),
        ({"retriever": "lexial"}, "Did you mean lexical"),
        ({"weights": {"f1": -1.0}}, "weights should be 0 or more"),
        ({"file": "none.jsonl"}, "can't be read: No such file"),
        ({"file": "bad.jsonl"}, r"bad\.jsonl:3 is not JSON"),
        ({"file": "unanswerable.jsonl"}, "no question that can be answered"),
        *(
            ({"datasets": wrong}, "should be path,config,split")
            for wrong in ("bdsaglam/musique", "a,b,c,d", ",b,train", "a,b,train[:2", "a,b,")
        ),
    ],
)
def test_options_that_can_not_work(
    options: dict[str, Any], wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text(json.dumps(ROW) + "\n\n{nonsense\n")
    write_rows(Path("unanswerable.jsonl"), [row(answerable=False)])
    with pytest.raises((ConfigError, TasksetError), match=wrong):
        make(**options)


def test_a_file_is_split_shuffled_and_rid_of_repetitions(tmp_path: Path) -> None:
    path = str(
        write_rows(tmp_path / "some.jsonl", [*numbered(20), *numbered(2), row(answerable=False)])
    )
    taskset = make(file=path)
    train, held = taskset.train(100), taskset.heldout(100)
    assert (len(train), len(held), taskset.loaded.rows, taskset.loaded.duplicate_rows) == (
        15,
        5,
        22,
        2,
    )
    assert not {t.id for t in train} & {t.id for t in held}
    assert [t.data["source"] for t in train] != sorted(t.data["source"] for t in train)
    assert len(taskset.train(100, {t.id for t in train[:3]})) == 12
    assert "2 of 22 rows repeat" in taskset.notes[0]
    for split, sizes in (("train", (20, 0)), ("heldout", (0, 20))):
        whole = make(file=path, split=split)
        assert (len(whole.train(100)), len(whole.heldout(100))) == sizes
        assert "20 tasks, fewer than asked for: all are" in whole.notes[1]


def test_noise_keeps_every_supporting_paragraph() -> None:
    kept = {rate: documents_of(to_task(ROW, "x", rate)) for rate in (0.0, 0.5, 1.0)}
    assert ([d.id for d in kept[0.0]], len(kept[1.0])) == (["1", "3"], 4)
    assert kept[0.5] == documents_of(to_task(ROW, "y", 0.5))
    found = [documents_of(task) for task in make(noise_rate=0.3).train(200)]
    noise = sum(not d.supporting for documents in found for d in documents)
    possible = sum(20 - sum(d.supporting for d in documents) for documents in found)
    assert noise / possible == pytest.approx(0.3, abs=0.03)


@pytest.mark.slow
def test_the_invented_world_mixes_hops_and_never_trains_on_what_is_held_out() -> None:
    train, held = make().train(300), make().heldout(100)
    assert (len(train), len(held)) == (300, 100)
    other = Musique(MusiqueOptions(retriever="golden"), 7).train(300)
    assert {t.id for t in held}.isdisjoint(t.id for t in [*train, *other])
    hops = Counter(t.family for t in train)
    assert (sorted(hops), min(hops.values()) > 60) == (["2hop", "3hop", "4hop"], True)
    assert {t.family for t in make(atlas={"hops": [2]}).train(20)} == {"2hop"}


def test_datasets_are_loaded_by_the_hubs_own_library(tmp_path: Path) -> None:
    """A folder is a dataset too: the same call, without a network."""
    assert read_sources("a/b,c,train[:256]; d/e,,validation") == [
        HubSource("a/b", "c", "train[:256]"), HubSource("d/e", "", "validation"),
    ]  # fmt: skip
    pytest.importorskip("datasets")
    folder = tmp_path / "set"
    folder.mkdir()
    write_rows(folder / "train.jsonl", numbered(8))
    taskset = make(
        datasets=f"{folder},default,train[:5]; {folder},default,train[6:7]", split="train"
    )
    assert sorted(t.data["source"] for t in taskset.train(100)) == [
        f"2hop__{i}" for i in (0, 1, 2, 3, 4, 6)
    ]
    with pytest.raises(TasksetError, match=r"default,test can't be loaded: .+"):
        make(datasets=f"{folder},default,test")


def test_the_expert_reaches_the_maximum_with_golden_search_and_a_ceiling_with_another() -> None:
    assert set(rewards(make(), "gold")) == {1.0}
    assert set(rewards(make(scale_by_hops=True), "gold")) == {1.0, 1.5, 2.0}
    assert all(0.9 < total < 1.0 for total in rewards(make(retriever="lexical"), "gold"))
    assert max(rewards(make(), "blind")) < 0.6
    official = make(file=str(OFFICIAL), split="train")
    assert (set(rewards(official, "gold")), max(rewards(official, "blind")) < 0.6) == ({1.0}, True)


def test_the_expert_uses_only_ids_that_it_was_shown() -> None:
    taskset = make(retriever="lexical")
    for task in taskset.train(40):
        messages, _ = asyncio.run(play_script(taskset, task, taskset.gold(task)))
        shown = "".join(m.content for m in messages if m.role == "tool")
        cited = messages[-1].content.partition("<cite>")[2].partition("</cite>")[0].split(", ")
        assert all(f"Document ID: {i}\n" in shown for i in cited)


@pytest.mark.slow
def test_validate_proves_the_world_and_reports_each_ceiling() -> None:
    report = validate(lambda: make(retriever="lexical"), 60, 20, limit=10)
    found = figures(report)
    assert report.passed
    assert {f"ceiling of gold under {name}" for name in RETRIEVERS} <= found.keys()
    assert "1.000 of the maximum on average" in found["ceiling of gold under golden"]
    assert "retrieval_precision 0." in found["ceiling of gold under lexical"]
    assert found["cheaters stay below it"] == "0 of 20 do"


class FirstAnswer(QuestionPlay):
    """Play that takes the first of many answers."""

    async def respond(self, message: Message) -> Any:
        replies = await super().respond(message)
        if found := re.findall("<answer>(.*?)</answer>", message.content):
            self.reply = replace(self.reply, answer=found[0])
        return replies


class FirstAnswers(Musique):
    """Questions whose first answer counts, sorted by hops."""

    def open(self, task: Task, seed: int) -> FirstAnswer:
        return FirstAnswer(**vars(super().open(task, seed)))

    def train(self, count: int, exclude: Any = ()) -> list[Task]:
        return sorted(super().train(count, exclude), key=lambda task: task.difficulty)


def test_validate_sees_a_reader_that_pays_a_cheater_and_tasks_sorted_by_hops() -> None:
    report = validate(lambda: FirstAnswers(MusiqueOptions(retriever="golden"), 0), 90, 5, limit=4)
    failed = [check.name for check in report.checks if not check.passed]
    assert {"cheaters stay below it", "difficulty is shuffled"} <= set(failed)
    assert figures(report)["cheaters stay below it"].startswith("4 of 8 do")


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights",
    [
        {"citation_recall": 0.0},
        {"citation_precision": 0.5},
        {"retrieval_recall": 0.0, "retrieval_precision": 0.0},
    ],
)
def test_validate_proves_any_weights_and_leaves_out_a_retriever_that_is_not_installed(
    weights: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        embedding, "find_spec", lambda name: None if "minilm" in name else found(name)
    )
    report = validate(lambda: make(weights=weights), 20, 5, limit=4)
    assert not [
        check for check in report.checks if not check.passed and "ceiling" not in check.name
    ]
    assert "not measured: " in figures(report)["ceiling of gold under semantic"]
