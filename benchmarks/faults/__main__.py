"""The fault benchmark's command line."""

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
from benchmarks.faults.case import Case, all_cases, cases_of, sampled_cases
from benchmarks.faults.judge import judge_case
from benchmarks.faults.make import make_run
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.show import show


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument(
        "what", nargs="+", help="sample, full, watched, score DIR, list, or ids of causes to plant"
    )
    parser.add_argument(
        "--to", type=Path, help="where runs go; a folder that is thrown away otherwise"
    )
    parser.add_argument("--only", default="", help="only cases whose name has this in it")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    word, *rest = asked.what
    if word == "list":
        print(
            "\n".join(
                f"{f.id:36} {', '.join(s.name for s in f.strengths)}" for f in FAULTS.values()
            )
        )
    elif word == "score":
        from benchmarks.faults.score import score

        score(Path(rest[0]))
    elif word == "watched":
        from benchmarks.faults.watched import watch_all

        watch_all(asked.to or Path(tempfile.mkdtemp()))
    elif word in ("sample", "full"):
        cases = sampled_cases() if word == "sample" else all_cases()
        run_all([c for c in cases if asked.only in c.name], asked.to or Path(tempfile.mkdtemp()))
    else:
        _plant(asked.what, asked.to or Path(tempfile.mkdtemp()))


def run_all(cases: list[Case], to: Path) -> None:
    """Every case, one after another; those that are there already are left alone."""
    began = time.perf_counter()
    for number, case in enumerate(cases, 1):
        try:
            line = judge_case(make_run(case, to)).line()
        except Exception:  # one case that can't be made must not end the others
            line = "FAILED " + traceback.format_exc(limit=-3).replace("\n", " | ")
        print(
            f"{number:3}/{len(cases)} {time.perf_counter() - began:5.0f} s {case.name:58} {line}",
            flush=True,
        )


def _plant(ids: list[str], to: Path) -> None:
    for id in ids:
        if id not in FAULTS:
            sys.exit(f"{id} can't be planted. Those that can: python -m benchmarks.faults list")
        show(make_run(cases_of(FAULTS[id])[0], to))


if __name__ == "__main__":
    main()
