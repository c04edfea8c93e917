"""What keeps others out, and what a record can't do to whoever looks at it."""

import hashlib
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hostile import LONG, NAME, SCRIPT, hostile_run
from synthetic import info_of, rollout_of, write_run
from uptrend.cli.main import main
from uptrend.dashboard.api import ENDPOINTS
from uptrend.dashboard.server import RESPONSE_HEADERS, SCRIPT_NAMES, STATIC_FOLDER, open_socket
from uptrend.records import RunDirectory, rollouts_table
from uptrend.records.errors import install_command

Ask = Callable[..., Any]
Serve = Callable[..., str]
SECRET, HIDDEN = "xyzzy-secret", "hidden"
"""A word of files outside the folder, and the group of its rollouts."""


def send(
    url: str, path: str = "/api/status", method: str = "GET", **headers: str
) -> http.client.HTTPResponse:
    """Send a request as it stands, without a client that makes it proper; `_` in a header is
    `-`.
    """
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    connection.putrequest(method, path, skip_host="host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    return connection.getresponse()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, serve_once: Serve) -> str:
    return serve_once(write_run(tmp_path_factory.mktemp("safe") / "runs" / "a", steps=3).parent)


def test_only_our_own_names_are_answered_to(url: str) -> None:
    port = url.rpartition(":")[2]
    for host in (
        "localhost",
        f"localhost:{port}",
        f"LOCALHOST:{port}",
        f"127.0.0.1:{port}",
        f"[::1]:{port}",
        "[::1]",
    ):
        assert send(url, host=host).status == 200, host
    foreign = (
        "evil.example", f"evil.example:{port}", "EVIL.EXAMPLE", "localhost.evil.example", "evil.example#localhost",
        f"localhost@evil.example:{port}", f"evil.example@localhost:{port}", "localhost/x", "10.0.0.1", f"[::2]:{port}",
        "[", "[::1", "", "localhost:80:80",
    )  # fmt: skip
    for host in foreign:
        answer = send(url, host=host)
        assert answer.status in (400, 421), host  # 400 where the HTTP parser gives up first
        assert SECRET not in answer.read().decode()
    assert "--name" in json.loads(send(url, host="evil.example").read())["error"]


def test_pages_of_other_sites_get_no_answer(url: str) -> None:
    for path in ("/api/status", "/api/runs", "/static/core.js", "/api/openapi.json", "/"):
        for origin in (
            "https://evil.example",
            "null",
            "http://localhost.evil.example",
            "http://127.0.0.1:1",
            "[",
            "",
        ):
            assert send(url, path, origin=origin).status == 403, (path, origin)
    assert send(url, origin=url).status == 200
    for site in ("cross-site", "same-site", "anything"):
        assert send(url, sec_fetch_site=site).status == 403
        assert (
            send(url, "/", sec_fetch_site=site).status == 200
        )  # somebody followed a link to the page
        assert send(url, "/api/doctor", "POST", sec_fetch_site=site).status == 403
        assert send(url, "/", "POST", sec_fetch_site=site).status == 403
    for site in ("same-origin", "none"):
        assert send(url, sec_fetch_site=site).status == 200


def test_another_address_needs_the_token(make_run: Callable[..., Path], serve: Serve) -> None:
    token = "a-token_of.many~letters"
    url = serve(make_run("a", steps=2).parent, token=token)
    for path in ("/", "/api/status", "/static/core.js", "/api/live", f"/api/status?token={token}"):
        assert send(url, path).status == 401, path
    assert send(url, authorization=f"Bearer {token}").status == 200
    cookie_name = f"uptrend-token-{url.rpartition(':')[2]}"
    wrong: list[dict[str, str]] = [
        {"authorization": f"Bearer {token}x"}, {"authorization": "Bearer "}, {"cookie": f"{cookie_name}=x"},
        {"authorization": "Bearer \xff"}, {"cookie": f"{cookie_name}="}, {"cookie": "=; ;"},
    ]  # fmt: skip
    for headers in wrong:
        assert send(url, **headers).status == 401
    assert send(url, "/?token=wrong").status == 401
    opened = send(url, f"/?token={token}")
    assert (opened.status, opened.getheader("location")) == (303, "/")
    cookie = opened.getheader("set-cookie") or ""
    assert cookie.startswith(f"{cookie_name}=")
    assert {"httponly", "samesite=strict"} <= set(cookie.lower().split("; "))
    # Another server on this host, whatever its port, may have left cookies with odd names.
    kept = f"odd/name@1=x; {cookie.partition(';')[0]}; b=2"
    page = send(url, "/", cookie=kept)
    assert page.status == 200
    assert send(url, cookie=kept).status == 200
    assert token not in page.read().decode()
    assert token not in send(url, "/api/status", cookie=kept).read().decode()
    address = f"10.1.2.3:{url.rpartition(':')[2]}"
    assert (
        send(url, host=address, cookie=kept).status == 200
    )  # nobody can point an address elsewhere
    assert send(url, host="evil.example", cookie=kept).status == 421


def test_nothing_but_reading_is_allowed(url: str) -> None:
    for path in (
        "/",
        "/static/core.js",
        "/api/openapi.json",
        *(f"/api/{path}" for path in (*ENDPOINTS, "live", "doctor")),
    ):
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            if (path, method) != ("/api/doctor", "POST"):
                assert send(url, path, method).status == 405, (path, method)
    assert send(url, "/api/doctor").status == 405
    assert send(url, "/", "HEAD").status == send(url, "/api/runs", "HEAD").status == 200


def test_every_answer_has_the_headers(url: str) -> None:
    asked: list[tuple[str, str, dict[str, str]]] = [
        ("/", "GET", {}), ("/static/core.js", "GET", {}), ("/static/plotly.js", "GET", {}), ("/none", "GET", {}),
        ("/api/run?run=x", "GET", {}), ("/api/runs?limit=x", "GET", {}), ("/", "POST", {}), ("/api/live", "GET", {}),
        ("/", "GET", {"host": "evil.example"}), ("/", "GET", {"origin": "null"}),
    ]  # fmt: skip
    for path, method, headers in asked:
        answer = send(url, path, method, **headers)
        for name in RESPONSE_HEADERS:
            assert answer.getheader(name), (path, name)
        rules = dict(
            rule.strip().split(" ", 1)
            for rule in answer.getheader("Content-Security-Policy", "").split(";")
        )
        assert rules["script-src"] == "'self'"
        assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
        assert "unsafe" not in str(rules)


def test_names_that_climb_out_find_nothing(url: str) -> None:
    long = "a" * 20_000
    names = (
        "..", "../server.py", "%2e%2e/server.py", "..%2fserver.py", "%2e%2e%2fserver.py", "..%5cserver.py", "%00",
        "/etc/passwd", "%2fetc%2fpasswd", ".", "core.js/..%2f..%2fapi.py", "%c0%ae%c0%ae/server.py", "core.js%00", long,
    )  # fmt: skip
    for name in names:
        answer = send(url, f"/static/{name}")
        told = answer.read().decode()
        assert answer.status in (400, 404), name
        assert "import asyncio" not in told
        assert len(told) < 1000
        for path, key in (
            ("run", "run"),
            ("curves", "run"),
            ("lab", "lab"),
            ("rollouts", "run"),
            ("compare", "runs"),
        ):
            assert send(url, f"/api/{path}?{key}={name}").status in (400, 404), (path, name)
    for id in ("runs/../../etc", "runs/a/../a", "runs/a/.", "/runs/a"):
        assert httpx.get(f"{url}/api/run", params={"run": id}).status_code == 404, id


def secret_run(path: Path) -> Path:
    """A run whose every file has the secret."""
    with RunDirectory.create(path, info_of(path.name) | {"notes": [SECRET]}) as directory:
        directory.event("stopped", step=1, stopped_by="user", reason=SECRET)
    shutil.copytree(write_run(path.parent / "model", steps=2), path, dirs_exist_ok=True)
    shutil.rmtree(path.parent / "model")
    rollout = rollout_of(1, HIDDEN, 0, True, SECRET)
    table = rollouts_table(path.name, [rollout])
    with RunDirectory.reopen(path) as directory:
        directory.rollouts(1, table)
        directory.rollouts(2, table)
    for name in ("000000", "000001", "000002"):
        shutil.copy(
            path / "rollouts" / "000001" / "part-0.parquet", path / "evals" / f"{name}.parquet"
        )
    for name in ("metrics.jsonl", "evals.jsonl"):
        lines = [
            json.loads(line) | {SECRET: 1.0} for line in (path / name).read_text().splitlines()
        ]
        (path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "findings.json").write_text(
        json.dumps({"schema": 2, "steps": 2, "trend": SECRET, "findings": []})
    )
    write_tokenizer(path / "checkpoints" / "step-000001" / "model")
    return path


def write_tokenizer(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pieces = {f"{SECRET}{number}": number for number in range(8)}
    model = {"type": "WordLevel", "vocab": pieces, "unk_token": f"{SECRET}0"}
    (folder / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "model": model})
    )
    return folder


