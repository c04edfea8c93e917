"""The pages in a real browser: what a person sees, types and clicks, live and exported, friendly
and hostile.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from hostile import hostile_run
from synthetic import info_of, metrics_of, rollout_of, write_run
from uptrend.records import RunDirectory, rollouts_table

pytestmark = [pytest.mark.slow, pytest.mark.needs_package("chromium")]
ROOT = Path(__file__).parents[2]
expect.set_options(timeout=30_000)  # five seconds are too few where the cores are busy
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
Serve = Callable[..., str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium, one per module."""
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS.split())
        yield found
        found.close()


class Visitor:
    """A person at a browser; errors of scripts fail the test when they leave."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 800}, "accept_downloads": True} | options
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.errors: list[str] = []
        self.fetched: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.violations: list[tuple[str, str]] = []
        self.page.on("console", self._hear)
        self.page.on("request", lambda request: self.fetched.append(request.url))

    def _hear(self, message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text or "violates" in message.text:
            self.violations.append((self.page.url, message.text))

    def open(self, address: str, ready: str = "") -> Page:
        """Go to an address and wait until its page is drawn."""
        self.page.goto(address)
        self.page.wait_for_selector(
            f"body[data-ready='{ready}']" if ready else "body:not([data-ready=''])"
        )
        return self.page

    def leave(self) -> None:
        self.context.close()
        assert self.errors == []


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visitor]]:
    """`visit(viewport=...)` opens a browser window of its own."""
    visitors: list[Visitor] = []

    def make(**options: Any) -> Visitor:
        visitors.append(Visitor(browser, **options))
        return visitors[-1]

    yield make
    for visitor in visitors:
        visitor.leave()


@pytest.fixture(scope="module")
def masked_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained runs of a step: one healthy, one whose learner's attention is built from the loss
    mask.
    """
    from benchmarks.faults.fault import unaltered
    from benchmarks.faults.planted.masks import blind

    from uptrend.config import load_config
    from uptrend.runner.prepare import prepare
    from uptrend.runner.runs import start

    folder = tmp_path_factory.mktemp("masks") / "runs"
    for name, alter in (("healthy", unaltered), ("blind", blind)):
        config = load_config({
            "name": name, "model": {"name": "tiny"}, "tasks": {"train": 8}, "eval": {"tasks": 4},
            "sampling": {"groups": 2, "size": 2, "max_tokens": 4}, "learning": {"steps": 2},
        })  # fmt: skip
        start(alter(prepare(config)), folder / name)
    return folder


def sideways(page: Page) -> int:
    """Return how far the page is wider than the window."""
    return int(
        page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    )


