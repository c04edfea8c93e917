"""A run has one report, dated by its step: whoever shows findings shows the same ones."""

import base64
import gzip
import json
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect, sync_playwright

import uptrend
from uptrend.cli.main import main
from uptrend.records import Run, Stop
from uptrend.records.lines import read_lines
from uptrend.training.observer import StepRecord

pytestmark = pytest.mark.slow

# Products that the tiny model does not know, so that only the rest of the reward varies.
ROWS = [
    {"prompt": f"Calculate: {a} * {b} = ", "answer": str(a * b)}
    for a in range(21, 57)
    for b in range(23, 59, 4)
]
OVERRIDES = [
    "tasks.chat=false",
    "sampling.max_tokens=8",
    "sampling.groups=4",
    "eval.tasks=8",
    "eval.every=0",
]
LAST_STEP = 200
Shown = list[tuple[str, str, str | None]]  # id, severity, and the cause that a symptom belongs to


class BrokenUntilNoticed:
    """A reward that is constant from the first step until the live doctor speaks, and varies from
    then on.

    As an observer it waits for the doctor now and then, and ends the run when the constant part is
    a third of it.
    """

    def __init__(self) -> None:
        self.is_constant = False
        self.noticed_at = 0

    def __call__(self, completion: str, answer: str, **_: Any) -> dict[str, float]:
        text = completion.strip()
        rest = 0.2 * zlib.crc32(text.encode()) / 2**32
        return {
            "correct": float(text == answer and not self.is_constant),
            "rest": 0.0 if self.is_constant else rest,
        }

    def before(self, run: Run) -> None:
        self.path, self.is_constant = run.path, True

    def step(self, record: StepRecord) -> Stop | None:
        if not self.noticed_at and any(
            e["event"] == "finding" for e in read_lines(self.path / "events.jsonl")
        ):
            self.is_constant, self.noticed_at = False, record.step
        if not self.noticed_at and record.step and record.step % 4 == 0:
            until = time.monotonic() + 120
            while (Run(self.path).report or {"step": 0})["step"] < record.step:
                assert time.monotonic() < until, "the live doctor did not come to this step"
                time.sleep(0.05)
        return (
            Stop("long enough") if self.noticed_at and record.step >= 3 * self.noticed_at else None
        )

    def after(self, run: Run) -> None: ...


class Trained(NamedTuple):
    """A run that was warned of early, with what the terminal showed."""

    path: Path
    out: str
    err: str
    warned: list[str]
    """Causes that the live doctor named."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    out, err, reward = StringIO(), StringIO(), BrokenUntilNoticed()
    with redirect_stdout(out), redirect_stderr(err):
        run = uptrend.train(
            model="tiny", data=ROWS, reward=reward, bounds=(0, 1.2), steps=LAST_STEP, observers=[reward],
            overrides=OVERRIDES, name="warned", runs=tmp_path_factory.mktemp("one") / "runs",
        )  # fmt: skip
    assert 0 < reward.noticed_at < run.last_step < LAST_STEP
    warned = [event["id"] for event in run.events if event["event"] == "finding"]
    return Trained(run.path, out.getvalue(), err.getvalue(), warned)


@pytest.fixture
def typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """`typed("runs", "show", path)` gives what a command prints."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        assert not end.value.code
        return capsys.readouterr().out

    return run


class EndAtOnce:
    """Ends a run after its first evaluation, before any step."""

    def before(self, run: Run) -> None: ...

    def step(self, record: StepRecord) -> Stop | None:  # noqa: ARG002 (an observer's signature)
        return Stop("enough", by="user")

    def after(self, run: Run) -> None: ...


def always_paid(completion: str) -> float:  # noqa: ARG001 (a reward function's signature)
    return 1.0


def of_table(findings: list[dict[str, Any]]) -> Shown:
    return [(f["id"], f["severity"], f["symptom_of"]) for f in findings]


def of_page(findings: list[dict[str, Any]]) -> Shown:
    """Findings as the dashboard has them: symptoms under their causes."""
    causes: Shown = [(f["id"], f["severity"], None) for f in findings]
    return causes + [(s["id"], s["severity"], f["id"]) for f in findings for s in f["explains"]]


def of_text(text: str) -> Shown:
    """Causes as a terminal has them, alarms and notes alike."""
    return [
        (id, severity, None)
        for id, severity in re.findall(r"\d+\. (\S+)\s+(\w+), \w+ confidence", text)
    ]


def of_run(url: str, ask: Callable[..., Any]) -> dict[str, Any]:
    """The run's page, when the doctor has looked at it."""
    answer: dict[str, Any] = ask(url, "run", run="runs/warned")
    assert answer["report"] is not None
    return answer