def everything(url: str, *labs: str) -> str:
    """All answers on all runs and rollouts in a row; the doctor's reports are waited for."""
    said, client = list[str](), httpx.Client(base_url=f"{url}/api", timeout=60)
    ids = [row["id"] for row in client.get("runs").json()["rows"]]

    def get(path: str, **query: Any) -> dict[str, Any]:
        response = client.get(path, params=query)
        said.append(response.text)
        answer = json.loads(response.content.decode(), parse_constant=pytest.fail)
        assert response.status_code == 200 or answer["error"], (path, query)
        return dict(answer)

    for path in ("status", "runs", "labs", "openapi.json"):
        get(path)
    for id in ids:
        until = time.monotonic() + 120
        while get("run", run=id).get("report", True) is None and time.monotonic() < until:
            time.sleep(0.1)
        for path in ("curves", "steps"):
            get(path, run=id)
        get("compare", runs=f"{ids[0]},{id}")
        for query in ({}, {"heldout": 1}, {"heldout": 1, "label": "other-set"}, {"text": "5"}):
            for line in get("rollouts", run=id, **query).get("rollouts", [])[::7]:
                name = {
                    "step": line["step"],
                    "group": line["group"],
                    "index": line["index"],
                    "nth": line["nth"],
                }
                get(
                    "rollout",
                    run=id,
                    **name,
                    **{key: value for key, value in query.items() if key != "text"},
                )
        for step in range(3):
            get("rollouts", run=id, step=step, heldout=1)
            get("rollout", run=id, step=step, group=HIDDEN, index=0)
            get("rollout", run=id, step=step, group=HIDDEN, index=0, heldout=1)
    for lab in labs:
        for hypothesis in get("lab", lab=lab)["hypotheses"]:
            get("hypothesis", lab=lab, id=hypothesis["id"])
    return "\n".join(said)