def test_the_table_is_filtered_sorted_and_opened_by_keyboard(
    serve: Serve, visit: Any, tmp_path: Path
) -> None:
    for seed, rate in enumerate((1e-6, 3e-5, 1e-4)):
        write_run(tmp_path / "runs" / f"rate-{seed}", overrides=(f"learning.lr={rate}",), seed=seed)
    page = visit().open(f"{serve(tmp_path / 'runs')}/", "runs")
    rows = page.locator("table.runs tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("37.5% → 70.0%")
    page.keyboard.press("/")
    page.keyboard.type("learning.lr>1e-5")
    expect(rows).to_have_count(2)
    assert "filter=learning.lr" in page.url  # the address holds the view
    page.reload()
    expect(page.locator("table.runs tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Run", exact=False).first.click()
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("c")
    page.wait_for_selector("body[data-ready='compare']")
    expect(page.locator("main")).to_contain_text("learning.lr")
    expect(page.locator("main")).to_contain_text("40")  # tasks that both were asked
    page.keyboard.press("r")
    page.wait_for_selector("body[data-ready='runs']")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-ready='run']")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()


def test_the_first_screen_of_a_run_answers_the_first_questions(
    serve: Serve, visit: Any, tmp_path: Path
) -> None:
    write_run(tmp_path / "runs" / "short", steps=30, lift=0.0)
    page = visit().open(f"{serve(tmp_path / 'runs')}/#/run?run=runs/short", "run")
    expect(page.locator(".trend")).to_be_visible()
    for words in ("37.5% → 70.0%", "First finding"):
        box = page.get_by_text(words).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 800
    page.wait_for_selector(".js-plotly-plot")  # the sketch gave way to the real plot
    assert page.locator("[data-plot='reward'] .js-plotly-plot").count() == 1


def test_plots_zoom_together_keep_it_in_the_address_and_are_saved(
    serve: Serve, visit: Any, tmp_path: Path
) -> None:
    write_run(tmp_path / "runs" / "demo", steps=40)
    visitor = visit()
    page = visitor.open(f"{serve(tmp_path / 'runs')}/#/run?run=runs/demo", "run")
    page.wait_for_selector("[data-plot='entropy'] .js-plotly-plot")
    box = page.locator("[data-plot='reward'] .nsewdrag").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 50, steps=3)
    expect(page.locator("[data-plot='entropy'] .hoverlayer")).to_contain_text(
        "entropy"
    )  # one cursor for all
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 52, steps=5)
    page.mouse.up()
    page.wait_for_url("**first=1**")
    page.wait_for_timeout(300)
    assert "first=1" in page.url
    asked = "document.querySelector(\"[data-plot='entropy']\").plot.canvas.layout.xaxis.range"
    low, high = page.evaluate(asked)
    assert 8 < low < 14
    assert 27 < high < 33
    for kind in ("CSV", "PNG", "SVG"):
        with page.expect_download() as saved:
            page.locator("[data-plot='entropy']").get_by_role("button", name=kind).click()
        data = Path(saved.value.path()).read_bytes()
        start = {"CSV": b"line,step,value", "PNG": b"\x89PNG", "SVG": b"<svg"}[kind]
        assert data.startswith(start)
    page.get_by_role("button", name="Log scale").click()
    assert "log=1" in page.url


