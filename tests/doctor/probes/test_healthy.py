"""On healthy recipes no probe warns: every loss, adapters, penalties, precision that fits, and questions with tools."""

from typing import Any

import pytest
from benchmarks.faults.planted import FAULTS

from doctor.probes.benches import ALL, CHEAP, ask, bench_of
from small_musique import write_questions, write_small
from uptrend.config import load_config
from uptrend.doctor.probes.result import Result
from uptrend.doctor.probes.run import differential
from uptrend.runner.runs import warmstart

pytestmark = pytest.mark.slow

HEALTHY: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "bnpo": ("learning.loss=bnpo",),
    "dr_grpo": ("learning.loss=dr_grpo", "learning.scale=none"),
    "dapo": ("learning.loss=dapo", "learning.clip_high=0.28", "learning.mask_truncated=true"),
    "gspo": ("learning.loss=gspo", "learning.clip_low=3e-4", "learning.clip_high=4e-4"),
    "cispo": ("learning.loss=cispo", "learning.clip_high=5"),
    "adapters": ("model.lora={r=8,alpha=16}", "learning.lr=2e-3"),
    "penalty": ("learning.kl.beta=0.05", "learning.skip_dead=false", "learning.minibatches=2"),
    "penalty-in-reward": ("learning.kl={beta=0.05,estimator='k1'}", "learning.skip_dead=false", "learning.updates=2"),
    "batch-scaled": ("learning.scale=batch", "learning.baseline=leave_one_out", "sampling.resample=1"),
    "temperature-1": ("sampling.temperature=1.0", "learning.correction=token"),
    "bf16": ("model.weights=bf16",),
}


def warned(results: list[Result]) -> list[tuple[str, str]]:
    return [(f.id, f.summary) for r in results for f in r.findings if f.severity != "note"]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_recipe_gets_no_warning(name: str, tiny_folder: str) -> None:
    names = ALL if name in ("grpo", "adapters", "penalty") else [n for n in ALL if n not in ("control", "evaluation")]
    results = ask(bench_of("tiny.toml", f"model.name={tiny_folder}", *HEALTHY[name]), names)
    assert warned(results) == []
    assert all(result.figure or result.skipped for result in results)


@pytest.fixture(scope="module")
def musique(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recipe of questions with tools, and a small model that was taught to call them."""
    folder = tmp_path_factory.mktemp("musique")
    options = {"file": str(write_questions(folder / "questions.jsonl", 500)), "retriever": "lexical", "returned": 1}
    recipe = {
        "model": {"name": str(write_small(folder / "start", options))},
        "tasks": {"name": "musique", "train": 350, **options},
        "eval": {"name": "musique", "tasks": 20, "every": 0, **options},
        "sampling": {"max_tokens": 16, "max_turns": 4, "context": 200, "groups": 8, "size": 8},
        "learning": {"steps": 60, "lr": 5e-4, "loss": "dapo", "skip_dead": True},
        "warmstart": {"tasks": 320, "epochs": 5, "batch": 32, "lr": 5e-3, "warmup": 5},
        "compute": {"device": "cpu", "threads": 1, "compile": "never"},
    }
    warmstart(load_config(recipe), folder / "warm", runs=folder / "runs")
    return {**recipe, "model": {"name": str(folder / "warm")}}


def test_questions_with_tools_get_no_warning(musique: dict[str, Any]) -> None:
    results = {r.name: r for r in ask(bench_of(musique, groups=8))}
    assert warned(list(results.values())) == []
    for name in ("tool-swap", "tool-calls", "state"):
        assert not results[name].skipped
    assert "tool tokens" in results["masks"].figure
    assert "run out unpaid, 0 of 16 of the expert's" in results["paid"].figure


@pytest.mark.parametrize("id", ["mask.tool-trained", "mask.attention-blind", "mask.stop-untrained"])
def test_a_fault_is_named_first_where_there_are_tools(id: str, musique: dict[str, Any]) -> None:
    findings = differential(ask(bench_of(musique, alter=FAULTS[id].strengths[0].alter), CHEAP))
    assert findings[0].id == id, [(f.id, f.summary) for f in findings]
    assert findings[0].severity == "critical"