LINKS = {
    "info": "run.json", "metrics": "metrics.jsonl", "evaluations": "evals.jsonl", "events": "events.jsonl",
    "report": "findings.json", "folder": "rollouts", "step": "rollouts/000001", "evals": "evals",
    "part": "rollouts/000001/part-0.parquet", "evaluation": "evals/000002.parquet",
    "tokenizer": "checkpoints/step-000001/model/tokenizer.json", "weights": "checkpoints/step-000001/model",
    "saved": "checkpoints",
}  # fmt: skip


@pytest.mark.slow
def test_links_out_of_the_folder_are_not_followed(tmp_path: Path, serve: Serve, ask: Ask) -> None:
    runs, outside = tmp_path / "runs", secret_run(tmp_path / "outside" / "run")
    write_run(runs / "0", steps=2)
    for name, place in LINKS.items():
        path = write_run(runs / name, steps=2) / place
        (runs / name / "findings.json").unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.symlink_to(outside / place)
    nested = write_run(runs / "nested", steps=2) / "rollouts" / "000001" / "part-0.parquet"
    nested.unlink()
    nested.mkdir()  # a folder in the place of a file, with a link in it
    (nested / "x.parquet").symlink_to(outside / "rollouts" / "000001" / "part-0.parquet")
    (runs / "whole").symlink_to(outside)
    deep = runs / "trl" / "runs" / "a" / "b" / "c" / "d" / "events.out.tfevents.1"
    deep.parent.mkdir(parents=True)
    deep.symlink_to(outside / "metrics.jsonl")
    rows = [{"step": step, "reward": 0.5, "loss": 0.1} for step in range(1, 9)]
    (runs / "trl" / "trainer_state.json").write_text(
        json.dumps({"global_step": 8, "log_history": rows})
    )
    (runs / "log.jsonl").symlink_to(outside / "metrics.jsonl")
    (runs / "loop").symlink_to("loop")
    (runs / "again").symlink_to(runs / "0")
    os.mkfifo(write_run(runs / "pipe", steps=2) / "findings.json")
    url = serve(runs)
    assert SECRET not in everything(url)
    rows = {row["name"]: row for row in ask(url, "runs", limit=1000)["rows"]}
    assert set(rows) == {"0", "nested", "pipe", "trl", *LINKS}
    for name in (
        "info",
        "metrics",
        "evaluations",
        "events",
        "report",
        "folder",
        "evals",
        "saved",
        "trl",
    ):
        assert re.search(r"is a link to a place outside runs: not read\.$", rows[name]["error"]), (
            name
        )
    assert "neither a file nor a folder" in rows["pipe"]["error"]
    for name in ("tokenizer", "weights"):
        assert (
            "is a link"
            in ask(url, "rollout", 404, run=f"runs/{name}", step=1, group="g0", index=0)["error"]
        )
    for name in ("step", "part"):
        assert (
            "is a link"
            in ask(url, "rollout", 404, run=f"runs/{name}", step=1, group="g0", index=0)["error"]
        )
        assert (
            "The doctor could not judge it."
            in ask(url, "run", run=f"runs/{name}")["report"]["sentence"]
        )
        assert [line["step"] for line in ask(url, "rollouts", run=f"runs/{name}")["rollouts"]] == [
            2
        ]
    assert ask(url, "compare", runs="runs/0,runs/evaluation")["paired"][0]["tasks"] == 0
    assert ask(url, "compare", runs="runs/0,runs/step")["paired"][0]["tasks"] == 40


