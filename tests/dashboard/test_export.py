"""One run as a single file: whole, offline, and harmless."""

import base64
import gzip
import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from hostile import NAME, STEPS, hostile_run
from synthetic import info_of, metrics_of, rollout_of, write_run
from uptrend.cli.main import main
from uptrend.present.formatting import visible
from uptrend.records import Message, Run, RunDirectory, rollouts_table
from uptrend.records.schema import SCHEMA_VERSION

Attributes = list[tuple[str, str | None]]


class Page(HTMLParser):
    """Tags of a page with their attributes, and the text of each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.inside: dict[int, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", {}))

    def handle_data(self, data: str) -> None:
        at = len(self.tags) - 1
        self.inside[at] = self.inside.get(at, "") + data

    def texts(self, tag: str) -> list[tuple[dict[str, str], str]]:
        return [
            (had, self.inside.get(at, ""))
            for at, (name, had) in enumerate(self.tags)
            if name == tag
        ]

    @property
    def data(self) -> dict[str, Any]:
        (packed,) = (text for had, text in self.texts("script") if had.get("id") == "data")
        answers: dict[str, Any] = json.loads(
            gzip.decompress(base64.b64decode(packed)), parse_constant=pytest.fail
        )
        return answers


def export(run: Path, target: Path, *options: str, code: int = 0) -> Page | None:
    """Write the file by the command line; None where it must fail."""
    with pytest.raises(SystemExit) as end:
        main(["export", str(run), "--out", str(target), *options])
    assert (end.value.code or 0) == code
    return Page(target.read_text("utf-8")) if code == 0 else None


@pytest.mark.slow
def test_the_file_has_all_of_a_run_and_fetches_nothing(
    tmp_path: Path, make_run: Callable[..., Path]
) -> None:
    run = make_run("a", steps=12)
    page = export(run, tmp_path / "a.html")
    assert page is not None
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a.html"]
    assert not (run / "findings.json").exists()
    for tag, had in page.tags:
        assert tag not in ("link", "base", "iframe", "img", "object", "embed", "form"), tag
        assert not {"src", "href", "action", "srcset"} & set(had), tag
        assert not [key for key in had if key.startswith("on")], tag
    (policy,) = (
        had["content"]
        for tag, had in page.tags
        if had.get("http-equiv") == "Content-Security-Policy"
    )
    rules = {rule.split()[0]: set(rule.split()[1:]) for rule in policy.split(";")}
    assert rules["default-src"] == {"'none'"}
    assert "connect-src" not in rules
    assert "unsafe" not in policy
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        inline = [text for had, text in page.texts(tag) if had.get("id") != "data"]
        digests = [
            base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inline
        ]
        assert inline
        assert {f"'sha256-{digest}'" for digest in digests} <= rules[rule]
    data, asked = page.data, urlencode({"run": "a"})
    assert data[f"run?{asked}"]["report"]["steps"] == 12
    assert data[f"run?{asked}"]["row"]["after"]["accuracy"] == pytest.approx(0.7)
    curve = data[f"curves?{asked}"]["curves"]["reward/mean"]["mean"]
    assert curve == pytest.approx([line["reward/mean"] for line in Run(run).metric_lines], rel=1e-5)
    rollouts = [answer for key, answer in data.items() if key.startswith("rollout?")]
    assert (
        len(rollouts) == len(data["rollouts"]) == 9 + 2 * 40
    )  # nine steps spread over the run, first and last evaluation
    kept = data[f"steps?{asked}"]
    assert (kept["steps"][0], kept["steps"][-1], kept["evals"]) == (1, 12, [0, 12])


def test_no_more_rollouts_than_asked_for_are_taken_along(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    with RunDirectory.create(run, info_of("a", ("learning.steps=1",))) as directory:
        rollouts = [rollout_of(1, group, index) for group in ("g0", "g1") for index in range(12)]
        directory.step(metrics_of(1, 1, random.Random(0)), rollouts_table("a", rollouts))
        directory.event("finished", step=1)
    evidence = [
        {"text": "", "value": None, "metric": None, "step": 1, "rollout": f"1/g1/{n}"}
        for n in (3, 1)
    ]
    finding = {
        "id": "x",
        "severity": "note",
        "explains": [],
        "symptom_of": None,
        "fix": None,
        "experiment": None,
    }
    report = {
        "schema": 2,
        "steps": 1,
        "trend": "flat",
        "findings": [{**finding, "evidence": evidence}],
    }
    (run / "findings.json").write_text(json.dumps(report))
    for most, groups in ((0, set()), (8, {"g1"}), (20, {"g0", "g1"}), (200, {"g0", "g1"})):
        page = export(run, tmp_path / "a.html", "--rollouts", str(most))
        assert page is not None
        kept = [key for key in page.data if key.startswith("rollout?")]
        assert len(kept) == len(page.data["rollouts"]) == min(most, 24)
        assert {line["group"] for line in page.data["rollouts"]} == groups


def test_a_hostile_run_stays_data(tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    page = export(hostile_run(tmp_path / "runs" / NAME), target, "--rollouts", "30")
    assert page is not None
    text = target.read_text("utf-8")
    assert "<script>window.pwned" not in text
    assert "<img src=x" not in text
    titles = page.texts("title")
    assert titles[0][1].startswith(visible(NAME))
    assert {line["step"] for line in page.data["rollouts"] if not line["heldout"]} == set(
        range(1, STEPS + 1)
    )


@pytest.mark.parametrize("fault", ["missing", "newer", "torn", "linked"])
def test_a_run_that_can_not_be_read_writes_nothing(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "a"
    if fault != "missing":
        write_run(run, steps=2)
    if fault == "newer":
        (run / "run.json").write_text(json.dumps({**info_of("a"), "schema": SCHEMA_VERSION + 1}))
    if fault == "torn":
        (run / "run.json").write_text("{")
    if fault == "linked":
        (run / "metrics.jsonl").replace(tmp_path / "metrics.jsonl")
        (run / "metrics.jsonl").symlink_to(tmp_path / "metrics.jsonl")
    (tmp_path / "out").mkdir()
    export(run, tmp_path / "out" / "a.html", code=2)
    told = capsys.readouterr().err
    expected = {
        "missing": "There is no run at",
        "newer": "newer Uptrend",
        "torn": "not JSON",
        "linked": "is a link",
    }
    assert expected[fault] in told
    assert "Traceback" not in told
    assert list((tmp_path / "out").iterdir()) == []


def test_the_file_names_no_folder_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home of ann"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    run = home / "projects" / "runs" / "a"
    trace = f'File "{home}/projects/reward.py", line 3; see file:///opt/share/doc and C:\\Users\\ann\\x.py'
    info = info_of("a", ("learning.steps=1",))
    info["config"]["model"]["name"] = str(home / "models" / "my model")
    info["config"]["tasks"]["file"] = "/mnt/share/tasks.jsonl"
    info |= {
        "notes": [f"Read from {home}/projects/runs."],
        "machine": {"cpu": "a cpu", "scratch": "/scratch/ann/x"},
    }
    said = (
        Message(
            "user",
            "Is 1/2 more than 3/8, and/or https://example.org/a/b, in /usr/share/dict/words?",
        ),
        Message("assistant", f"ls {home}/projects and /mnt/share/tasks.jsonl"),
    )
    with RunDirectory.create(run, info) as directory:
        rollouts = [
            replace(rollout_of(1, "g", index), messages=said, error=f"score: {trace}")
            for index in range(2)
        ]
        directory.step(metrics_of(1, 1, random.Random(0)), rollouts_table("a", rollouts))
        directory.event(
            "finding", id="x", severity="warning", summary=f"see {run}/metrics.jsonl", step=1
        )
        directory.event(
            "stopped",
            step=1,
            stopped_by="user",
            reason=f"disk of {home} and /var/lib/thing is full",
        )
    evidence = [{"text": f"in {run}", "value": None, "metric": None, "step": 1, "rollout": "1/g/0"}]
    fix = {"sentence": f"Move {home}/projects/reward.py to /srv/data/reward.py.", "changes": {}}
    finding = {
        "id": "reward.constant",
        "severity": "critical",
        "explains": [],
        "symptom_of": None,
        "fix": fix,
    }
    finding |= {
        "experiment": {
            "claim": f"{run} learns",
            "arms": {"a": {"tasks.file": "/mnt/share/b.jsonl"}},
        }
    }
    report = {
        "schema": 2,
        "steps": 1,
        "trend": "flat",
        "sentence": f"{run} is flat.",
        "missing": [f"{run}/evals.jsonl"],
    }
    (run / "findings.json").write_text(
        json.dumps({**report, "findings": [{**finding, "evidence": evidence}]})
    )
    page = export(run, tmp_path / "a.html")
    assert page is not None
    text = json.dumps(page.data, ensure_ascii=False)
    for secret in (
        str(tmp_path),
        str(home),
        "of ann",
        "Users",
        "/mnt/",
        "/scratch",
        "/opt/",
        "/var/lib",
        "/srv/",
        "file:",
    ):
        assert secret not in text, text[max(0, text.find(secret) - 200) :][:400]
    for kept in (
        "…/reward.py",
        "…/tasks.jsonl",
        "…/my model",
        "1/2 more than 3/8, and/or https://example.org/a/b",
    ):
        assert kept in text
    assert "in /usr/share/dict/words?" in text  # what a task asked is shown to the letter
    assert "--from '…/a#reward.constant'" in text
