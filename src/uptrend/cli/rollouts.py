"""`uptrend rollouts`: play recorded rollouts again, write them as Markdown; and print one rollout
for `uptrend runs show`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from uptrend.cli.console import AsJson, RunArgument, make_app, open_run, print_json
from uptrend.config.load import nearest
from uptrend.policy.known import tokenizer_of
from uptrend.present.formatting import NO_VALUE, duration, markdown_table, number, plural, visible
from uptrend.present.terminal import columns, terminal
from uptrend.records import RecordError, Role, Run, RunView, rollouts_of
from uptrend.records.files import explain_disk_errors
from uptrend.records.schema import TOKEN_COLUMNS
from uptrend.records.table import RecordedRollout, RolloutGroup, RolloutTable, Row

if TYPE_CHECKING:
    from uptrend.runner.rollouts import Repeated

app = make_app("Play recorded rollouts again; write them as Markdown.")
Decode = Callable[[Sequence[int]], str]
ROLE_COLORS = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}
TOKEN_COLORS = {Role.PROMPT: "cyan", Role.MODEL: "green", Role.TOOL: "yellow"}
# Token ids of a span that are printed without a tokenizer.
MAX_IDS_PRINTED = 12
# Size to which a terminal shortens a message that the model did not write.
MAX_LINES = 12
MAX_CHARACTERS = 1000
Heldout = Annotated[
    bool, typer.Option("--heldout", help="Rollouts of the evaluation after a step.")
]


@app.command("verify")
def verify_rollouts(
    run: RunArgument,
    rollout: Annotated[
        str, typer.Option(help="Rollout, group or step to play again: STEP/GROUP/INDEX.")
    ] = "",
    step: Annotated[
        int | None, typer.Option(min=0, help="Play all rollouts of this step again.")
    ] = None,
    heldout: Heldout = False,
    as_json: AsJson = False,
) -> None:
    """Play recorded rollouts again, without a model.

    \b
    uptrend rollouts verify quickstart --rollout 12/3/5
    uptrend rollouts verify quickstart --step 12 --json
    uptrend rollouts verify quickstart --step 20 --heldout

    Tasks are opened as the run did, with its options and seeds, and get its model's messages. Their
    replies and rewards are compared with the record; exit code 1 if something differs.
    """
    from uptrend.runner.rollouts import repeat_rollouts

    opened = open_run(run)
    has_step = step is not None
    has_rollout = bool(rollout)
    if has_step == has_rollout or (heldout and has_rollout):
        raise RecordError(
            "Name what to play again: --rollout STEP/GROUP/INDEX, or --step STEP (with --heldout or"
            " not)."
        )
    if heldout:
        recorded = rollouts_of(opened.eval_rollouts(step or 0))
    else:
        table, groups, row = find_rollouts(opened, rollout or str(step))
        if row is None:
            rows = sorted(chain.from_iterable(group.rollout_by_index.values() for group in groups))
        else:
            rows = [row]
        rollouts = rollouts_of(table.table)
        recorded = [rollouts[row] for row in rows]
    repeated = repeat_rollouts(opened, recorded, heldout)
    differing = [each for each in repeated if each.differences]
    if as_json:
        tables = [_repetition_table(each) for each in repeated]
        print_json({"run": str(opened.path), "same": not differing, "rollouts": tables})
    else:
        _print_differences(terminal(), differing, len(repeated))
    raise typer.Exit(1 if differing else 0)


def _repetition_table(repeated: "Repeated") -> dict[str, Any]:
    recorded = repeated.recorded
    again = repeated.again
    return {
        "step": recorded.step,
        "group": recorded.group,
        "index": recorded.index,
        "turns": sum(message.role == "assistant" for message in again.messages),
        "same": not repeated.differences,
        "reward": None if again.reward is None else again.reward.total,
        "differences": [asdict(difference) for difference in repeated.differences],
    }


def _print_differences(console: Console, differing: Sequence["Repeated"], n_repeated: int) -> None:
    for repeated in differing:
        console.print(Text(f"{repeated.recorded.name} differs", "bold red"))
        # Only the first difference: later ones may follow from it.
        difference = repeated.differences[0]
        for label, value in (("recorded", difference.recorded), ("now", difference.now)):
            heading = (f"{difference.where}, {label}: ", "bold")
            console.print(Text.assemble(heading, _shorten(str(value), "--json")))
    n_same = n_repeated - len(differing)
    console.print(f"{n_same} of {plural(n_repeated, 'rollout')} came out the same.")


@app.command("write")
def write_rollouts(
    run: RunArgument,
    to: Annotated[Path, typer.Option(help="Folder to make.")],
    step: Annotated[int | None, typer.Option(min=0, help="Only this step. Default: all.")] = None,
    heldout: Heldout = False,
    as_json: AsJson = False,
) -> None:
    """Write rollouts as readable Markdown files.

    \b
    uptrend rollouts write quickstart --to readable
    uptrend rollouts write quickstart --to heldout --step 20 --heldout

    A run of ours, or another trainer's folder with the rollouts that it saved. Each rollout becomes
    STEP-GROUP-INDEX.md; index.md and index.json list them all.
    """
    opened = open_rollouts(run)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise RecordError(
            f"{to} exists and is not an empty folder: nothing is overwritten. Choose another --to."
        )
    steps = [line["step"] for line in opened.eval_lines] if heldout else opened.rollout_steps
    if not steps:
        raise RecordError(f"{opened.path} has no rollouts{' of evaluations' if heldout else ''}.")
    if step is not None:
        steps = [step]
    index: list[Row] = []
    stem_counts = Counter[str]()
    with explain_disk_errors(to):
        for each in steps:
            records = opened.eval_rollouts(each) if heldout else opened.rollouts(each)
            table = RolloutTable(each, records)
            to.mkdir(parents=True, exist_ok=True)
            for row in range(len(table)):
                rollout = table.rollout(row)
                entry = _index_entry(rollout, stem_counts)
                index.append(entry)
                (to / entry["file"]).write_text("".join(_markdown(rollout)), encoding="utf-8")
        _write_index(to, f"Rollouts of {opened.name}", index)
    if as_json:
        print_json({"folder": str(to), "rollouts": len(index)})
    else:
        typer.echo(f"Wrote {plural(len(index), 'rollout')}, index.md and index.json to {to}")


def _write_index(folder: Path, title: str, index: Sequence[Row]) -> None:
    headings = ("rollout", "task", "reward", "ended", "turns", "commands", "seconds")
    rows = []
    for entry in index:
        row = [
            f"[{entry['rollout']}]({entry['file']})",
            f"{entry['family']} {entry['task']}",
            number(entry["reward"]),
            str(entry["ended"]),
            number(entry["turns"]),
            number(entry["commands"]),
            number(entry["seconds"]),
        ]
        rows.append(row)
    page = f"# {title}\n\n{markdown_table(headings, rows)}\n"
    (folder / "index.md").write_text(page, encoding="utf-8")
    text = json.dumps(index, indent=2, ensure_ascii=False) + "\n"
    (folder / "index.json").write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class LogWithRollouts:
    """Run of another trainer's log, as far as its rollouts are read."""

    path: Path
    view: RunView

    @property
    def name(self) -> str:
        return self.view.name or self.path.resolve().name

    @property
    def rollout_steps(self) -> list[int]:
        return list(self.view.rollout_steps)

    @property
    def eval_lines(self) -> list[dict[str, Any]]:
        return [dict(line) for line in self.view.evals]

    def rollouts(self, step: int) -> pa.Table:
        """Read the rollouts of a step."""
        return self.view.read_rollouts(step)

    def eval_rollouts(self, step: int) -> pa.Table:
        """Read the rollouts of the evaluation after a step."""
        return self.view.read_heldout(step)


