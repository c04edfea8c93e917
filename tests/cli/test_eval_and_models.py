"""`uptrend eval` and `uptrend models`, through the real command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from models import make_policy, write_model
from uptrend.cli.main import main
from uptrend.config import Learning
from uptrend.policy.checkpoint import save_checkpoint
from uptrend.policy.optimizer import Optimizer

Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """What a command prints."""

    def run(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(a) for a in arguments])
        said = capsys.readouterr()
        assert end.value.code == code, said.err
        return said.err if code else said.out

    return run


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Ten questions that tiny was never taught: none of them is an arithmetic task."""
    path = tmp_path / "problems.jsonl"
    rows = [{"prompt": f"Calculate: {n} + {n} = ?", "answer": 2 * n} for n in range(10)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_model_on_a_file_of_ones_own(tiny_folder: str, problems: Path, tmp_path: Path, say: Say) -> None:
    out = tmp_path / "said.parquet"
    arguments = ("eval", "tiny", "--tasks", problems, "--set", "compute.threads=1", "--attempts", 2)
    told: dict[str, Any] = json.loads(say(*arguments, "--json", "--out", out))
    assert (told["target"], told["tasks"], told["failed"]) == ("tiny", 10, 0)
    assert told["accuracy"] == told["correct"] / 10
    assert told["by_family"].keys() == {"problems"}
    assert told["pass_at"].keys() == {"1", "2"}
    assert told["pass_at"]["1"] <= told["pass_at"]["2"]
    table = pq.read_table(out)
    assert len(table) == 10 + 20
    assert sum(table["correct"].to_pylist()[:10]) == told["correct"]
    assert Path(tiny_folder).exists()


def test_the_figures_for_people(llama_folder: Path, say: Say) -> None:
    said = say("eval", llama_folder, "--tasks", "arithmetic", "--set", "eval.tasks=40")
    first, family = said.splitlines()
    assert first.startswith(f"{llama_folder}: ")
    assert "of 40 held-out tasks (95% interval" in first
    assert family.split()[0] == "arithmetic"


def test_a_recipes_evaluation_can_be_taken(llama_folder: Path, tmp_path: Path, say: Say) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[eval]\nname = "comparison"\ntasks = 15\n')
    told = json.loads(say("eval", llama_folder, "--tasks", recipe, "--json"))
    assert (told["tasks"], list(told["by_family"])) == (15, ["comparison"])


def test_an_adapter_can_be_evaluated(llama_folder: Path, tmp_path: Path, say: Say) -> None:
    policy = make_policy(llama_folder, lora=True)
    place = save_checkpoint(tmp_path, policy, Optimizer(policy.flat, Learning()), {"step": 1}, 1)
    told = json.loads(say("eval", place / "adapter", "--tasks", "arithmetic", "--set", "eval.tasks=5", "--json"))
    assert told["tasks"] == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("eval", "nothing"), "There is no model 'nothing'"),
        (("eval", "tiny", "--tasks", "arithmatic"), "Did you mean arithmetic?"),
        (("eval", "tiny", "--tasks", "none.jsonl"), "none.jsonl can't be read"),
        (("eval", "tiny", "--set", "eval.taks=3"), "eval.taks is not a known key"),
        (("models", "show", "nothing"), "There is no model 'nothing'"),
        (("models", "pull", "tiny", "--gguf", "x.gguf"), "--gguf is for smollm2-135m"),
    ],
)
def test_bad_input_is_a_sentence(say: Say, arguments: tuple[str, ...], said: str) -> None:
    assert said in say(*arguments, code=2)


def test_out_that_cannot_be_written(llama_folder: Path, tmp_path: Path, say: Say) -> None:
    out = tmp_path / "no" / "such" / "folder.parquet"
    said = say("eval", llama_folder, "--tasks", "arithmetic", "--set", "eval.tasks=3", "--out", out, code=2)
    assert f"{out} can't be written" in said


def test_the_list_says_what_is_cached(
    tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path))
    told = json.loads(say("models", "list", "--json"))
    assert told["home"] == str(tmp_path)
    assert set(told["models"][0]) == {"name", "parameters", "source", "license", "download", "cached"}
    assert {model["name"]: model["cached"] for model in told["models"]} == {"smollm2-135m": [], "tiny": [tiny_folder]}
    (tmp_path / "models" / "smollm2-135m").mkdir(parents=True)
    pulled = json.loads(say("models", "list", "--json"))["models"][0]
    assert pulled["cached"] == [str(tmp_path / "models" / "smollm2-135m")]
    assert "Apache-2.0" in say("models", "list")


def test_a_model_is_shown(tiny_folder: str, tmp_path: Path, say: Say) -> None:
    told = json.loads(say("models", "show", "tiny", "--json"))
    assert told["folder"] == tiny_folder
    assert (told["type"], told["layers"], told["hidden"], told["end of turn"]) == ("llama", 5, 128, "<end>")
    assert told["chat template"] is True
    assert 1_900_000 < told["bytes"] < 2_100_000
    folder = write_model(tmp_path / "model", "qwen3")
    assert "qwen3" in say("models", "show", folder)
    assert say("models", "pull", "tiny").strip() == tiny_folder