def test_every_surface_shows_the_same_report(
    trained: Trained,
    typed: Callable[..., str],
    serve: Callable[..., str],
    ask: Callable[..., Any],
    tmp_path: Path,
) -> None:
    path, run = trained.path, Run(trained.path)
    step = run.last_step
    written = json.loads((path / "findings.json").read_text())
    expected, causes = (
        of_table(written["findings"]),
        [f for f in of_table(written["findings"]) if f[2] is None],
    )
    shown: dict[str, tuple[Any, Shown]] = {"findings.json": (written["step"], expected)}

    report = uptrend.diagnose(path)
    tops = [(f.id, str(f.severity), None) for f in report.findings]
    shown["uptrend.diagnose"] = (
        report.step,
        tops + [(s.id, str(s.severity), f.id) for f in report.findings for s in f.explains],
    )
    assert run.report is not None
    shown["Run.report"] = run.report["step"], of_table(run.report["findings"])
    doctor = json.loads(typed("doctor", path, "--format", "json", "--no-save"))
    shown["uptrend doctor --format json"] = doctor["step"], of_table(doctor["findings"])
    described = json.loads(typed("runs", "show", path, "--json"))["doctor"]
    shown["uptrend runs show --json"] = (
        described["step"], [(f["id"], f["severity"], None) for f in described["findings"]] + expected[len(causes) :]
    )  # fmt: skip
    url = serve(path.parent)
    page = of_run(url, ask)
    shown["dashboard, the run's page"] = page["report"]["step"], of_page(page["report"]["findings"])
    typed("export", path, "--out", tmp_path / "run.html", "--rollouts", "0")
    (packed,) = re.findall(
        r'<script[^>]*id="data"[^>]*>([^<]+)<', (tmp_path / "run.html").read_text()
    )
    exported = json.loads(gzip.decompress(base64.b64decode(packed)))[
        f"run?{urlencode({'run': 'warned'})}"
    ]["report"]
    shown["uptrend export"] = exported["step"], of_page(exported["findings"])
    assert shown == dict.fromkeys(shown, (step, expected))

    dated = f"after step {step}"
    texts = {
        "uptrend doctor": typed("doctor", path, "--no-save"),
        "uptrend doctor --format markdown": typed(
            "doctor", path, "--no-save", "--format", "markdown"
        ),
        "uptrend runs show": typed("runs", "show", path),
        "the end of uptrend train": next(
            line for line in trained.out.splitlines() if line.startswith("Doctor")
        ),
        "Run in a notebook": run._repr_html_(),
        "Report in a notebook": report._repr_html_(),
    }
    assert {name for name, text in texts.items() if dated not in text} == set()
    assert of_text(texts["uptrend doctor"]) == causes
    (row,) = ask(url, "runs")["rows"]
    counted = {
        kind: sum(cause[1] == kind for cause in causes) for kind in ("critical", "warning", "note")
    }
    assert (row["of_step"], row["findings"]) == (step, counted)


def test_what_is_withdrawn_is_nowhere_a_finding_of_now(
    trained: Trained, serve: Callable[..., str], ask: Callable[..., Any]
) -> None:
    run = Run(trained.path)
    assert run.report is not None
    alarms = {f["id"] for f in run.report["findings"] if f["severity"] != "note"}
    gone = [id for id in trained.warned if id not in alarms]
    assert gone, f"warned of {trained.warned}, still there {sorted(alarms)}"
    withdrawn = {
        event["id"]: event["step"] for event in run.events if event["event"] == "withdrawn"
    }
    assert list(withdrawn) == gone
    assert all(0 < step <= run.last_step for step in withdrawn.values())
    for id, step in withdrawn.items():
        assert f"doctor, after step {step}: {id} no longer asks for a change." in trained.out
    markers = ask(serve(trained.path.parent), "run", run="runs/warned")["markers"]
    assert [(m["id"], m["step"]) for m in markers if m["kind"] == "withdrawn"] == list(
        withdrawn.items()
    )


def test_a_task_of_one_turn_gets_no_advice_on_turns_and_no_keys_of_others(
    trained: Trained, typed: Callable[..., str], serve: Callable[..., str], ask: Callable[..., Any]
) -> None:
    assert "reward.never-computed" not in trained.err + trained.out
    assert "warning" not in trained.err
    texts = [
        typed("doctor", trained.path, "--no-save", "--format", kind)
        for kind in ("text", "markdown", "html")
    ]
    texts.append(typed("doctor", trained.path, "--no-save", "--verbose"))
    for text in texts:
        assert "max_turns" not in text
        assert not re.search(r"(TRL|verifiers|prime-rl|verl):", text)
    page = of_run(serve(trained.path.parent), ask)
    assert {
        one["trainer"] for finding in page["report"]["findings"] for one in finding["settings"]
    } <= {"Uptrend"}


@pytest.mark.needs_package("chromium")
def test_the_page_shows_the_report_with_its_date(
    trained: Trained, serve: Callable[..., str]
) -> None:
    run, url = Run(trained.path), serve(trained.path.parent)
    assert run.report is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{url}/#/run?run=runs/warned")
        expect(page.locator(".cards")).to_contain_text(f"After step {run.last_step}")
        expect(page.locator("body")).to_contain_text(f"{trained.warned[0]} withdrawn at ")
        page.goto(f"{url}/#/findings?run=runs/warned")
        expect(page.locator("article.finding")).to_have_count(
            sum(f["symptom_of"] is None for f in run.report["findings"])
        )
        assert "max_turns" not in page.content()
        browser.close()


def test_before_the_first_step_the_report_is_that_of_the_preflight(
    tmp_path: Path, typed: Callable[..., str], serve: Callable[..., str], ask: Callable[..., Any]
) -> None:
    run = uptrend.train(
        model="tiny", data=ROWS, reward=always_paid, bounds=(0, 1), steps=2, overrides=OVERRIDES, name="ended",
        runs=tmp_path / "runs", progress=False, allows=["reward.gold-rejected"], observers=[EndAtOnce()],
    )  # fmt: skip
    assert run.last_step == 0
    (found,) = [event["findings"] for event in run.events if event["event"] == "preflight"]
    first = found[0]
    report = uptrend.diagnose(run.path)
    assert (report.step, [f.id for f in report.findings][:1]) == (0, [first["id"]])
    assert report.findings[0].summary == first["summary"]
    text = typed("doctor", run.path)
    assert "before the first step" in text
    assert first["summary"] in " ".join(text.split())
    url = serve(run.path.parent)
    page = ask(url, "run", run="runs/ended")["report"]
    assert (page["step"], of_page(page["findings"])) == (
        0,
        of_table(json.loads((run.path / "findings.json").read_text())["findings"]),
    )