def open_rollouts(name: str) -> Run | LogWithRollouts:
    """Open a run of ours, or the longest run with rollouts of another trainer's log."""
    path = Path(name)
    if not path.exists() or (path / "run.json").exists():
        return open_run(name)
    from uptrend.runner import views_of

    views = [view for view in views_of(path) if view.rollout_steps]
    if not views:
        raise RecordError(f"{path} holds no rollouts, of ours or of another trainer.")
    return LogWithRollouts(path, views[0])


def find_rollouts(
    run: Run | LogWithRollouts, name: str
) -> tuple[RolloutTable, list[RolloutGroup], int | None]:
    """Return a step's rollouts, and the groups that STEP or STEP/GROUP names; for STEP/GROUP/INDEX
    also the rollout's row.
    """
    step, _, rest = name.partition("/")
    if not step.isdigit():
        raise RecordError(
            f"--rollout {name}: it should be STEP, STEP/GROUP or STEP/GROUP/INDEX, such as 12/3/5."
        )
    table = RolloutTable(int(step), run.rollouts(int(step)))
    if not rest:
        return table, table.groups, None

    groups_by_name = {str(group.number): group for group in table.groups}
    groups_by_name |= {group.name: group for group in table.groups}
    # Other trainers' runs name groups freely, also with slashes: the whole is tried first.
    group_name = rest
    index: int | None = None
    match = re.fullmatch(r"(.+)/(\d+)", rest)
    if match and rest not in groups_by_name:
        group_name = match[1]
        index = int(match[2])
    if group_name not in groups_by_name:
        numbers = [group.number for group in table.groups] or [0]
        hint = nearest(group_name, groups_by_name)
        if not hint:
            hint = f" It has {len(table.groups)}: {min(numbers)} to {max(numbers)}."
        raise RecordError(f"Step {step} of {run.path} has no group {group_name}.{hint}")
    group = groups_by_name[group_name]
    if index is None:
        return table, [group], None
    row_by_index = group.rollout_by_index
    if index not in row_by_index:
        raise RecordError(
            f"Step {step} of {run.path} has no rollout {index} in group {group_name}. Its rollouts"
            f" are {min(row_by_index)} to {max(row_by_index)}."
        )
    return table, [group], row_by_index[index]


