"""The scoreboard as a page: noticed, first, among three, fixed, blamed; by half and by kind of
input.
"""

import os
import platform
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

from benchmarks.faults.case import all_cases
from benchmarks.faults.judge import is_among
from benchmarks.faults.score import OWN, Reading

SHORT = 5
"""Steps up to which a run is too short for any curve."""
COMMANDS = """```bash
python -m benchmarks.faults full --to .faults/full
python -m benchmarks.faults watched --to .faults/full
PEERS_PYTHON=peers/bin/python python -m benchmarks.faults score .faults/full
```
"""
READ = """\
How to read it. *Own run*: the probes of `uptrend preflight` (but for the positive control) and the run's records, in \
one differential, as `uptrend train` leaves them: the records know which probes passed. *Scalars alone*: the same run \
as TRL would have logged it, read back by the importer. Noticed is any warning or critical finding. A symptom that is \
folded under a cause does not stand first. A fix is right where it changes the config key that was spoiled; where \
code was, the right cause must stand first. Steps until noticed is 0 where preflight spoke. Peers are read \
generously: `benchmarks/faults/mapping.py` says which detectors are taken to name which causes, and a right cause \
counts as a right fix; the column *read as peers are* does the same for ours, where a finding names itself and its \
rivals. *TRL with vLLM*: the same log with what TRL adds where vLLM samples for it (how far sampler and learner \
differ on the same tokens), which neither peer reads. Faults of invariants and probes are trained for 5 steps, from \
which no curve can tell anything: longer runs have rows of their own.

Thresholds may be fitted on the recipe `sums` alone (sums and differences, partial credit, temperature 0.7). The \
reported half is `products` (all operations, graded by distance, dapo, temperature 0.9, other seeds and other shapes \
of a step) and smollm2-135m. Which is which was written down before anything was run.

Healthy runs are short (45 to 60 steps) and many of them slow: a reader that warns of any plateau is right about the \
curve, and is counted as blaming a run in which nothing is wrong. One run that was meant to be healthy was not, and \
was replaced: a mix with a quarter of comparisons, none of which the tiny model ever gets right \
(`reward.component-dead`, rightly).

The reported half is not untouched. A first pass over it showed errors of logic, which were fixed and its cases read \
again: a resume without its step, a scorer's failure taken for a misalignment, an entropy bonus in the test of signs, \
rounding in fp32 called a matter of precision, unfinished rollouts counted as rejected answers. Two rules were \
written with it in view: a penalty that holds the policy (`kl.strangles`) and a bonus that rules the update \
(`sampling.entropy-collapse`, `optimizer.lr-large`). Some plants were made anew as they did not plant what they say \
(entropy, hard tasks, unending rollouts). After the figures of scalars were seen, the check of dead groups was let \
speak from the fifth step on instead of the eighth, on both halves. Later, rules were written with the misses of both \
halves in view. For scalars: rates that nobody uses, penalties read off the loss, a gradient of 0 with live groups, \
suspicions beside an alarm of dead groups or of a constant reward. For records: the weights' length at a resume, \
updates of plain descent, a reward that rises in one step, a held-out figure that falls alone. Their thresholds come \
from the fitting half, from public logs and from what is in use; that they were worth writing was seen on the \
reported half too. What counts as equally right (`also` in the faults) was changed for four causes on the way. \
Figures on tasks and models that nobody has looked at will be lower.
"""


def write_board(readings: dict[str, list[Reading]], watched: list[dict[str, Any]]) -> str:
    """The whole page."""
    own = readings[OWN]
    faults = [r.judged.case["fault"] for r in own if r.judged.fault]
    counted = (
        f"{len(faults)} runs with a planted fault ({len(set(faults))} of the catalogue's causes) and "
        f"{len(own) - len(faults)} healthy ones are counted here, of {len(all_cases())} that `full` makes.\n"
    )
    lines = ["# The fault benchmark's scoreboard\n", _machine(), COMMANDS, counted, READ]
    for half, title in (("reported", "Reported half"), ("fitting", "Fitting half"), ("", "Both")):
        chosen = {
            c: [r for r in rs if half in ("", r.judged.case["half"])] for c, rs in readings.items()
        }
        lines += _table(title, chosen)
    return "\n".join([*lines, *_watched(watched), *_shortcomings(own), ""])


def _machine() -> str:
    packages = ("uptrend", "torch", "transformers", "trl")
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in packages)
    return (
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()} with {os.cpu_count()} cores, one thread a run; Python "
        f"{platform.python_version()}, {versions}; peers rldoctor 0.2.0 and rlwatch 0.5.1.\n"
    )


