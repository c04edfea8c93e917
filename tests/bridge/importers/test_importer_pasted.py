"""Lines as people paste them: the same two points in every form that is read."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from uptrend.bridge.importers import read_pasted_views, read_views
from uptrend.records import RecordError, RunView

POINTS = [
    {"step": 3, "reward": 0.25, "reward_std": 0.375, "grad_norm": 0.5, "kl": 0.03125},
    {"step": 4, "reward": 0.3125, "reward_std": 0.25, "grad_norm": 0.75, "kl": 0.0625},
]
NAMES = list(POINTS[0])
Row = dict[str, float]


def cells(row: Row) -> list[str]:
    return [f"{value:f}" if name != "step" else str(value) for name, value in row.items()]


Form = Callable[[list[Row]], str]


def table(border: str, rule: str = "", outside: bool = False) -> Form:
    def draw(points: list[Row]) -> str:
        printed = [border.join(line) for line in (NAMES, *map(cells, points))]
        if outside:
            printed = [f"{border}{line}{border}" for line in printed]
        if rule:
            printed.insert(1, rule)
        return "\n".join(printed) + "\n"

    return draw


def each(form: Callable[[Row], str]) -> Form:
    return lambda points: "".join(map(form, points))


def rich(row: Row) -> str:
    drawn = "".join(f"│ {name:<20} │ {value:<12} │\n" for name, value in row.items())
    return f"╭── Metrics ──╮\n┃ Metric ┃ Value ┃\n│────────│──────│\n{drawn}╰─────────────╯\n"


def summary(row: Row) -> str:
    named = {"train/global_step" if name == "step" else f"train/{name}": row[name] for name in row}
    listed = "".join(f"wandb: {name:>24} {value}\n" for name, value in named.items())
    return f"wandb: Run history:\nwandb: train/reward ▁▃█\nwandb: \nwandb: Run summary:\n{listed}"


FORMS: dict[str, Form] = {
    "dictionaries": each(lambda row: f"{row}\n"),
    "dictionaries with numpy": each(
        lambda row: (
            f"{{'step': {row['step']}, 'reward': np.float64({row['reward']}), 'reward_std':"
            f" tensor({row['reward_std']}, device='cuda:0'), 'grad_norm': {row['grad_norm']},"
            f" 'kl': {row['kl']}}}\n"
        )
    ),
    "dictionaries among bars and colors": each(
        lambda row: (
            f"\x1b[32m 1%|▏     | {row['step']}/300 [00:07<1:00:00, 7.1s/it]\x1b[0m\r{row}\n"
        )
    ),
    "dictionaries behind prefixes": each(
        lambda row: f"(TaskRunner pid=123) 2025-03-02 11:20:31 INFO {row}\n"
    ),
    "dictionaries without a brace": each(lambda row: f"{str(row)[1:]}\n"),
    "JSON": each(lambda row: f"{row}\n".replace("'", '"')),
    "JSON over lines": each(
        lambda row: "{\n" + ",\n".join(f'  "{name}": {row[name]}' for name in row) + "\n}\n"
    ),
    "verl": each(
        lambda row: (
            f"(TaskRunner pid=7) step:{row['step']} - critic/score/mean:{row['reward']}"
            f" - actor/grad_norm:{row['grad_norm']} - actor/kl_loss:{row['kl']}\n"
        )
    ),
    "verl, wrapped within a name": each(
        lambda row: (
            f"step:{row['step']} - critic/score/mean:{row['reward']} - actor/grad_\n"
            f"norm:{row['grad_norm']} - actor/kl_loss:{row['kl']} - actor/lr:1e-06\n"
        )
    ),
    "prime-rl": each(
        lambda row: (
            f"14:02:11 SUCCESS Step {row['step']} | Time: 3.2s | Reward: {row['reward']} |"
            f" Grad. Norm: {row['grad_norm']} | Seq. Length: 812.2 tokens/sample\n"
        )
    ),
    "Markdown table": table("|", "|---" * len(NAMES) + "|", outside=True),
    "table without outer borders": table(" | ", " | ".join(["--"] * len(NAMES))),
    "table with wide gaps": table("   "),
    "table with tabs": table("\t"),
    "CSV": table(","),
    "rich's table": each(rich),
    "W&B's summary": each(summary),
    "names and values": each(lambda row: "".join(f"{name}: {row[name]}\n" for name in row) + "\n"),
    "several to a line": each(lambda row: "   ".join(f"{name}={row[name]}" for name in row) + "\n"),
}


def only(views: list[RunView]) -> RunView:
    assert len(views) == 1
    return views[0]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form: str) -> None:
    view = only(read_pasted_views(FORMS[form](POINTS).encode()))
    assert view.steps.tolist() == [3, 4]
    assert view.metrics["reward/mean"].tolist() == [0.25, 0.3125]
    assert view.metrics["gradient/norm/before"].tolist() == [0.5, 0.75]
    if form != "prime-rl":
        assert view.metrics["kl/reference/mean"].tolist() == [0.03125, 0.0625]


@pytest.mark.parametrize("form", FORMS)
def test_one_point_is_enough(form: str) -> None:
    view = only(read_pasted_views(FORMS[form](POINTS[:1]).encode()))
    assert view.steps.tolist() == [3]
    assert view.metrics["reward/mean"].tolist() == [0.25]


def test_gaps_and_values_that_are_not_finite() -> None:
    text = "Step | Training Loss | reward | kl | entropy\n-- | -- | -- | -- | --\n"
    text += "1 | -0.28 | 0.5 | nan | 0.4\n2 | -0.14 | inf | 0.1 | No Log\n"
    view = only(read_pasted_views(text.encode()))
    assert view.nonfinite == {"kl/reference/mean": (1,), "reward/mean": (2,)}
    assert view.curve("learner/entropy/mean")[1].tolist() == [0.4]


def test_parts_of_one_step_are_one_point() -> None:
    text = (
        "SUCCESS Step 14 | Loss: 0.0021 | Entropy: 0.44\nSUCCESS Step 14 | Reward: 0.43 | KL: 0.1\n"
    )
    view = only(read_pasted_views(text.encode()))
    assert view.steps.tolist() == [14]
    assert view.has("loss/total", "learner/entropy/mean", "reward/mean")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "pasted text is empty"),
        (b" \n\t\n", "pasted text is empty"),
        (b"\0\1\2" * 50, "pasted text is a binary file"),
        (b"Why does my run not learn? It has 8 GPUs and 3 epochs.", "no metrics"),
        (b"| a | b |\n|---|---|\n| 1 | 2 |\n", "no metrics"),
        (b"[1, 2", "pasted text is JSON"),
        (b"y\n" * 100_000, "no metrics"),
    ],
)
def test_what_is_no_paste_gets_a_sentence(data: bytes, words: str) -> None:
    with pytest.raises(RecordError, match=words):
        read_pasted_views(data)


def test_gzip_is_unpacked_also_where_it_is_torn() -> None:
    packed = gzip.compress(FORMS["JSON"](POINTS).encode())
    assert len(only(read_pasted_views(packed)).steps) == 2
    assert len(only(read_pasted_views(packed[:-8])).steps) == 2


def test_a_paste_knows_nothing_of_the_folder_that_it_is_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings.json").write_text('{"num_generations": 4, "beta": 0.5}')
    monkeypatch.chdir(tmp_path)
    assert (
        only(read_pasted_views(FORMS["dictionaries"](POINTS).encode())).value("sampling.size")
        is None
    )


def test_a_file_may_hold_a_paste_and_a_folder_takes_none_for_a_run(tmp_path: Path) -> None:
    file = tmp_path / "paste.txt"
    file.write_text(FORMS["W&B's summary"](POINTS), encoding="utf-8")
    assert len(only(read_views(file)).steps) == 2
    (tmp_path / "log.jsonl").write_text(FORMS["JSON"](POINTS))
    assert [Path(view.source).name for view in read_views(tmp_path)] == ["log.jsonl"]
