"""Examples of a problem: made by its generator in a sandbox of its own, or the problem's own
files.
"""

import base64
import json
import shlex
from typing import Any

from uptrend.records import TasksetError
from uptrend.sandbox import Bounds, FileProblem, Sandbox
from uptrend.tasksets.mlgym.problem import Example, Files, Problem

PARTS = ("workspace", "validation", "test")
LARGEST = 64 << 20  # bytes of an example's files, as base64
MADE = "made.json"  # in the workspace

# Runs in the sandbox, where the generator's folder is copied to `generator`. For Python 3.9: an
# image may have that.
MAKE = r"""
import base64, json, runpy, sys
from pathlib import Path
script, seed, heldout = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
made = Path(sys.argv[4]).resolve()  # the generator may go to another folder
parts = runpy.run_path(str(Path("generator", script).resolve()))["make"](seed, heldout)
if not isinstance(parts, dict) or not {"workspace", "validation", "test"} <= parts.keys():
    sys.exit("make(seed, heldout) should return files for workspace, validation and test")
files = {}
for part in ("workspace", "validation", "test"):
    for path, data in parts[part].items():
        if not isinstance(path, str) or not isinstance(data, bytes):
            sys.exit(f"{part} should have bytes by path, and has {data!r:.60} by {path!r:.60}")
    files[part] = {path: base64.b64encode(data).decode() for path, data in parts[part].items()}
made.write_text(json.dumps(files))
"""


async def make_example(
    problem: Problem, sandbox: Sandbox, bounds: Bounds, seed: int, heldout: bool
) -> Example:
    """Make the example of a seed; of what a generator does, only the files it returns come out."""
    if problem.generator is None:
        return Example(problem.starter, problem.hidden, problem.hidden)
    files: dict[str, bytes] = {
        f"generator/{place}": data for place, data in problem.neighbors.items()
    }
    async with await sandbox.open({**files, "make_example.py": MAKE.encode()}, bounds) as workspace:
        words = ["python", "make_example.py", problem.generator.name, str(seed), str(heldout), MADE]
        outcome = await workspace.run(shlex.join(words), seconds=problem.timeout)
        try:
            if outcome.code or outcome.stopped:
                raise ValueError(_last_line(outcome.output) or f"exit code {outcome.code}")
            parts = _read_parts(json.loads(await workspace.read(MADE, LARGEST)))
        except (FileProblem, ValueError, RecursionError) as error:
            bound = outcome.stopped
            reason = f"it reached its bound of {bound}" if bound else str(error)
            raise TasksetError(
                f"The generator {problem.generator} made no example of seed {seed}: {reason}."
            ) from None
    return Example({**problem.starter, **parts["workspace"]}, parts["validation"], parts["test"])


def _read_parts(made: Any) -> dict[str, Files]:
    """Return the files of each part; the generator may have written anything in their place."""
    try:
        return {
            part: {path: base64.b64decode(text) for path, text in made[part].items()}
            for part in PARTS
        }
    except (TypeError, KeyError, AttributeError):
        raise ValueError("it should return files for workspace, validation and test") from None


def _last_line(output: str) -> str:
    return output.strip().rpartition("\n")[2][-300:].removesuffix(".")
