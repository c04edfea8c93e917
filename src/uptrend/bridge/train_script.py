"""A training script of TRL, read and never run: its settings, data and reward functions.

Names are followed to what was last assigned to them above, to constants and to defaults of
command-line arguments. Reward functions, and what makes the dataset where that is more than loading
it, are copied with all they use.
"""

import ast
import json
import operator
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from uptrend.config.tables import flatten
from uptrend.records import ConfigError

# Arguments of GRPOTrainer in their order.
ARGUMENTS = ("model", "reward_funcs", "args", "train_dataset", "eval_dataset")
# Parameters in which reward functions take the right answer.
ANSWERS = ("answer", "solution", "ground_truth", "target", "label")
# Arguments of `load_dataset` and the options of `[tasks]` that say the same.
LOADED = {"path": "dataset", "name": "config", "split": "split"}
RUNNING = "is only known by running the script"
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class Script:
    """Settings that one script makes; `flags` are those of its command line."""

    def __init__(self, text: str, path: Path, flags: Mapping[str, Any]) -> None:
        self.settings: dict[str, Any] = dict(flags)
        self.tasks = dict[str, Any]()
        self.lost = dict[str, str]()
        self.files = dict[str, str]()
        self._lines = text.splitlines()
        self._bound = dict[str, list[ast.stmt]]()
        self._has_flags = bool(flags)
        self._assigned = dict[str, list[ast.expr]]()
        self._assigned |= {
            f"--{key}": [ast.Constant(value, lineno=0)] for key, value in flags.items()
        }
        try:
            nodes = list(_in_order(ast.parse(text)))
            for node in nodes:
                self._remember(node)
            trainers = [
                node for node in nodes if re.fullmatch(r"(?!Async)\w*GRPOTrainer\w*", _called(node))
            ]
            if not trainers:
                raise ConfigError(
                    f"{path} does not call GRPOTrainer(…), so that there is no training to convert."
                )
            self._read(trainers[0])
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is no Python script that can be read: {error}.") from None

    def _read(self, trainer: Any) -> None:
        nothing = ast.Constant(None)
        given = dict(zip(ARGUMENTS, trainer.args, strict=False)) | {
            k.arg: k.value for k in trainer.keywords if k.arg
        }
        for name, kind, prefix in (
            ("args", "GRPOConfig", ""),
            ("peft_config", "LoraConfig", "peft_config."),
        ):
            self._take_call(given.pop(name, nothing), kind, prefix)
        model = self._follow(given.pop("model", nothing))
        if isinstance(model, ast.Call) and _called(model) == "from_pretrained":
            self._take_call(model, "from_pretrained", "model_init_kwargs.")
            model = model.args[0]
        self.settings["model_name_or_path"] = self._take("model", model)
        self._read_data(given.pop("train_dataset", nothing))
        self.settings = {
            key: value for key, value in self.settings.items() if not key.startswith("dataset_")
        }
        rewards = self._follow(given.pop("reward_funcs", ast.List([])))
        self._copy_rewards(rewards.elts if isinstance(rewards, ast.List | ast.Tuple) else [rewards])
        for name, node in given.items():
            if ast.unparse(self._follow(node)) != "None":
                why = (
                    "a part of the rows is held out instead"
                    if name == "eval_dataset"
                    else "it has no equivalent"
                )
                self.lost[name] = f"{ast.unparse(node)}: {why}"

    def _remember(self, node: ast.AST) -> None:
        """Note what a statement binds to names."""
        match node:
            case (
                ast.Assign([target], value)
                | ast.AnnAssign(target=target, value=ast.expr() as value)
            ):
                for i, each in enumerate(
                    target.elts if isinstance(target, ast.Tuple) else [target]
                ):
                    part = ast.copy_location(ast.Subscript(value, ast.Constant(i)), value)
                    self._assigned.setdefault(ast.unparse(each), []).append(
                        value if each is target else part
                    )
                    self._bound.setdefault(ast.unparse(each), []).append(node)
            case ast.ClassDef(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                self._bound[name] = [node]
            case ast.Import(names) | ast.ImportFrom(names=names):
                for alias in names:
                    one = (
                        ast.Import([alias])
                        if isinstance(node, ast.Import)
                        else ast.ImportFrom(node.module, [alias], 0)
                    )
                    self._bound[(alias.asname or alias.name).partition(".")[0]] = [
                        ast.copy_location(one, node)
                    ]
            case ast.Call(ast.Attribute(attr="add_argument"), [ast.Constant(str() as flag), *_]):
                name = flag.strip("-").replace("-", "_")
                self.settings.pop(name, None)  # a flag of the script's own
                for default in (
                    keyword.value for keyword in node.keywords if keyword.arg == "default"
                ):
                    self._assigned.setdefault(f"--{name}", [default])

    def _follow(self, node: ast.expr) -> ast.expr:
        """Return the expression behind a name: the last one assigned above it, else the first
        below.
        """
        name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        known = self._assigned.get(name) or self._assigned.get(f"--{name.rpartition('.')[2]}") or []
        others = [each for each in known if each.lineno != node.lineno] if name else []
        above = [each for each in others if each.lineno < node.lineno]
        return self._follow((above[-1:] or others)[0]) if others else node

    def _value(self, node: ast.expr) -> Any:
        """Return a value that needs no running; a LookupError where there is none."""
        match found := self._follow(node):
            case ast.Constant(value):
                return value
            case ast.List(elts) | ast.Tuple(elts):
                return [self._value(each) for each in elts]
            case ast.Dict(keys, values):
                pairs = zip(keys, values, strict=True)
                return {
                    self._value(key or ast.Name("**", lineno=0)): self._value(value)
                    for key, value in pairs
                }
            case ast.Call(ast.Name("dict"), [], keywords):
                return {keyword.arg: self._value(keyword.value) for keyword in keywords}
            case ast.UnaryOp(ast.USub(), operand):
                return -self._value(operand)
            case ast.BinOp(left, op, right):
                return OPERATORS[type(op)](self._value(left), self._value(right))
            case ast.Attribute(ast.Name("torch"), name):
                return name
            case ast.JoinedStr(values):
                return "".join(str(self._value(each)) for each in values)
            case ast.FormattedValue(value):
                return self._value(value)
        raise LookupError(ast.unparse(found))

    def _take(self, name: str, node: ast.expr) -> Any:
        """Return a value; None where it is not known, which is listed."""
        try:
            return self._value(node)
        except (LookupError, TypeError, ArithmeticError):
            self.lost[name] = f"{ast.unparse(node)} {RUNNING}"
            return None

    def _take_call(self, node: ast.expr, kind: str, prefix: str) -> None:
        """Take the arguments of a call, and what is assigned to its attributes afterwards."""
        call = self._follow(node)
        if isinstance(call, ast.Call) and _called(call).endswith(kind):
            for keyword in call.keywords:
                value = self._take(prefix + (keyword.arg or ast.unparse(keyword)), keyword.value)
                self.settings |= flatten(
                    {prefix + keyword.arg: value} if keyword.arg else value or {}
                )
        elif ast.unparse(call) != "None" and not self._has_flags:
            self.lost[kind] = (
                f"comes from {ast.unparse(call)}: give the flags of its command line with --flags"
            )
        for name, values in self._assigned.items():
            if name.startswith(f"{ast.unparse(node)}."):
                key = prefix + name.partition(".")[2]
                self.settings |= flatten({key: self._take(key, values[-1])})

    def _read_data(self, node: ast.expr) -> None:
        """Read a dataset that is loaded or written out; what makes any other one is copied into
        rows.py.
        """
        found = self._follow(node)
        values = dict[str, Any]()
        rows: Any = []
        try:
            if isinstance(found, ast.Call) and _called(found) == "load_dataset":
                named = dict(zip(LOADED, found.args, strict=False)) | {
                    str(k.arg): k.value for k in found.keywords
                }
                values = {key: self._value(value) for key, value in named.items()}
            elif isinstance(found, ast.Call) and _called(found) in (
                "from_json",
                "from_csv",
                "from_parquet",
            ):
                values = {"data_files": self._value(found.args[0])}
            elif isinstance(found, ast.Call) and _called(found) in ("from_list", "from_dict"):
                rows = self._value(found.args[0])
        except (LookupError, TypeError, ArithmeticError):
            values = {}
        if isinstance(rows, dict):
            rows = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
        if rows:
            self.tasks |= {"file": "rows.jsonl", "train": len(rows)}
            self.files["rows.jsonl"] = "".join(
                json.dumps(row, ensure_ascii=False) + "\n" for row in rows
            )
            self.tasks |= (
                {"chat": False} if all(isinstance(row.get("prompt"), str) for row in rows) else {}
            )
        elif isinstance(values.get("data_files"), str):
            self.tasks["file"] = values["data_files"]
        elif isinstance(values.get("path"), str) and values.keys() <= LOADED.keys():
            self.tasks |= {LOADED[key]: value for key, value in values.items() if value is not None}
        else:
            self.tasks["file"] = "rows.jsonl"
            self.lost["train_dataset"] = (
                f"{RUNNING}: look at rows.py, and run it once to write rows.jsonl"
            )
            made = (
                "rows ="
                f" {ast.unparse(node)}\nrows.to_json(Path(__file__).with_name('rows.jsonl'))\n"
            )
            self.files["rows.py"] = f"from pathlib import Path\n{self._closure([node])}\n\n{made}"
            # TRL sends texts as they are, and messages through the chat template.
            self.tasks["chat"] = bool(re.search("['\"]role['\"]", self.files["rows.py"]))
        if "chat" not in self.tasks and not rows:
            self.lost["tasks.chat"] = (
                "set it to false where prompts are texts: TRL sends them without a chat template"
            )

    def _copy_rewards(self, nodes: list[ast.expr]) -> None:
        """Copy the reward functions into rewards.py."""
        names = list[str]()
        made = list[str]()
        for i, node in enumerate(nodes, 1):
            if isinstance(node, ast.Constant):
                self.lost[f"reward_funcs[{i - 1}]"] = (
                    f"{node.value!r}: a reward model has no equivalent"
                )
                continue
            if isinstance(node, ast.Name) and node.id not in self._bound:
                self.lost[f"reward_funcs[{i - 1}]"] = f"{node.id} is not defined in the script"
                continue
            names.append(node.id if isinstance(node, ast.Name) else f"reward_{i}")
            made += [] if isinstance(node, ast.Name) else [f"{names[-1]} = {ast.unparse(node)}"]
        written = [f"rewards.py:{name}" for name in names]
        self.tasks |= {"reward": written if len(names) > 1 else written[0]} if names else {}
        taken = set[str]()
        if names:
            self.files["rewards.py"] = "\n".join([self._closure(nodes).lstrip(), *made, ""])
            taken = {
                node.arg
                for node in ast.walk(ast.parse(self.files["rewards.py"]))
                if isinstance(node, ast.arg)
            }
        self.tasks["answer"] = next((name for name in ANSWERS if name in taken), "")

    def _closure(self, nodes: list[ast.expr]) -> str:
        """Return the source of all statements that expressions need, in their order."""
        needed: list[ast.AST] = [*nodes]
        for node in needed:  # grows while it is read
            names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
            inner = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                inner |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
            for name in sorted({each.id for each in names} - inner):
                needed += [
                    statement for statement in self._bound.get(name, ()) if statement not in needed
                ]
        statements = [each for each in needed if isinstance(each, ast.stmt)]
        return "\n".join(
            self._source(each) for each in sorted(statements, key=lambda each: each.lineno)
        )

    def _source(self, node: ast.stmt) -> str:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return ast.unparse(node)
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        text = textwrap.dedent("\n".join(self._lines[first - 1 : node.end_lineno]))
        return text if isinstance(node, ast.Assign | ast.AnnAssign) else f"\n\n{text}"


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        yield node
        yield from _in_order(node)


def _called(node: ast.AST) -> str:
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
