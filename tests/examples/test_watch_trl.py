"""The example of a watched TRL run: what was in its folder before is there after."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from uptrend.records import Run

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_folder_with_something_in_it_keeps_it(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="the extra trl is not installed")
    out = tmp_path / "out"
    own = out / "checkpoint-500" / "model.safetensors"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"weeks of work")
    command = [
        sys.executable,
        str(ROOT / "examples" / "watch_trl.py"),
        "--steps",
        "1",
        "--out",
        str(out),
    ]
    for name in ("uptrend", "uptrend-2"):
        done = subprocess.run(
            command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert f"The run is in {out / name}" in done.stdout
        assert Run(out / name).last_step == 1
        assert own.read_bytes() == b"weeks of work"
