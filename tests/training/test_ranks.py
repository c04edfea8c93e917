"""Several processes that train one policy: the same update as one, found where they differ, ended
where one ends.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from ranked import TORCHRUN, environment, work
from uptrend.config import load_config, to_table
from uptrend.config.tables import to_recipe
from uptrend.doctor.diagnose import diagnose
from uptrend.records import Run, view_of
from uptrend.records.errors import install_command
from uptrend.runner.runs import resume_run, train_recipe

pytestmark = pytest.mark.slow

KINDS = {
    "full": {},
    "lora": {
        "model.lora": {"r": 4, "alpha": 8.0},
        "learning.kl.beta": 0.1,
    },  # reference: adapters off
    "kl": {"learning.kl.beta": 0.1},  # reference: a second model
}
NOT_EQUAL = ("seconds/", "memory/", "time", "ranks/")


def table(llama_folder: Path) -> dict[str, Any]:
    """Three groups for two processes, in micro-batches of few tokens: one has more passes than the
    other.
    """
    return {
        "model": {"name": str(llama_folder)},
        "tasks": {"name": "letters:Letters", "train": 30},
        "eval": {"name": "letters:Letters", "tasks": 2, "every": 0},
        "sampling": {"groups": 3, "size": 4, "max_tokens": 6},
        "learning": {"steps": 2, "lr": 1e-4, "weight_decay": 0.1, "tokens": 40},
        "checkpoints": {"every": 1, "keep": 9},
        "compute": {"threads": 1},
    }  # fmt: skip


def sets_of(**changes: Any) -> list[str]:
    return [
        f"{key}={json.dumps(value) if not isinstance(value, dict) else inline(value)}"
        for key, value in changes.items()
    ]


def inline(value: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key} = {json.dumps(item)}" for key, item in value.items()) + "}"


def case(folder: Path, llama_folder: Path, name: str, **more: Any) -> dict[str, Any]:
    kind, _, layout = name.partition("-")
    sets = sets_of(**KINDS.get(kind, {}), **{"compute.parallel": layout})
    return {
        "path": str(folder / name),
        "table": table(llama_folder),
        "sets": [*sets, *more.pop("sets", ())],
        **more,
    }


@pytest.fixture(scope="module")
def alone(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The runs of one process."""
    folder = tmp_path_factory.mktemp("alone")
    kinds = KINDS | {"long": {"learning.steps": 3}}
    return {
        kind: train_recipe(
            load_config(table(llama_folder), sets_of(**changes)), runs=folder, name=kind
        )
        for kind, changes in kinds.items()
    }