def test_a_step_is_shown_within_two_seconds(serve: Serve, visit: Any, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[model]\nname = "tiny"\n[tasks]\nname = "arithmetic"\ntrain = 200\n[eval]\ntasks = 16\nevery = 0\n'
        "[sampling]\ngroups = 2\nsize = 4\nmax_tokens = 4\n[learning]\nsteps = 400\n"
    )
    command = [
        sys.executable,
        "-m",
        "uptrend",
        "train",
        str(recipe),
        "--runs",
        str(tmp_path / "runs"),
        "--name",
        "live",
    ]
    training = subprocess.Popen(
        [*command, "--no-preflight"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        lines = tmp_path / "runs" / "live" / "metrics.jsonl"
        until = time.monotonic() + 90
        while not lines.exists() and time.monotonic() < until:
            time.sleep(0.1)
        page = visit().open(f"{serve(tmp_path / 'runs')}/#/run?run=runs/live", "run")
        expect(page.locator(".status.running")).to_be_visible()
        late = []
        for _ in range(5):
            written = lines.read_bytes().count(b"\n")
            begun = time.monotonic()
            while (
                int(page.evaluate("document.body.dataset.step")) < written
                and time.monotonic() - begun < 10
            ):
                page.wait_for_timeout(50)
            late.append(time.monotonic() - begun)
        assert sorted(late)[2] < 2.0, late  # the middle one: a loaded machine may hold up one
    finally:
        training.kill()
        training.wait()
    expect(page.locator(".status.killed")).to_be_visible()


def test_a_wrong_mask_is_seen_at_a_glance(serve: Serve, visit: Any, masked_runs: Path) -> None:
    url = serve(masked_runs)
    found = {}
    for name in ("healthy", "blind"):
        page = visit().open(f"{url}/#/rollouts?run=runs/{name}", "rollouts")
        page.locator(".chip").first.click()
        page.wait_for_selector("body[data-ready='rollout']")
        page.keyboard.press("v")
        expect(page.locator(".tokens .t").first).to_be_visible()
        roles = {
            role: page.locator(f".t[data-role='{role}']").count() for role in ("prompt", "model")
        }
        assert all(roles.values()), roles
        assert page.locator(".t.trained[data-role='model']").count() == roles["model"]
        assert page.locator(".t.trained[data-role='prompt']").count() == 0
        found[name] = (
            page.locator(".tokens .t.blind").count(),
            page.locator(".fault").count(),
            roles["prompt"],
        )
    assert found["healthy"][:2] == (0, 0)
    assert found["blind"] == (
        found["blind"][2],
        1,
        found["blind"][2],
    )  # every token of the question
    for coloring in (
        "loss weight",
        "attention",
        "sampler log-probability",
        "learner − sampler",
        "advantage",
    ):
        page.get_by_role("button", name=coloring, exact=True).click()
        expect(page.get_by_label(f"Tokens by {coloring}")).to_be_visible()
    page.locator(".tokens .t").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tip")).to_contain_text("HIDDEN from attention")


@pytest.mark.parametrize("width", [360, 768, 2560])
def test_pages_fit_every_width_in_both_themes(
    serve: Serve, visit: Any, tmp_path: Path, width: int
) -> None:
    write_run(tmp_path / "runs" / ("a-run-with-a-rather-long-name-" * 3), steps=10)
    write_run(tmp_path / "runs" / "demo", steps=10)
    url = serve(tmp_path / "runs", ROOT / "examples" / "journal")
    scheme = "dark" if width == 768 else "light"
    visitor = visit(viewport={"width": width, "height": 800}, color_scheme=scheme)
    routes = (
        "", "#/run?run=runs/demo", "#/findings?run=runs/demo", "#/rollouts?run=runs/demo", "#/config?run=runs/demo",
        "#/rollout?run=runs/demo&step=10&group=g0&index=0&view=tokens", "#/group?run=runs/demo&step=10&group=g0",
        "#/compare?runs=runs/demo", "#/doctor", "#/lab?lab=journal", "#/hypothesis?lab=journal&id=h02", "#/api",
    )  # fmt: skip
    for route in routes:
        page = visitor.open(f"{url}/{route}")
        page.wait_for_timeout(100)
        assert page.locator(".error").count() == 0, route
        assert sideways(page) <= 0, route
        visitor.page.goto("about:blank")
    page = visitor.open(f"{url}/")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if scheme == "dark" else "rgb(255, 255, 255)")


def test_a_log_is_dropped_on_the_doctor(serve: Serve, visit: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    log = tmp_path / "train.csv"
    log.write_text("step,reward,kl,loss\n" + "".join(f"{i},0.5,{0.001 * i},0\n" for i in range(60)))
    page = visit().open(f"{serve(tmp_path / 'runs')}/#/doctor", "doctor")
    page.set_input_files("#log", str(log))
    expect(page.locator(".trend")).to_contain_text(
        "Flat", timeout=60_000
    )  # its reader is being started
    expect(page.locator("article.finding h2").first).to_contain_text("reward.constant")
    expect(page.locator(".fix").first).to_be_visible()
    remaining = page.locator("article.differential")
    expect(remaining.locator("h2")).to_have_text("What remains")
    expect(remaining.locator("tbody tr").first).to_contain_text("supported")
    expect(remaining.locator(".command").first).to_be_visible()
    page.set_input_files(
        "#log", {"name": "x.bin", "mimeType": "application/octet-stream", "buffer": b"\0\1\2" * 99}
    )
    expect(page.locator(".error")).to_contain_text("x.bin", timeout=60_000)


def test_lines_are_pasted_on_the_doctor(serve: Serve, visit: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    page = visit().open(f"{serve(tmp_path / 'runs')}/#/doctor", "doctor")
    page.fill(
        "#paste",
        "{'loss': 0.0, 'grad_norm': 0.0, 'reward': 0.0, 'frac_reward_zero_std': 1.0,"
        " 'completions/mean_length': 200.0, 'completions/clipped_ratio': 1.0}",
    )
    page.click("#diagnose")
    expect(page.locator("article.finding h2").first).to_contain_text(
        "context.completion-truncated", timeout=60_000
    )
    expect(page.locator(".trend")).to_contain_text("fault shows in 1 point", ignore_case=True)

    # What is pasted stays text, whatever it is.
    page.fill(
        "#paste",
        "{'loss': 0.0, 'grad_norm': 0.4, 'reward': 0.3, '<img src=x onerror=alert(1)>': 0.5}",
    )
    page.press("#paste", "Control+Enter")
    expect(page.locator(".normal")).to_contain_text("A loss of 0 is normal", timeout=60_000)
    expect(page.get_by_text("<img src=x onerror=alert(1)>")).to_be_visible()
    assert page.locator("img").count() == 0
    page.fill("#paste", "nothing of any kind")
    page.click("#diagnose")
    expect(page.locator(".error")).to_contain_text("pasted text holds no metrics", timeout=60_000)


def test_the_exported_file_opens_without_a_server(
    visit: Any, tmp_path: Path, masked_runs: Path
) -> None:
    target = tmp_path / "blind.html"
    done = [
        sys.executable,
        "-m",
        "uptrend",
        "export",
        str(masked_runs / "blind"),
        "--out",
        str(target),
    ]
    subprocess.run(done, check=True, env={**os.environ, "UPTREND_HOME": str(tmp_path / "home")})
    visitor = visit()
    page = visitor.open(target.as_uri(), "run")
    page.wait_for_selector("[data-plot='entropy'] .js-plotly-plot")
    page.get_by_role("link", name="Rollouts").click()
    page.wait_for_selector("body[data-ready='rollouts']")
    page.locator(".chip").first.click()
    page.wait_for_selector("body[data-ready='rollout']")
    page.get_by_role("button", name="Tokens").click()
    expect(page.locator(".fault")).to_be_visible()
    for name in ("Findings", "Config", "Curves"):
        page.goto(target.as_uri())
        page.wait_for_selector("body[data-ready='run']")
        page.get_by_role("navigation", name="Run").get_by_role("link", name=name).click()
        page.wait_for_timeout(200)
        assert page.locator(".error").count() == 0
    assert {url.partition(":")[0] for url in visitor.fetched} <= {"file", "data", "blob"}


def titles_of(page: Page) -> str:
    """Return the titles of the window and of the page, and what its elements say to a reader."""
    said = "[...document.querySelectorAll('[title], [aria-label]')].map((el) => el.title + el.getAttribute('aria-label'))"
    return str(page.title() + page.inner_text("body") + page.evaluate(f"{said}.join(' ')"))


def test_marks_that_turn_the_direction_reorder_nothing(
    serve: Serve, visit: Any, tmp_path: Path
) -> None:
    marks = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200f"
    name, group = "run\u202egnorw", f"g{marks}\u202edaeh"
    hebrew = write_run(tmp_path / "runs" / "\u05d0\u05d1\u05d2", steps=2)
    run = tmp_path / "runs" / name
    with RunDirectory.create(run, info_of(name)) as directory:
        odd = metrics_of(1, 1, random.Random(0)) | {f"reward/part/a{marks}b/mean": 0.5}
        rollouts = [replace(rollout_of(1, group, index), task=f"task{marks}") for index in range(2)]
        directory.step(odd, rollouts_table(name, rollouts))
        directory.event("finding", id=f"x{marks}", severity="warning", summary=marks, step=1)
        directory.event("finished", step=1)
    export = tmp_path / "out.html"
    command = [sys.executable, "-m", "uptrend", "export", str(run), "--out", str(export)]
    subprocess.run(command, check=True, env={**os.environ, "UPTREND_HOME": str(tmp_path / "home")})
    url, visitor = serve(tmp_path / "runs"), visit()
    of_run = f"run={quote(f'runs/{name}')}"
    rollout = f"{of_run}&step=1&group={quote(group)}&index="
    routes = [
        "", f"#/compare?runs={quote(f'runs/{name}')}", f"#/group?{rollout}", f"#/nothing{marks}",
        *(f"#/rollout?{rollout}0&view={view}" for view in ("talk", "tokens")), f"#/rollout?{rollout}{quote(marks)}",
        *(f"#/{page}?{of_run}" for page in ("run", "rollouts", "findings", "config")),
        f"#/rollouts?{of_run}&task={quote(marks)}", f"#/run?{of_run}&add={quote(f'reward/part/a{marks}b/mean')}",
    ]  # fmt: skip
    for address in (*(f"{url}/{route}" for route in routes), export.as_uri()):
        visitor.page.goto("about:blank")
        page = visitor.open(address)
        page.wait_for_timeout(300)
        assert not set(marks) & set(titles_of(page)), address
        shown = page.inner_text("main")
        assert "U+202E" in shown or "nothing" in address or "step=1" in address, address
    assert "⟨U+202E⟩" in visitor.open(f"{url}/#/run?{of_run}", "run").title()
    # Letters that are written from right to left stay where they are: the heading's first word is
    # left of the others.
    page = visitor.open(f"{url}/#/run?run={quote(f'runs/{hebrew.name}')}", "run")
    places = page.evaluate(
        "[...document.querySelectorAll('h1, h1 ~ *')].map((el) => el.getBoundingClientRect().left)"
    )
    assert places == sorted(places)
    assert (
        page.evaluate("getComputedStyle(document.querySelector('h1 bdi')).unicodeBidi") == "isolate"
    )


def test_no_page_breaks_its_own_policy(
    serve: Serve, visit: Any, tmp_path: Path, masked_runs: Path
) -> None:
    log = tmp_path / "runs" / "log" / "train.csv"
    log.parent.mkdir(parents=True)
    log.write_text("step,reward,kl,loss\n" + "".join(f"{i},0.5,{0.001 * i},0\n" for i in range(60)))
    write_run(tmp_path / "runs" / "a", steps=12)
    export = tmp_path / "out.html"
    command = [
        sys.executable,
        "-m",
        "uptrend",
        "export",
        str(masked_runs / "blind"),
        "--out",
        str(export),
    ]
    subprocess.run(command, check=True, env={**os.environ, "UPTREND_HOME": str(tmp_path / "home")})
    closed = serve(tmp_path / "runs", token="secret")
    url = serve(masked_runs, tmp_path / "runs", ROOT / "examples" / "journal")
    blind = "run=runs/blind"
    visitor = visit()
    rollouts = visitor.open(f"{url}/", "runs").evaluate(
        "fetch('/api/rollouts?run=runs/blind').then((r) => r.json()).then((told) => told.rollouts)"
    )
    one = f"{blind}&step={rollouts[0]['step']}&group={quote(rollouts[0]['group'])}&index=0"
    pages = [
        f"{closed}/", f"{closed}/?token=secret", *(f"{url}/{path}" for path in (
            "", "#/compare?runs=runs/blind,runs/healthy", f"#/run?{blind}", f"#/findings?{blind}", f"#/config?{blind}",
            "#/findings?run=runs~2/log", f"#/rollouts?{blind}", f"#/rollout?{one}&view=talk",
            f"#/rollout?{one}&view=tokens", f"#/group?{one}", "#/doctor", "#/labs", "#/lab?lab=journal",
            "#/hypothesis?lab=journal&id=h02", "#/api", "#/nothing", "#/run?run=nothing", "nothing",
            "api/openapi.json", "api/runs", "api/nothing", "static/core.js", "static/nothing", "favicon.ico",
            "static/icon.svg",
        )),
        *(f"{export.as_uri()}{route}" for route in ("", "#/rollouts?run=blind", "#/findings?run=blind", "#/nothing")),
    ]  # fmt: skip
    for address in pages:
        visitor.page.goto("about:blank")
        visitor.page.goto(address)
        visitor.page.wait_for_timeout(1000)  # plots take the place of their sketches
        for button in ("CSV", "PNG", "SVG"):
            for saved in visitor.page.get_by_role("button", name=button).all()[:1]:
                saved.dispatch_event("click")
        visitor.page.keyboard.press("?")
        visitor.page.wait_for_timeout(200)
    assert visitor.violations == []


# Ends of an axis: shares that hardly move, large and tiny numbers, one value alone.
TICK_RANGES = [
    *[(1 - 10.0**-n, 1.0) for n in range(1, 9)], *[(0.5, 0.5 + 10.0**-n) for n in range(1, 7)], (0.0, 1.0), (0.2, 0.2),
    (0.9995, 0.9999), (1e-9, 3e-9), (-0.3, -0.299), (0.0, 3e-5), (0.123456, 0.123459), (1000.1, 1000.4), (1e6, 1e6 + 3),
    (-5.0, 7e5), (1e-12, 1.0), (3.0, 4.0), (1e12, 1.0001e12), (0.0, 120.0), (0.98, 1.02),
]  # fmt: skip


def test_no_axis_repeats_a_label(serve: Serve, visit: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    page = visit().open(f"{serve(tmp_path / 'runs')}/", "runs")
    labels = page.evaluate(
        """async (ranges) => {
            const main = document.getElementById("main"), shown = [];
            await U.plotly();
            const texts = (el, kind) => [...el.querySelectorAll(kind)].map((tick) => tick.textContent);
            for (const [low, high] of ranges) for (const unit of ["share", ""]) for (const log of [false, true]) {
                for (const x of [[1, 2], [1e6, 1e6 + 2], [3, 3]]) {
                    const told = {title: "t", unit, log, lines: [{name: "a", x, y: [low, high]}]};
                    const plot = U.plot(U.board(), () => told);
                    main.replaceChildren(plot.el);
                    await plot.draw();
                    const about = JSON.stringify([low, high, unit, log, x]);
                    for (const axis of ["x", "y"]) shown.push([about + axis, texts(plot.canvas, `.${axis}tick text`)]);
                    plot.canvas.replaceChildren();  // of nothing above 0 a sketch with logarithms draws nothing
                    sketch(told, plot.canvas);
                    const svg = texts(plot.canvas, "svg text");
                    const heights = plot.canvas.querySelectorAll("svg line").length;
                    shown.push([about + " sketch", svg.slice(0, heights)], [about + " sketch x", svg.slice(heights)]);
                }
            }
            return shown;
        }""",
        TICK_RANGES,
    )
    assert len(labels) > 1000
    repeated = {about: ticks for about, ticks in labels if len(set(ticks)) < len(ticks)}
    assert repeated == {}
    assert sum(any("%" in tick for tick in ticks) for _, ticks in labels) > 300


def test_saved_tables_name_no_folder_of_the_machine(
    serve: Serve, visit: Any, tmp_path: Path
) -> None:
    secret = tmp_path / "ann" / "models" / "qwen"
    write_run(tmp_path / "runs" / "a", steps=2, overrides=(f"model.name={secret}",))
    page = visit().open(f"{serve(tmp_path / 'runs')}/#/config?run=runs/a&all=1", "config")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save config as CSV").click()
    text = Path(saved.value.path()).read_text("utf-8")
    assert "model.name,…/qwen" in text
    assert "ann" not in text
    assert "finished,1/2 and a/b" in page.evaluate("U.csv([['finished', '1/2 and a/b']])")


def test_hostile_rollouts_stay_text(serve: Serve, visit: Any, tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "runs" / "hostile")
    url = serve(tmp_path / "runs")
    export = tmp_path / "hostile.html"
    command = [sys.executable, "-m", "uptrend", "export", str(run), "--out", str(export)]
    subprocess.run(command, check=True, env={**os.environ, "UPTREND_HOME": str(tmp_path / "home")})
    visitor = visit()
    dialogs: list[str] = []
    visitor.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    listed = visitor.open(f"{url}/", "runs").evaluate("fetch('/api/runs').then((r) => r.json())")
    id = listed["rows"][0]["id"]
    routes = [
        "",
        *(f"#/{name}?run={id}" for name in ("run", "findings", "rollouts", "config", "compare")),
    ]
    answer = visitor.page.evaluate(
        "(id) => fetch('/api/rollouts?run=' + encodeURIComponent(id)).then((r) => r.json())", id
    )
    for row in answer["rollouts"]:
        named = f"run={id}&step={row['step']}&index={row['index']}&group="
        for view in ("talk", "tokens"):
            link = visitor.page.evaluate(
                "([n, g, v]) => '#/rollout?' + n + encodeURIComponent(g) + '&view=' + v",
                [named, row["group"], view],
            )
            routes.append(link)
    shown = ""
    for base in (f"{url}/", export.as_uri()):
        for route in routes if base.startswith("http") else ["", *routes[-4:]]:
            if not base.startswith("http"):
                route = route.replace("runs/hostile", "hostile")
            visitor.page.goto("about:blank")
            page = visitor.open(base + route)
            shown += page.inner_text("main")
            tags = "script, img, iframe, object, embed, form, [onerror], [onclick], [onload], a[href^='javascript']"
            assert page.locator(f"main :is({tags})").count() == 0, route
            assert page.evaluate("window.pwned === undefined"), route
    assert dialogs == []
    assert "<script>" in shown  # as text
    assert "\u202e" not in shown
    assert "\x1b" not in shown
    assert {urlsplit(asked).hostname for asked in visitor.fetched if asked.startswith("http")} == {
        "127.0.0.1"
    }
