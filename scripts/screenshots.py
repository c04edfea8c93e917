"""Make the pictures of README and docs: train what they show, open the dashboard, and photograph
it.

    python scripts/screenshots.py             into docs/images
    python scripts/screenshots.py --to DIR    elsewhere

Runs go to .screenshots/ and are kept: ten minutes of training the first time, seconds later.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
WORK = ROOT / ".screenshots"
FLAGS = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
TRAINED = {
    "tiny-seed-0": ("seed=0",),
    "tiny-seed-1": ("seed=1",),
    "tiny-seed-2": ("seed=2",),
    "tiny-rate-100x": ("seed=0", "learning.lr=0.025", "learning.steps=80"),
}
ROLLOUT = "#/rollout?run=autopsy/blind-anyway&step=60&group=000060-0000&index=1"
COMPARED = ",".join(f"runs/{name}" for name in TRAINED)
PICTURES = {  # name: address, theme, height
    "dashboard": ("#/run?run=autopsy/blind-anyway", "light", 720),
    "dashboard-runs": ("", "light", 560),
    "dashboard-tokens": (f"{ROLLOUT}&view=tokens", "light", 760),
    "dashboard-findings": ("#/findings?run=runs/tiny-rate-100x", "light", 760),
    "dashboard-compare": (f"#/compare?runs={COMPARED}&fold=1", "dark", 720),
    "dashboard-lab": ("#/hypothesis?lab=journal&id=h07", "light", 720),
}  # fmt: skip


def train() -> None:
    """Train what is not there yet."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name, sets in TRAINED.items():
        if not (WORK / "runs" / name / "findings.json").exists():
            shutil.rmtree(WORK / "runs" / name, ignore_errors=True)
            words = [word for one in sets for word in ("--set", one)]
            command = [
                "train",
                "recipes/tiny.toml",
                "--runs",
                str(WORK / "runs"),
                "--name",
                name,
                "--no-preflight",
            ]
            subprocess.run(
                [sys.executable, "-m", "uptrend", *command, *words],
                cwd=ROOT,
                env=environment,
                check=True,
            )
    if not (WORK / "autopsy" / "fixed" / "findings.json").exists():
        shutil.rmtree(WORK / "autopsy", ignore_errors=True)
        command = ["examples/autopsies/blind.py", "--out", str(WORK / "autopsy")]
        subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True)


def photograph(to: Path) -> None:
    """Open each page, and save what a window of 1,280 pixels shows of it."""
    folders = [WORK / "runs", WORK / "autopsy", ROOT / "examples" / "journal"]
    environment = {**os.environ, "UPTREND_HOME": str(WORK / "home")}
    command = [
        sys.executable,
        "-m",
        "uptrend",
        "serve",
        *map(str, folders),
        "--port",
        "0",
        "--no-open",
        "--no-token",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    try:
        found = re.search(r"http://\S+/", server.stdout.readline())
        assert found, "the dashboard printed no address"
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=FLAGS.split()
            )
            for name, (address, theme, height) in PICTURES.items():
                page = browser.new_page(
                    viewport={"width": 1280, "height": height},
                    device_scale_factor=1.5,
                    color_scheme=theme,
                )
                page.goto(found[0])
                page.wait_for_selector("body[data-ready='runs']")
                while page.request.get(f"{found[0]}api/status").json()["indexing"]:
                    page.wait_for_timeout(200)
                page.goto("about:blank")
                page.goto(found[0] + address)
                page.wait_for_selector("body:not([data-ready=''])")
                page.wait_for_timeout(2500)  # plots take the place of their sketches
                page.screenshot(path=to / f"{name}.png")
                page.close()
                print(to / f"{name}.png")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--to", type=Path, default=ROOT / "docs" / "images", help="folder for the pictures"
    )
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    train()
    photograph(given.to)
