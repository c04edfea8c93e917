"""What the retrievers find and what they take, on files of MuSiQue's rows; they take turns at every
question.

    python benchmarks/retrieval.py musique_dev_100.jsonl musique_train_100.jsonl
    python benchmarks/retrieval.py musique_dev_100.jsonl --json

Each question is asked (a) as it is, for 2, 4 and 8 documents, and (b) by its decomposition: one
sub-question after another, earlier answers filled in, 2 documents each, all that came together.
Recall is the share of the supporting documents that were found, precision the share of what was
found that is supporting (0 where nothing was). Both are means over questions with a 95% bootstrap
interval. Times are medians with quartiles. "Ready" is from the documents to the first result, which
for searching by meaning includes embedding them; a query comes after that.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from uptrend.records import Task
from uptrend.stats.intervals import bootstrap_mean
from uptrend.tasksets.musique.retrieval import Index, Retriever, RetrieverName, retriever
from uptrend.tasksets.musique.rows import Document, documents_of, read_file, to_tasks

COUNTS = (2, 4, 8)
EACH = 2
"""Documents a sub-question."""


@dataclass
class Measured:
    """What one retriever did on one file."""

    ready_s: list[float] = field(default_factory=list)
    query_s: list[float] = field(default_factory=list)
    recall: dict[str, list[float]] = field(default_factory=dict)
    precision: dict[str, list[float]] = field(default_factory=dict)
    shown: dict[str, list[float]] = field(default_factory=dict)

    def note(self, how: str, found: Sequence[int], documents: Sequence[Document]) -> None:
        """Keep how good one set of results is."""
        right = sum(documents[place].supporting for place in found)
        self.recall.setdefault(how, []).append(right / sum(d.supporting for d in documents))
        self.precision.setdefault(how, []).append(right / len(found) if found else 0.0)
        self.shown.setdefault(how, []).append(len(found))


async def measure(
    tasks: Sequence[Task], retrievers: dict[RetrieverName, Retriever]
) -> dict[RetrieverName, Measured]:
    """Every question with every retriever, another one first each time."""
    results = {name: Measured() for name in retrievers}
    names = list(retrievers)
    for turn, task in enumerate(tasks):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            await measure_question(task, retrievers[name], results[name])
    return results


async def measure_question(task: Task, made: Retriever, into: Measured) -> None:
    """One question with one retriever."""
    documents, question = documents_of(task), task.messages[-1].content
    began = time.perf_counter()
    index = made(documents)
    await index.search(question, COUNTS[0])
    into.ready_s.append(time.perf_counter() - began)
    for count in COUNTS:
        into.note(f"question, {count}", await timed(index, question, count, into), documents)
    steps = [await timed(index, asked, EACH, into) for asked in sub_questions(task)]
    into.note(
        f"decomposition, {EACH} each",
        list(dict.fromkeys(place for found in steps for place in found)),
        documents,
    )


async def timed(index: Index, query: str, count: int, into: Measured) -> list[int]:
    """A search on the clock."""
    began = time.perf_counter()
    found = await index.search(query, count)
    into.query_s.append(time.perf_counter() - began)
    return found


def sub_questions(task: Task) -> list[str]:
    """The steps of the gold decomposition, with `#1` replaced by the first one's answer, and so
    on.
    """
    asked: list[str] = []
    answers: list[str] = []
    for step in task.data["decomposition"]:
        text = step["question"]
        for number, answer in reversed(list(enumerate(answers, 1))):  # #12 before #1
            text = text.replace(f"#{number}", answer)
        asked.append(text)
        answers.append(step["answer"])
    return asked


def interval(values: Sequence[float]) -> dict[str, float]:
    """The mean, and a bootstrap interval that 95% of resampled means are in."""
    array = np.array(values)
    low, high = bootstrap_mean(array)
    return {"mean": float(array.mean()), "low": low, "high": high}


def quartiles(seconds: Sequence[float]) -> dict[str, float]:
    """The median and quartiles in milliseconds."""
    low, median, high = 1000 * np.quantile(seconds, [0.25, 0.5, 0.75])
    return {"median": float(median), "low": float(low), "high": float(high)}


def summary(measured: Measured) -> dict[str, Any]:
    """One retriever's figures."""
    found = {
        how: {
            "recall": interval(measured.recall[how]),
            "precision": interval(measured.precision[how]),
            "documents": float(np.mean(measured.shown[how])),
        }
        for how in measured.recall
    }
    return {
        "ready_ms": quartiles(measured.ready_s),
        "query_ms": quartiles(measured.query_s),
        "found": found,
    }


def show(file: str, questions: int, figures: dict[RetrieverName, dict[str, Any]]) -> None:
    """Two tables that can be pasted."""

    def spread(value: dict[str, float], digits: int) -> str:
        middle = value.get("mean", value.get("median"))
        return f"{middle:.{digits}f} ({value['low']:.{digits}f}–{value['high']:.{digits}f})"

    print(f"\n{file}: {questions} questions\n")
    print("| retriever | ready, ms | a query, ms |\n|---|---|---|")
    for name, figure in figures.items():
        print(f"| {name} | {spread(figure['ready_ms'], 2)} | {spread(figure['query_ms'], 2)} |")
    print("\n| asked | retriever | documents | recall | precision |\n|---|---|---|---|---|")
    for how in next(iter(figures.values()))["found"]:
        for name, figure in figures.items():
            found = figure["found"][how]
            recall, precision = spread(found["recall"], 3), spread(found["precision"], 3)
            print(f"| {how} | {name} | {found['documents']:.1f} | {recall} | {precision} |")


def main() -> None:
    """Read the files, take the figures, show them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--embedder", default="minilm")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    args = parser.parse_args()
    retrievers: dict[RetrieverName, Retriever] = {
        name: retriever(name, args.embedder) for name in get_args(RetrieverName)
    }
    everything: dict[str, Any] = {"threads": os.environ.get("OMP_NUM_THREADS"), "files": {}}
    for number, file in enumerate(args.files):
        tasks = list(to_tasks(read_file(file), 1.0))
        if number == 0:
            asyncio.run(
                measure(tasks[:2], retrievers)
            )  # loads the model and warms what wants warming
        figures = {name: summary(m) for name, m in asyncio.run(measure(tasks, retrievers)).items()}
        everything["files"][str(file)] = {"questions": len(tasks), **figures}
        if not args.json:
            show(file.name, len(tasks), figures)
    if args.json:
        print(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