def test_a_link_that_one_folder_allows_is_not_remembered_for_another(
    tmp_path: Path, serve: Serve, ask: Ask
) -> None:
    runs, outside = tmp_path / "all" / "runs", secret_run(tmp_path / "all" / "outside")
    for name, place in (("metrics", "metrics.jsonl"), ("part", "rollouts/000001/part-0.parquet")):
        file = write_run(runs / name, steps=2) / place
        file.unlink()
        file.symlink_to(outside / place)
    allowed = serve(tmp_path / "all")
    assert ask(allowed, "curves", run="all/runs/metrics", keys=SECRET)["curves"][SECRET][
        "mean"
    ] == [1.0, 1.0]
    assert ask(allowed, "rollouts", run="all/runs/part", step=1)["rollouts"][0]["task"] == SECRET
    refused = serve(runs)
    rows = {row["name"]: row["status"] for row in ask(refused, "runs")["rows"]}
    assert rows == {"metrics": "unreadable", "part": "finished"}
    assert "outside runs" in ask(refused, "curves", 404, run="runs/metrics", keys=SECRET)["error"]
    assert ask(refused, "rollouts", run="runs/part", step=1)["rollouts"] == []


def state_of(folder: Path) -> dict[str, tuple[int, str]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in files
    }


@pytest.mark.slow
def test_nothing_in_the_folders_changes(tmp_path: Path, serve: Serve) -> None:
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "killed", end=None)
    data = Path(__file__).parents[1] / "data"
    shutil.copytree(data / "schema1", tmp_path / "runs" / "old")
    shutil.copytree(data / "formats" / "trl-bars" / "raw", tmp_path / "runs" / "log")
    shutil.copytree(Path(__file__).parents[2] / "examples" / "journal", tmp_path / "journal")
    before = [state_of(tmp_path / name) for name in ("runs", "journal")]
    assert not (tmp_path / "runs" / "a" / "findings.json").exists()
    url = serve(tmp_path / "runs", tmp_path / "journal")
    everything(url, "journal")
    assert [state_of(tmp_path / name) for name in ("runs", "journal")] == before


@pytest.mark.slow
def test_a_hostile_run_is_answered_as_json_and_nothing_of_it_is_a_page(
    tmp_path: Path, serve: Serve, ask: Ask
) -> None:
    hostile_run(tmp_path / "runs" / NAME)
    folder = os.fsencode(tmp_path / "runs") + b"/caf\xe9"  # a name that is no UTF-8
    shutil.copytree(os.fsencode(write_run(tmp_path / "plain", steps=2)), folder)
    url = serve(tmp_path / "runs")
    rows = ask(url, "runs", columns="half,__proto__.polluted,constructor")["rows"]
    assert {row["status"] for row in rows} == {"failed", "finished"}
    assert len(everything(url)) > 100_000
    assert SCRIPT not in send(url, "/").read().decode()
    id = next(row["id"] for row in rows if row["status"] == "failed")
    first = ask(url, "rollouts", run=id, step=1)["rollouts"][0]
    query = {"run": id, "step": 1, "group": first["group"], "index": 0}
    message = ask(url, "rollout", **query)["rollout"]["turns"][0]["message"]
    assert (message["length"], len(message["content"])) == (LONG, 20_000)
    assert (
        len(
            ask(url, "rollout", **query, characters=LONG)["rollout"]["turns"][0]["message"][
                "content"
            ]
        )
        == LONG
    )
    assert ask(url, "compare", runs=f"{rows[0]['id']},{rows[1]['id']}")["ids"] == [
        row["id"] for row in rows
    ]
    assert (
        ask(url, "run", run=next(row["id"] for row in rows if row["id"] != id))["row"]["step"] == 2
    )


