"""The blind splits: every case names causes of the catalogue; one pair is run, scored and told
inert or not.
"""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("trl")

from benchmarks.faults.blind.case import Job, blind_cases, fault
from benchmarks.faults.blind.make import _run, jobs_of
from benchmarks.faults.blind.measure import count
from benchmarks.faults.blind.score import Scored, score_all, tables

from uptrend.doctor.catalogue import CATALOGUE


@pytest.mark.parametrize("split", ["a", "b"])
def test_cases_name_causes(split: str) -> None:
    cases = blind_cases(split)
    assert len({case.name for case in cases}) == len(cases)
    assert all(case.right <= CATALOGUE.keys() for case in cases)
    assert (
        sum(case.cause is None for case in cases)
        >= 20
        <= sum(case.cause is not None for case in cases)
    )
    assert all(len(jobs_of(case)) == (3 if case.cause else 2) for case in cases)


ROWS = [
    {"q": f"Calculate: {a} - {b} = ", "answer": str(a - b)} for a in range(12) for b in range(12)
]


def negatives(job: Job) -> None:
    def right(prompt: str, completion: str, answer: str) -> float:
        del prompt
        said = completion.strip()
        return float(said == answer and not (job.planted and said.startswith("-")))

    short = {"sampling.max_tokens": 5, "sampling.groups": 8, "eval.every": 0, "tasks.chat": False}
    job.train(
        model="tiny", data=ROWS, prompt="q", reward=right, bounds=[0, 1], steps=2, overrides=short
    )


def silent(job: Job) -> None:
    negatives(Job(job.seed, False, job.folder))


def test_a_fault_and_one_that_does_nothing(tmp_path: Path) -> None:
    for write in (negatives, silent):
        case = fault("reward.gold-rejected")(write)
        for planted in (True, False):
            folder = tmp_path / f"{case.name}~{'planted' if planted else 'twin'}~0"
            folder.mkdir()
            _run("t", case, 0, planted, folder, asks=True)
    scored = {(s.case, s.kind): s for s in score_all(tmp_path)}
    found: Scored = scored["negatives", "planted"]
    assert (found.error, found.inert, scored["silent", "planted"].inert) == ("", False, True)
    assert found.preflight is not None
    assert found.preflight[0].is_right
    assert "1 faults in 1 runs" in tables(list(scored.values()))
    counted = count([json.loads(json.dumps(asdict(found)))], None)["causes"]
    assert counted["reward.gold-rejected", "records"]["planted"] == 1