def _index_entry(rollout: RecordedRollout, stem_counts: Counter[str]) -> Row:
    """Return a rollout's entry in the index, with the file to write; `stem_counts` numbers files,
    because an evaluation may play a task several times.
    """
    facts = rollout.facts
    group = str(facts["group"])
    step = f"{facts['step']:06d}"
    if step not in group:
        group = f"{step}-{group}"
    # Other trainers' runs name groups freely.
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{group}-{facts['index'] or 0:02d}")
    stem_counts[stem] += 1
    file = f"{stem}.md"
    if stem_counts[stem] > 1:
        file = f"{stem}-{stem_counts[stem]}.md"
    keys = ("task", "family", "reward", "correct", "ended", "error", "seconds")
    return {
        "rollout": rollout.name,
        "file": file,
        **{key: facts[key] for key in keys},
        "turns": len(rollout.turns),
        "commands": len(facts.get("commands") or ()),
    }


def _markdown(rollout: RecordedRollout) -> Iterator[str]:
    facts = _headline(rollout.facts)
    if rollout.facts["error"]:
        facts.append(f"error: {rollout.facts['error']}")
    yield f"# {rollout.name}\n\n{_bullets(facts)}"
    for message in rollout.prompt:
        yield f"\n## {message['role']}\n{_fenced(_full_text(message))}"
    for turn_number, turn in enumerate(rollout.turns):
        yield f"\n## Turn {turn_number}\n{_fenced(_full_text(turn.message))}"
        for reply in turn.replies:
            yield f"\n{reply['role']}:\n{_fenced(_full_text(reply))}"
        for command in turn.commands:
            text = _unmentioned_text(command, turn.message)
            yield f"{_fenced(text) if text else ''}\n{_command_ending(command)}\n"
    yield f"\n## Reward\n\n{_bullets(_reward(rollout.facts))}"


