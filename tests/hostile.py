"""A run directory by the real writer whose every text attacks whoever shows it: markup, escapes,
formulas, sizes.
"""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from synthetic import evaluation_of, info_of, line_of, metrics_of, rollout_of
from uptrend.records import Ending, Message, Part, Reward, RunDirectory, ToolCall, rollouts_table
from uptrend.records.rollout import Executed

SCRIPT = "<script>window.pwned=1</script>"
IMAGE = '"\'><img src=x onerror="window.pwned=1">'
LINK = "[open](javascript:window.pwned=1) javascript:window.pwned=1 </script><!--"
TERMINAL = "\x1b[31mred\x1b[0m \x1b]8;;https://evil.example\x07link\x1b]8;;\x07"
MARKS = "\u202eright to left\u202c zero\u200b\u200dwidth\ufeff \x01\x08\x7f \u2028\u2029"
FORMULA = "=1+1"
TEXTS = (
    SCRIPT,
    IMAGE,
    LINK,
    TERMINAL,
    MARKS,
    FORMULA,
    "__proto__",
    "constructor",
    "{{7*7}} ${7*7} `x` %s %00 ../..",
)
ALL = " ".join(TEXTS)
# Name for the directory itself, which may hold no slash.
NAME = '<img src=x onerror="window.pwned=1">,@#?& \u202e=1+1'
LONG = 10_000_000
STEPS = 4
# Stands for half a surrogate pair, which only JSON's escapes can hold.
HALF = "HALF"


def hostile_run(path: Path) -> Path:
    """Write the run; its first rollout of step 1 has a message of ten megabytes in one line."""
    info = info_of(path.name, (f"learning.steps={STEPS}",))
    info |= {
        "name": SCRIPT,
        "notes": [ALL],
        "trainer": "uptrend",
        "machine": {"cpu": IMAGE, "__proto__": {"x": 1}},
    }
    info["config"] |= {
        SCRIPT: IMAGE,
        "__proto__": {"polluted": True},
        "constructor": LINK,
        "formula": FORMULA,
    }
    with RunDirectory.create(path, info) as directory:
        directory.event("started", step=0)
        for step in range(1, STEPS + 1):
            odd = {
                SCRIPT: 1.0,
                f"reward/part/{IMAGE}/mean": 0.5,
                "__proto__": 2.0,
                "constructor": 3.0,
                FORMULA: 4.0,
            }
            line = metrics_of(step, STEPS, random.Random(step)) | odd
            directory.step(line, _table([_rollout(step, index) for index in range(4)]))
        held = [
            replace(_rollout(STEPS, 1), group=f"{text}{n}", task=text)
            for n, text in enumerate(TEXTS)
        ]
        label = "other-set"
        counted = line_of(evaluation_of(STEPS, 3, len(TEXTS))) | {
            "by_family": {IMAGE: 0.5},
            "sets": {label: {}},
        }
        directory.evaluation(line_of(evaluation_of(0, 2, 4)), _table(held[:4]))
        directory.evaluation(counted, _table(held), {label: _table(held)})
        directory.event("finding", id=SCRIPT, severity="critical", summary=ALL, step=2)
        directory.event("checkpoint", step=2)
        directory.event("stopped", step=STEPS, stopped_by="observer", reason=ALL)
    # What only another program would write: half a surrogate pair, and times, steps and figures of
    # another type.
    odd_events: tuple[dict[str, Any], ...] = (
        {"event": "stopped", "time": 1.0, "reason": f"{SCRIPT} \ud800"}, {"event": "checkpoint", "step": math.inf},
        {"event": "failed", "time": "soon", "error": f"{IMAGE} \ud800"},
    )  # fmt: skip
    with (path / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in odd_events)
    (path / "findings.json").write_text(json.dumps(_report()))
    found = json.loads((path / "run.json").read_text())
    found["config"]["half"] = "\ud800"
    (path / "run.json").write_text(json.dumps(found))
    return path


def _table(rollouts: list[Any]) -> pa.Table:
    table = rollouts_table(SCRIPT, rollouts)
    messages = table["messages"].to_pylist()
    for message in (message for said in messages for message in said if message["calls"]):
        message["calls"] = message["calls"].replace(HALF, "\\ud800")
    place = table.column_names.index("messages")
    return table.set_column(
        place, table.schema.field(place), pa.array(messages, table.schema.field(place).type)
    )


def _rollout(step: int, index: int) -> Any:
    base, long = (
        rollout_of(step, f"{SCRIPT}{IMAGE}", index, index % 2 == 0, ALL),
        step == 1 and index == 0,
    )
    call = ToolCall(
        SCRIPT, {"__proto__": {"polluted": 1}, "constructor": IMAGE, "half": HALF, IMAGE: [LINK]}
    )
    messages = (
        Message("system", ALL), Message("user", f"{ALL}\n![x](http://evil.example/x.png)"),
        Message("assistant", "A" * LONG if long else ALL, () if long else (call,), problem="" if long else IMAGE),
        Message("tool", ALL), Message("assistant", f"```html\n{SCRIPT}\n```"),
    )  # fmt: skip
    sequence = replace(
        base.sequences[0], turns=np.array([0, 0, 0, 1, 1], np.int32), weights=np.ones(5, np.float32),
        advantages=np.array([math.nan] * 2 + [math.inf, -1.0, 1.0], np.float32),
    )  # fmt: skip
    parts = (
        Part(SCRIPT, 1.0, 0.0, 1.0),
        Part("__proto__", 0.5, 0.0, 1.0),
        Part(IMAGE, math.nan, 0.0, 1.0),
    )
    told = replace(
        base, family=IMAGE, answer=ALL, messages=messages, sequences=(sequence,),
        commands=(Executed(0, ALL, 0.1, 1, stopped=IMAGE, said=ALL),),
        reward=Reward(math.inf if index == 2 else float(index % 2), 0.0, 1.0, True, parts),
    )  # fmt: skip
    if index < 3:
        return told
    return replace(told, sequences=(), reward=None, ended=Ending.TASK_ERROR, error=f"score: {ALL}")


def _report() -> dict[str, Any]:
    finding = {
        "id": SCRIPT, "severity": "critical", "basis": IMAGE, "confidence": "high", "measured": ALL, "summary": ALL,
        "evidence": [{"text": ALL, "value": 1.0, "metric": SCRIPT, "step": 2, "rollout": f"2/{SCRIPT}{IMAGE}/1"}],
        "rivals": [{"id": IMAGE, "tells_apart": ALL}], "experiment": {"claim": ALL, "probe": IMAGE, "arms": {}},
        "fix": {"sentence": ALL, "changes": {"uptrend": {SCRIPT: IMAGE}, "__proto__": {LINK: FORMULA}}},
        "explains": ["constructor"], "symptom_of": None, "page": LINK,
    }  # fmt: skip
    symptom = {
        **finding,
        "id": "constructor",
        "symptom_of": SCRIPT,
        "evidence": [],
        "experiment": None,
        "fix": None,
    }
    return {
        "schema": 2, "source": LINK, "trainer": SCRIPT, "name": SCRIPT, "steps": STEPS, "trend": "flat",
        "headline": SCRIPT, "sentence": ALL, "effect": None, "interval": None, "power": None, "held_out": None,
        "findings": [finding, symptom], "cannot_tell": [{"check": SCRIPT, "needs": IMAGE, "reason": ALL}],
        "missing": [IMAGE], "notes": [ALL], "unknown": [SCRIPT], "runs": [],
    }  # fmt: skip
