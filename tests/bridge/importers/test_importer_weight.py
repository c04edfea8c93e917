"""Reading a log loads neither torch nor scipy, nor pandas; but Arrow loads pandas for rollouts where it is there."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from written_logs import event_file, lines, state, trl_rows, wandb_file, write

READ = """
import json, sys
from pathlib import Path
from uptrend.bridge.importers import read_views
for path in map(Path, sys.argv[1:]):
    for view in read_views(path):
        for step in view.rollout_steps:
            view.read_rollouts(step)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_reading_loads_nothing_heavy(tmp_path: Path) -> None:
    rows = trl_rows(20)
    paths = [
        write(tmp_path / "a.jsonl", lines(rows)),
        write(tmp_path / "b", event_file(rows)),
        write(tmp_path / "c", wandb_file(rows, {"lr": 1.0}, "x")),
        write(tmp_path / "d" / "trainer_state.json", state(rows)).parent,
        write(tmp_path / "e.csv", "step,reward\n" + "".join(f"{s},0.123456789\n" for s in range(50_000))),
    ]
    heavy = {"torch", "transformers", "scipy", "tensorboard", "wandb"}
    loaded = loaded_after(paths)
    assert "pyarrow" in loaded
    assert loaded.isdisjoint(heavy | {"pandas"})
    table = pa.table(
        {"step": [1] * 4, "prompt": ["p"] * 4, "completion": list("abcd"), "correct": [0.0, 1.0, 0.0, 1.0]}
    )
    (tmp_path / "d" / "completions").mkdir()
    pq.write_table(table, tmp_path / "d" / "completions" / "completions_00001.parquet")
    assert loaded_after(paths).isdisjoint(heavy)


def loaded_after(paths: list[Path]) -> set[str]:
    """The packages that a fresh process has loaded after reading these."""
    command = [sys.executable, "-c", READ, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))