def _bullets(facts: Sequence[str]) -> str:
    return "".join(f"- {visible(' '.join(fact.split()))}\n" for fact in facts)


def _fenced(text: str) -> str:
    """Return a block of Markdown whose fence is longer than any in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"\n{fence}text\n{visible(text)}\n{fence}\n"


def print_rollout(
    console: Console, rollout: RecordedRollout, decode: Decode | None, full: bool
) -> None:
    """Print a rollout: prompt, turns with their commands, reward, tokens; messages that the model
    did not write are shortened unless `full`.
    """
    facts = rollout.facts
    has_commands = bool(facts.get("commands"))
    console.print(Text.assemble((rollout.name, "bold"), "  ", "  ".join(_headline(facts))))
    if facts["error"]:
        console.print(Text(f"error: {visible(facts['error'])}", "red"))
    if not has_commands:
        console.print("  ".join(_reward(facts)))
    for message in rollout.prompt:
        _print_message(console, message, full)
    for turn_number, turn in enumerate(rollout.turns):
        prefix = f"turn {turn_number}, " if len(rollout.turns) > 1 else ""
        _print_message(console, turn.message, full=True, prefix=prefix)
        for reply in turn.replies:
            _print_message(console, reply, full)
        for command in turn.commands:
            text = _unmentioned_text(command, turn.message)
            if text:
                console.print(Text(visible(text)) if full else _shorten(text), style="dim")
            console.print(Text(_command_ending(command), "dim"))
    if has_commands:
        # After the commands that earned it; tokens are printed only on request.
        console.print(Text("\n" + "  ".join(_reward(facts)), "bold"))
        if not full:
            return
    has_ids = False
    for sequence in rollout.sequences:
        has_ids = has_ids or bool(sequence["ids"])
        if sequence["ids"] or sequence["roles"]:
            console.print()
            console.print(_spans_table(sequence, decode))
    if decode is None and has_ids:
        console.print(
            "Tokens are ids: neither the run's checkpoints nor its model here have a tokenizer.",
            style="dim",
        )


def _print_message(console: Console, message: Row, full: bool, prefix: str = "") -> None:
    color = ROLE_COLORS.get(message["role"], "")
    heading = (f"\n{prefix}{message['role']}: ", f"bold {color}")
    content = message["content"] or ""
    text = Text.assemble(heading, visible(content) if full else _shorten(content))
    if message["calls"]:
        text.append(f"\ncalls {visible(message['calls'])}", "yellow")
    if message["problem"]:
        text.append(f"\n{visible(message['problem'])}", "red")
    console.print(text)


def _shorten(text: str, option: str = "--full") -> Text:
    """Shorten a text, and name the option that shows all of it."""
    start = "\n".join(text[:MAX_CHARACTERS].split("\n")[:MAX_LINES])
    shortened = Text(visible(start))
    n_left_out = len(text) - len(start)
    if n_left_out > 0:
        note = f"\n… {plural(n_left_out, 'more character')}: {option} shows all"
        shortened.append(note, "dim")
    return shortened


def _headline(facts: Row) -> list[str]:
    """Return facts about a rollout in words."""
    # Other trainers save some of these.
    names = ("task", "family", "ended")
    parts = [f"{name} {facts[name]}" for name in names if facts[name] is not None]
    if facts["seconds"] is not None:
        parts.append(duration(facts["seconds"]))
    if facts.get("commands"):
        parts.append(plural(len(facts["commands"]), "command"))
    if facts.get("sandbox_failures"):
        parts.append(plural(facts["sandbox_failures"], "sandbox failure"))
    if facts["kept"] is False:
        parts.append("not learned from: its group was dead and another was sampled")
    return parts


def _reward(facts: Row) -> list[str]:
    """Return the reward with its parts, and the gold answer."""
    parts = []
    if facts["reward"] is None:
        parts.append("no reward")
    else:
        mark = {True: " correct", False: " wrong", None: ""}[facts["correct"]]
        bounds = ""
        if facts["reward_low"] is not None or facts["reward_high"] is not None:
            bounds = f" of {number(facts['reward_low'])} to {number(facts['reward_high'])}"
        parts.append(f"reward {number(facts['reward'])}{mark}{bounds}")
        for part in facts["parts"] or ():
            weight = f" × {number(part['weight'])}" if part["weight"] != 1 else ""
            parts.append(f"{part['name']} {number(part['value'])}{weight}")
    if facts["answer"]:
        parts.append(f"gold answer {facts['answer']!r}")
    return parts


def _unmentioned_text(command: Row, message: Row) -> str:
    """Return a command unless the message that called it quotes it, and output that no reply
    quotes.
    """
    parts = []
    if command["command"].strip() not in (message["content"] or ""):
        parts.append(f"$ {command['command']}")
    if command.get("said"):
        parts.append(command["said"])
    return "\n".join(parts)


def _command_ending(command: Row) -> str:
    """Return time, exit code and score of a command."""
    parts = [duration(command["seconds"]), f"exit {command['code']}"]
    if command["stopped"]:
        parts.append(f"stopped by {command['stopped']}")
    if command["score"] is not None:
        parts.append(f"score {number(command['score'])}")
    if command["error"]:
        parts.append("error")
    return ", ".join(parts)


def _full_text(message: Row) -> str:
    texts = (message["content"], message["calls"], message["problem"])
    return "\n".join(str(text) for text in texts if text)


def decoder_of(run: Run | LogWithRollouts) -> Decode | None:
    """Return the decoder of the run's tokens; None without a tokenizer."""
    if isinstance(run, LogWithRollouts):
        return None
    tokenizer = tokenizer_of(run)
    if tokenizer is None:
        return None
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def _spans_table(sequence: Row, decode: Decode | None) -> Table:
    """Make one row per span of tokens with the same turn, role, trained or not, attended or not,
    and advantage.
    """
    n_tokens = len(sequence["ids"] or sequence["roles"] or ())
    tokens: dict[str, list[Any]] = {}
    for name in TOKEN_COLUMNS:
        values = sequence[name] or []
        tokens[name] = values if len(values) == n_tokens else [None] * n_tokens
    trained = [None if weight is None else weight != 0 for weight in tokens["weights"]]
    kinds = zip(
        tokens["turns"],
        tokens["roles"],
        trained,
        tokens["attended"],
        tokens["advantages"],
        strict=True,
    )
    trained_marks: dict[bool | None, str | Text] = {
        None: NO_VALUE,
        True: "yes",
        False: Text("no", "dim"),
    }
    attended_marks = {**trained_marks, False: Text("hidden", "red")}
    rows: list[list[str | Text]] = []
    start = 0
    for kind, span in groupby(kinds):
        turn, role, is_trained, attended, advantage = kind
        end = start + len(list(span))
        ids = tokens["ids"][start:end]
        if decode:
            text = decode(ids)
        else:
            text = " ".join(str(each) for each in ids[:MAX_IDS_PRINTED] if each is not None)
            if len(ids) > MAX_IDS_PRINTED:
                text += " …"
        color = TOKEN_COLORS.get(role, "")
        role_name = NO_VALUE if role is None else Role(role).name.lower()
        row: list[str | Text] = [
            number(turn),
            Text(role_name, color),
            str(len(ids)),
            trained_marks[is_trained],
            attended_marks[attended],
            number(advantage),
            number(_mean_of_recorded(tokens["sampler"][start:end])),
            number(_mean_of_recorded(tokens["learner"][start:end])),
            Text(visible(text), color),
        ]
        rows.append(row)
        start = end
    headings = (
        "turn",
        "role",
        "tokens",
        "trained",
        "attended",
        "advantage",
        "sampler",
        "learner",
        "text",
    )
    return columns(*headings, rows=rows, wraps="text")


def _mean_of_recorded(values: Sequence[float | None]) -> float | None:
    recorded = [value for value in values if value is not None]
    if not recorded:
        return None
    return sum(recorded) / len(recorded)