def test_scripts_make_no_markup_of_text() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\bFunction\("
        r"|createContextualFragment|DOMParser|srcdoc|setAttribute\(\s*[\"'`]on|set(Timeout|Interval)\(\s*[\"'`]|<\w+[^>]*\son\w+\s*="
    )
    files = sorted(STATIC_FOLDER.glob("*.js"))
    assert [file.name for file in files] == sorted(SCRIPT_NAMES)
    for file in files:
        assert not forbidden.search(file.read_text("utf-8")), file.name
    for file in STATIC_FOLDER.parent.glob("templates/*"):
        text = file.read_text("utf-8")
        assert set(re.findall(r"\{\{ *(\w+) *\| *safe *\}\}", text)) <= {"style", "script", "data"}
        assert text.count("safe") == len(re.findall(r"\| *safe *\}\}", text))
        assert not re.search(r"\son\w+=|autoescape|style=", text)


@pytest.fixture
def typed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """`typed("serve", …)` runs a command that must fail with a sentence, and gives it."""
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> str:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        told = capsys.readouterr().err
        assert (end.value.code, "Traceback" in told) == (2, False), told
        return told

    yield run
    assert not (tmp_path / "home").exists()


def test_what_can_not_be_served_is_said(
    typed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "missing does not exist. Name a folder" in typed("serve", "missing")
    with open_socket("127.0.0.1", 0) as taken:
        taken.listen()
        told = typed("serve", tmp_path, "--port", taken.getsockname()[1])
    assert re.search(r"127\.0\.0\.1:\d+ can't be listened on: .* --port 0 takes a free one\.", told)
    for package in ("starlette", "uvicorn", "plotly"):
        monkeypatch.setitem(sys.modules, package, None)
        hint = rf"{package} is not installed.*{re.escape(install_command('dashboard'))}"
        assert re.search(hint, typed("serve", tmp_path))
        monkeypatch.undo()


@pytest.mark.slow
def test_every_address_gets_a_token_of_its_own(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    make_run("a", steps=2)
    command = [sys.executable, "-m", "uptrend", "serve", "--port", "0", "--host"]
    options: dict[str, Any] = {
        "cwd": tmp_path,
        "env": {**os.environ, "UPTREND_HOME": str(tmp_path / "home")},
    }
    for host in ("0.0.0.0", "localhost"):
        with subprocess.Popen(
            [*command, host], stdout=subprocess.PIPE, text=True, **options
        ) as process:
            assert process.stdout is not None
            port, token = re.search(
                r":(\d+)/\?token=([\w-]+)$", process.stdout.readline().strip()
            ).groups()  # type: ignore[union-attr]
            url = f"http://127.0.0.1:{port}"
            assert send(url).status == 401
            assert send(url, authorization=f"Bearer {token}").status == 200
            assert len(token) >= 32
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0


def swap(path: Path, other: str, outside: Path) -> Callable[[], None]:
    """Return what puts a link out of the folder, or a pipe, in a file's place, or the file itself
    back, in turns.
    """
    kept, beside = path.read_bytes(), path.with_name(f".{path.name}.new")
    turns = itertools.cycle([other, "file"])

    def turn() -> None:
        kind = next(turns)
        if kind == "link":
            beside.symlink_to(outside)
        elif kind == "pipe":
            os.mkfifo(beside)
        else:
            beside.write_bytes(kept)
        beside.replace(path)

    return turn


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_takes_a_files_place_after_it_was_indexed_is_not_read(
    kind: str, tmp_path: Path, serve: Serve, ask: Ask
) -> None:
    outside, names = (
        secret_run(tmp_path / "outside" / "run"),
        ("metrics.jsonl", "evals.jsonl", "events.jsonl", "folder"),
    )
    runs = {name: write_run(tmp_path / "runs" / name.partition(".")[0], steps=2) for name in names}
    url = serve(tmp_path / "runs")
    client = httpx.Client(base_url=f"{url}/api", timeout=30)
    for name, run in runs.items():
        if name == "folder":
            run.rename(tmp_path / "moved")
            run.symlink_to(outside)
        else:
            swap(run / name, kind, outside / name)()
        id = f"runs/{run.name}"
        # At once: the next look at the folder would find it out.
        for path, query in (
            ("curves", {"run": id, "keys": SECRET}), ("steps", {"run": id}), ("rollouts", {"run": id, "step": 1}),
            ("compare", {"runs": f"{id},{id}"}), ("run", {"run": id}), ("rollouts", {"run": id, "heldout": 1}),
            ("rollout", {"run": id, "step": 1, "group": HIDDEN, "index": 0}),
        ):  # fmt: skip
            answer = client.get(path, params=query)
            assert answer.status_code in (200, 404), (path, answer.text)
            assert SECRET not in answer.text, (name, path)
        assert "not read" in ask(url, "curves", 404, run=id)["error"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_files_that_are_swapped_while_they_are_read_neither_leak_nor_hang(
    kind: str, tmp_path: Path, serve: Serve, ask: Ask
) -> None:
    outside, run = (
        secret_run(tmp_path / "outside" / "run"),
        write_run(tmp_path / "runs" / "a", steps=2),
    )
    write_tokenizer(outside / "model")
    (run / "checkpoints" / "step-000002" / "model").mkdir(parents=True)
    (run / "checkpoints" / "step-000002" / "model" / "tokenizer.json").write_text("{}")
    lab = tmp_path / "lab"
    shutil.copytree(Path(__file__).parents[2] / "examples" / "journal", lab)
    page = next(lab.glob("hypotheses/h02*.md"))
    secret_page = tmp_path / "outside" / "page.md"
    secret_page.write_text(page.read_text().replace("\n## ", f"\n{SECRET}\n\n## "))
    (tmp_path / "logs" / "trl").mkdir(parents=True)
    log = tmp_path / "logs" / "trl" / "trainer_state.json"
    rows = [{"step": step, "reward": 0.5, "loss": 0.1} for step in range(1, 9)]
    log.write_text(json.dumps({"global_step": 8, "log_history": rows}))
    secret_log = tmp_path / "outside" / "trainer_state.json"
    secret_log.write_text(
        json.dumps({"global_step": 8, "log_history": [{**row, SECRET: 1.0} for row in rows]})
    )
    url = serve(tmp_path / "runs", lab, tmp_path / "logs")
    names = (
        "metrics.jsonl",
        "evals.jsonl",
        "events.jsonl",
        ".lock",
        "rollouts/000001/part-0.parquet",
    )
    places = {
        run / name: outside / name
        for name in (*names, "evals/000002.parquet")
        if (run / name).exists()
    }
    places |= {page: secret_page, log: secret_log, lab / "01-experiments-log.md": secret_page}
    places[run / "checkpoints/step-000002/model/tokenizer.json"] = (
        outside / "model" / "tokenizer.json"
    )
    turns, over = [swap(path, kind, target) for path, target in places.items()], threading.Event()

    def keep_swapping() -> None:
        while not over.wait(0.001):
            for turn in turns:
                turn()

    thread = threading.Thread(target=keep_swapping)
    thread.start()
    client, until, slowest = (
        httpx.Client(base_url=f"{url}/api", timeout=60),
        time.monotonic() + 12,
        0.0,
    )
    queries: tuple[tuple[str, dict[str, Any]], ...] = (
        ("curves", {"run": "runs/a", "keys": SECRET}), ("steps", {"run": "runs/a"}), ("compare", {"runs": "runs/a"}),
        ("run", {"run": "runs/a"}), ("rollouts", {"run": "runs/a", "step": 1}), ("runs", {}), ("lab", {"lab": "lab"}),
        ("rollout", {"run": "runs/a", "step": 1, "group": HIDDEN, "index": 0}), ("status", {}),
        ("rollout", {"run": "runs/a", "step": 1, "group": "g0", "index": 0}), ("run", {"run": "logs/trl"}),
        ("hypothesis", {"lab": "lab", "id": "h02"}), ("curves", {"run": "logs/trl"}),
    )  # fmt: skip
    try:
        while time.monotonic() < until:
            for path, query in queries:
                began = time.monotonic()
                answer = client.get(path, params=query)
                slowest = max(slowest, time.monotonic() - began)
                assert SECRET not in answer.text, (path, query)
                assert answer.status_code != 500 or "could not be read" in answer.text, answer.text
    finally:
        over.set()
        thread.join()
    assert slowest < 30
    assert ask(url, "status")["counts"]["lab"] == 1
