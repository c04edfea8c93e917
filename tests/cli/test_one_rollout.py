"""`uptrend runs show RUN --rollout STEP/GROUP/INDEX`."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from synthetic import info_of, rollout_of
from uptrend.cli.one_rollout import spans
from uptrend.cli.runs import app
from uptrend.records import Message, RecordError, Role, RunDirectory, Sequence, ToolCall, rollouts_table


def shown(run: Path, *arguments: str) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["show", str(run), *arguments])
    if result.exception:
        raise result.exception
    return result.output


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """One step with a rollout of two turns that was trained, and one that was not."""
    plain = rollout_of(3, "a/b", 1)
    roles = np.array([0, 0, 1, 1, 2, 1], np.int8)
    said = np.array([np.nan, np.nan, -0.5, -0.25, np.nan, -1.0], np.float32)
    tokens = Sequence(
        ids=np.array([11, 12, 13, 14, 15, 16], np.int32),
        turns=np.array([0, 0, 0, 0, 1, 1], np.int32),
        roles=roles,
        versions=np.where(roles == Role.MODEL, 2, -1).astype(np.int32),
        sampler=said,
        weights=(roles == Role.MODEL).astype(np.float32) / 3,
        attended=np.array([False, False, True, True, True, True]),
        advantages=np.where(roles == Role.MODEL, -1.5, 0).astype(np.float32),
        learner=said - 1,
    )
    messages = (
        Message("user", "2 + 3 ="),
        Message("assistant", "let me see", (ToolCall("add", {"a": 2, "b": 3}),)),
        Message("tool", "5"),
        Message("assistant", "five"),
    )
    talked = type(plain)(**{**vars(plain), "index": 2, "messages": messages, "sequences": (tokens,)})
    folder = tmp_path / "runs" / "demo"
    with RunDirectory.create(folder, info_of("demo")) as directory:
        directory.rollouts(3, rollouts_table("demo", [plain, talked]))
    return folder


def test_a_rollout_is_shown_with_its_tokens(run: Path) -> None:
    told = shown(run, "--rollout", "3/a/b/2")
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert lines[0] == "3/a/b/2 task t0 family add ended stop-token 0.1 s"
    assert lines[1] == "reward 1 right of 0 to 1 answer 1 gold answer '5'"
    assert 'calls [{"name": "add", "arguments": {"a": 2, "b": 3}}]' in lines
    assert "0 prompt 2 no hidden 0 – – 11 12" in lines
    assert "0 model 2 yes yes −1.5 −0.375 −1.38 13 14" in lines
    assert "1 tool 1 no yes 0 – – 15" in lines
    assert "1 model 1 yes yes −1.5 −1 −2 16" in lines
    assert "Tokens are ids" in told


def test_what_the_learner_never_saw_is_shown_as_unknown(run: Path) -> None:
    lines = [" ".join(line.split()) for line in shown(run, "--rollout", "3/a/b/1").splitlines()]
    assert "0 model 3 – – – −0.292 – 3 4 5" in lines


def test_json_has_every_column(run: Path) -> None:
    told = json.loads(shown(run, "--rollout", "3/a/b/2", "--json"))
    assert (told["step"], told["group"], told["index"], told["reward"]) == (3, "a/b", 2, 1.0)
    (sequence,) = told["sequences"]
    assert sequence["ids"] == [11, 12, 13, 14, 15, 16]
    assert sequence["attended"] == [False, False, True, True, True, True]
    assert sequence["reference"] is None
    assert [len(span) for span in spans(sequence)] == [2, 2, 1, 1]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("3/a/c/2", r"Step 3 of .* has no rollout 2 in a group a/c\. Did you mean a/b\?"),
        ("3/a/b/7", r"no rollout 7 in a group a/b\. Its rollouts are 1 to 2\."),
        ("4/a/b/2", r"has no rollouts of step 4; it has 3 to 3"),
        ("3/2", r"--rollout 3/2: it should be step/group/index, such as 12/000012-0003/5\."),
        ("x/a/2", r"should be step/group/index"),
        ("3", r"should be step/group/index"),
    ],
)
def test_a_rollout_that_is_not_there(run: Path, named: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        shown(run, "--rollout", named)


def test_text_comes_from_the_runs_own_tokenizer(run: Path, make_tokenizer: Callable[[Path], None]) -> None:
    make_tokenizer(run / "checkpoints" / "step-000003" / "model")
    told = shown(run, "--rollout", "3/a/b/2")
    assert "Tokens are ids" not in told
    assert "w13 w14" in told


@pytest.fixture
def make_tokenizer() -> Callable[[Path], None]:
    """Writes a tokenizer whose token 13 is `w13`."""
    tokenizers = pytest.importorskip("tokenizers")

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        words = {f"w{i}": i for i in range(20)}
        tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))

    return make