@pytest.fixture(scope="module")
def together(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the runs of two processes, all made by one pair."""
    folder = tmp_path_factory.mktemp("together")
    names = [f"{kind}-{layout}" for kind in KINDS for layout in ("ddp", "fsdp2")]
    cases = [case(folder, llama_folder, name) for name in names]
    cases += [
        case(folder, llama_folder, f"moved-{layout}", sets=["learning.steps=1"])
        for layout in ("ddp", "fsdp2")
    ]
    cases.append(case(folder, llama_folder, "infinite-fsdp2", sets=["tasks.infinite=1"]))
    work("train", folder, [*cases, case(folder, llama_folder, "strayed-ddp", strays=True)])
    # Before any test goes on with it: tests come in no particular order.
    shutil.copytree(folder / "moved-fsdp2", folder / "moved-zero3")
    return folder


@pytest.fixture(scope="module")
def by_deepspeed(together: Path, llama_folder: Path) -> Path:
    """The same of ZeRO-3; one goes on from what FSDP2 wrote, and is gone on with by one process."""
    if find_spec("deepspeed") is None:
        pytest.skip(f"deepspeed is not installed: {install_command('deepspeed')}")
    cases = [case(together, llama_folder, f"{kind}-zero3") for kind in ("full", "lora")]
    moved = {"path": str(together / "moved-zero3"), "resumes": True}
    cases.append(moved | {"sets": ["learning.steps=2", "compute.parallel=zero3"]})
    work("train", together, cases)
    return together


def weights_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for folder in ("model", "adapter"):
        for file in (run / f"checkpoints/step-{step:06d}" / folder).glob("*.safetensors"):
            found |= load_file(file)
    assert found
    return found


def difference(one: Path, other: Path, step: int) -> float:
    mine, theirs = weights_of(one, step), weights_of(other, step)
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


def tokens_of(run: Path) -> dict[tuple[Any, ...], Any]:
    parts = (pq.read_table(file).to_pylist() for file in sorted(run.glob("rollouts/*/*.parquet")))
    return {(row["step"], row["group"], row["index"]): row["ids"] for rows in parts for row in rows}


def check_equal(alone: Run, several: Path) -> None:
    run = Run(several)
    assert run.info["machine"]["processes"] == 2
    assert tokens_of(alone.path) == tokens_of(several)
    assert difference(alone.path, several, 2) < 1e-5
    assert difference(alone.path, several, 1) < 1e-5 < 5e-5 < moved_by(alone.path)
    for mine, theirs in zip(alone.metric_lines, run.metric_lines, strict=True):
        assert theirs["ranks/weights/count"] == 1
        assert set(theirs) - set(mine) == {"ranks/weights/count"}
        for key, value in mine.items():
            if not key.startswith(NOT_EQUAL):
                assert theirs[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key
    findings = {finding.id for finding in diagnose(view_of(run)).findings}
    assert "run.ranks-diverge" not in findings


def moved_by(run: Path) -> float:
    before, after = weights_of(run, 1), weights_of(run, 2)
    return max(float((after[name] - before[name]).abs().max()) for name in before)


@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_make_the_update_of_one(
    kind: str, layout: str, alone: dict[str, Run], together: Path
) -> None:
    check_equal(alone[kind], together / f"{kind}-{layout}")
    assert Run(together / f"{kind}-{layout}").info["machine"]["parallel"] == layout


@pytest.mark.needs_package("g++")
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_so_do_two_of_deepspeed(kind: str, alone: dict[str, Run], by_deepspeed: Path) -> None:
    check_equal(alone[kind], by_deepspeed / f"{kind}-zero3")


def test_a_process_that_strays_is_found(together: Path) -> None:
    run = Run(together / "strayed-ddp")
    assert [line["ranks/weights/count"] for line in run.metric_lines] == [2, 2]
    assert "run.ranks-diverge" in {finding.id for finding in diagnose(view_of(run)).findings}


def test_a_gradient_that_is_not_finite_is_left_out_by_all(together: Path) -> None:
    path = together / "infinite-fsdp2"
    first, second = (line["optimizer/skipped/count"] for line in Run(path).metric_lines)
    assert first + second > 0
    assert second == 0 or moved_by(path) == 0
    assert all(weight.isfinite().all() for weight in weights_of(path, 2).values())


def test_a_run_moves_between_one_process_and_two(alone: dict[str, Run], together: Path) -> None:
    moved = {layout: together / f"moved-{layout}" for layout in ("ddp", "fsdp2")}
    for path in moved.values():
        resume_run(path, ["learning.steps=2"])
    exchanged = zip(moved.values(), reversed(moved), strict=True)
    work("train", together, [
        {"path": str(path), "resumes": True, "sets": ["learning.steps=3", f"compute.parallel={layout}"]}
        for path, layout in exchanged
    ])  # fmt: skip
    for path in moved.values():
        assert tokens_of(path) == tokens_of(alone["long"].path)
        assert difference(alone["long"].path, path, 3) < 1e-5
    assert (moved["ddp"] / "checkpoints/step-000003/optimizer").is_dir()
    assert (moved["fsdp2"] / "checkpoints/step-000003/optimizer.safetensors").exists()


@pytest.mark.needs_package("g++")
def test_a_run_moves_to_deepspeed_and_back(alone: dict[str, Run], by_deepspeed: Path) -> None:
    path = by_deepspeed / "moved-zero3"
    resume_run(path, ["learning.steps=3"])
    assert tokens_of(path) == tokens_of(alone["long"].path)
    assert difference(alone["long"].path, path, 3) < 1e-5


def test_groups_that_do_not_divide(llama_folder: Path, tmp_path: Path) -> None:
    work("compare", tmp_path, {"model": str(llama_folder), "examples": 10})


def uptrend(*words: str) -> "subprocess.Popen[str]":
    command = [*TORCHRUN, "2", "-m", "uptrend", *words]
    return subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ranks_of(launcher: int) -> Iterator[tuple[int, int]]:
    """Numbers and ids of the processes that a launcher started."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        yield from ((int(each[5:]), int(child)) for each in variables if each.startswith(b"RANK="))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes in /proc")