def _table(title: str, readings: dict[str, list[Reading]]) -> list[str]:
    planted = {c: [r for r in rs if r.judged.fault] for c, rs in readings.items()}
    well = {c: [r for r in rs if not r.judged.fault] for c, rs in readings.items()}
    long = {c: [r for r in rs if r.judged.case["steps"] > SHORT] for c, rs in planted.items()}
    rows: list[tuple[str, Callable[[str], str]]] = [
        ("noticed", lambda c: _share(r.alarms > 0 for r in planted[c])),
        ("right cause first", lambda c: _share(r.first for r in planted[c])),
        ("right cause among three", lambda c: _share(r.among for r in planted[c])),
        ("right fix", lambda c: _share(r.fixed for r in planted[c])),
        (
            f"runs of more than {SHORT} steps: noticed",
            lambda c: _share(r.alarms > 0 for r in long[c]),
        ),
        ("… right cause first", lambda c: _share(r.first for r in long[c])),
        ("… right cause among three", lambda c: _share(r.among for r in long[c])),
        ("steps until noticed: median, most", lambda c: _steps(r.at for r in planted[c])),
        (
            "healthy runs blamed (upper bound at 95%)",
            lambda c: _blamed([r.alarms > 0 for r in well[c]]),
        ),
    ]
    head = [
        "",
        f"## {title}",
        "",
        f"| | {' | '.join(readings)} |",
        f"|---{'|---' * len(readings)}|",
    ]
    return [
        *head,
        *(f"| {name} | {' | '.join(cell(c) for c in readings)} |" for name, cell in rows),
    ]


def _watched(told: list[dict[str, Any]]) -> list[str]:
    """What was found in TRL runs while they were watched."""
    planted, well = [t for t in told if t["fault"]], [t for t in told if not t["fault"]]
    is_first = [bool(t["alarms"]) and t["alarms"][0][0] == t["fault"] for t in planted]
    rows = [
        ("noticed", _share(bool(t["alarms"]) for t in planted)),
        ("right cause first", _share(is_first)),
        (
            "right cause among three",
            _share(t["fault"] in [a[0] for a in t["alarms"][:3]] for t in planted),
        ),
        ("healthy runs blamed (upper bound at 95%)", _blamed([bool(t["alarms"]) for t in well])),
    ]
    off = [t for t, right in zip(planted, is_first, strict=True) if not right] + [
        t for t in well if t["alarms"]
    ]
    listed = [
        f"- {t['name']} ({t['fault']}): {', '.join(a[0] for a in t['alarms']) or 'silent'}"
        for t in off
    ]
    return [
        "",
        "## TRL watched",
        "",
        "| | TRL on tiny |",
        "|---|---|",
        *(f"| {a} | {b} |" for a, b in rows),
        "",
        *listed,
    ]


def _share(flags: Iterable[bool]) -> str:
    found = list(flags)
    return f"{sum(found)} of {len(found)} ({sum(found) / len(found):.0%})" if found else "not run"


def _steps(steps: Iterable[int | None]) -> str:
    found = sorted(s for s in steps if s is not None)
    return f"{found[len(found) // 2]}, {found[-1]}" if found else "-"


def _blamed(flags: list[bool]) -> str:
    return (
        f"{sum(flags)} of {len(flags)} ({upper_bound(sum(flags), len(flags)):.0%})"
        if flags
        else "not run"
    )


def upper_bound(count: int, n: int) -> float:
    """Clopper and Pearson's one-sided upper bound at 95%; without any alarm it is 1 −
    0.05^(1/n).
    """
    from scipy.stats import beta

    return 1.0 if count == n else float(beta.ppf(0.95, count + 1, n - count))


def _shortcomings(own: list[Reading]) -> list[str]:
    """Every case that was not named first, and every healthy run that was blamed."""
    lines = []
    for r in own:
        case, said = r.judged.case, r.judged.full
        if r.judged.fault is None and r.alarms:
            lines.append(f"- {case['case']} ({case['half']}): blamed for {', '.join(said.alarms)}")
        elif r.judged.fault is not None and not r.first:
            told = (
                f"said {', '.join(said.alarms[:3])}"
                if said.alarms
                else f"silent; notes: {', '.join(said.notes)}"
            )
            among = "among three; " if is_among(said, r.judged.fault) else ""
            lines.append(f"- {case['case']} ({case['half']}): {among}{told}")
    return ["", "## What fell short, with full records", "", *(lines or ["Nothing."])]
