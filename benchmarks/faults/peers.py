"""The same logs, read by rldoctor 0.2 and rlwatch 0.5 in their own formats. Runs in an environment
of its own:

    python -m venv peers && peers/bin/pip install rldoctor==0.2.0 rlwatch==0.5.1
    peers/bin/python benchmarks/faults/peers.py DIR       writes peers.json beside each trainer_state.json

rldoctor reads a trainer_state.json as it is. rlwatch watches a trainer: each logged row is handed
to it by the names that its own TRL callback uses, with its default settings. Both are asked again
on the rows up to some steps.
"""

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

LOOKS = (1, 2, 5, 10, 20, 30, 40, 60)
BY_CALLBACK = {
    "entropy": "entropy", "kl_divergence": "kl", "reward_mean": "reward", "reward_std": "reward_std", "loss": "loss",
    "learning_rate": "learning_rate", "grad_norm": "grad_norm",
}  # fmt: skip
"""What rlwatch's TRL callback takes from a row, under its names."""


def by_rldoctor(history: list[dict[str, Any]]) -> list[str]:
    """Detectors that warn, worst first."""
    from rl_doctor.detectors.base import Severity
    from rl_doctor.diagnosis import diagnose
    from rl_doctor.ingest.base import load_run

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trainer_state.json"
        file.write_text(json.dumps({"log_history": history}))
        return [
            f.detector
            for f in diagnose(load_run(str(file))).problems
            if f.severity >= Severity.WARNING
        ]


def by_rlwatch(history: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """(step, detector, severity) of every alert, in order."""
    from rlwatch.config import load_config
    from rlwatch.detectors import DetectorSuite

    suite = DetectorSuite(load_config(None))
    alerts = []
    for row in history:
        metrics = {ours: row[theirs] for ours, theirs in BY_CALLBACK.items() if theirs in row}
        metrics.pop("learning_rate", None)
        if "reward_mean" in metrics:
            alerts += [
                (row["step"], a.detector, str(a.severity))
                for a in suite.check_step(row["step"], **metrics)
            ]
    return alerts


def read(file: Path) -> dict[str, Any]:
    """What both say, and after how many steps each first spoke."""
    history = [
        row
        for row in json.loads(file.read_text())["log_history"]
        if "reward" in row or "eval_reward" in row
    ]
    last = max((row["step"] for row in history), default=0)
    looks = sorted({*(n for n in LOOKS if n < last), last})
    spoke = next(
        (n for n in looks if _tried(by_rldoctor, [r for r in history if r["step"] <= n])), None
    )
    alerts = sorted(by_rlwatch(history), key=lambda a: (a[2] != "critical", a[0]))
    first = min((a[0] for a in alerts), default=None)
    return {
        "rldoctor": {"alarms": _tried(by_rldoctor, history), "at": spoke},
        "rlwatch": {"alarms": list(dict.fromkeys(a[1] for a in alerts)), "at": first},
    }


def _tried(reader: Any, history: list[dict[str, Any]]) -> list[str]:
    try:
        found: list[str] = reader(history)
    except Exception:  # a log that it can't read yields nothing
        return []
    return found


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for state in sorted(Path(sys.argv[1]).glob("*/trainer_state.json")):
        (state.parent / "peers.json").write_text(json.dumps(read(state)))