def test_a_full_disk_under_sharded_weights_is_a_sentence(
    llama_folder: Path, tmp_path: Path
) -> None:
    sharded = sets_of(**{"compute.parallel": "fsdp2"})
    value = {"table": table(llama_folder), "sets": sharded, "folder": str(tmp_path / "step-000001")}
    work("save_to_a_full_disk", tmp_path, value)


@pytest.mark.parametrize(
    ("layout", "victim", "by"), [("fsdp2", 1, signal.SIGKILL), ("ddp", 0, signal.SIGSEGV)]
)
def test_all_end_where_one_is_killed_and_the_run_goes_on(
    layout: str, victim: int, by: signal.Signals, llama_folder: Path, tmp_path: Path
) -> None:
    recipe, path = tmp_path / "recipe.toml", tmp_path / "killed"
    # The steps of both runs differ, and a warm-up that is left out goes by them.
    settings = {"learning.steps": 5000, "learning.warmup": 0, "checkpoints.keep": 1}
    changes = sets_of(**settings, **{"compute.parallel": layout})
    recipe.write_text(to_recipe(to_table(load_config(table(llama_folder), changes))))
    process = uptrend(
        "train",
        str(recipe),
        "--runs",
        str(tmp_path),
        "--name",
        "killed",
        "--no-preflight",
        "--quiet",
    )
    until = time.monotonic() + 600
    while not (path / "checkpoints/step-000002").exists() and not list(
        path.glob("checkpoints/step-00000[3-9]")
    ):
        if process.poll() is not None:
            pytest.fail("\n".join(process.communicate()))  # whole, where an assertion would be cut
        assert time.monotonic() < until
        time.sleep(0.02)
    ranks = dict(ranks_of(process.pid))
    os.kill(ranks[victim], by)
    _, told = process.communicate(timeout=180)
    assert "forcefully exiting" not in told  # the launcher kills after 30 s whoever does not end
    assert process.returncode != 0
    (error,) = [line for line in told.splitlines() if line.startswith("error: ")]
    assert "has ended" in error
    # A crash below Python says where it was.
    assert ("Fatal Python error: Segmentation fault" in told) == (by == signal.SIGSEGV)
    last = Run(path).events[-1]
    assert (last["event"], "RankLost" in str(last.get("error"))) == (
        ("checkpoint", False) if victim == 0 else ("failed", True)
    )

    # What follows the checkpoint is what would have followed.
    step = int(Run(path).checkpoints[-1].name.removeprefix("step-"))
    resume_run(path, [f"learning.steps={step + 1}"])
    whole = train_recipe(
        load_config(table(llama_folder), [f"learning.steps={step + 1}", "learning.warmup=0"]),
        runs=tmp_path,
        name="whole",
    )
    assert tokens_of(path) == tokens_of(whole.path)
    assert difference(whole.path, path, step + 1) < 1e-6 * (step + 1)


def test_an_error_of_all_is_told_once(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[model]\nname = "no-such-model"\n[tasks]\nname = "arithmetic"\n')
    out, told = uptrend("train", str(recipe), "--runs", str(tmp_path)).communicate(timeout=600)
    assert len([line for line in told.splitlines() if line.startswith("error: ")]) == 1
    assert "no-such-model" in told
    assert not out
