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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from uptrend.config.tables import flatten
from uptrend.records import ConfigError

# Arguments of GRPOTrainer in their order.
TRAINER_ARGUMENTS = ("model", "reward_funcs", "args", "train_dataset", "eval_dataset")
# Parameters in which reward functions take the right answer.
ANSWER_PARAMETERS = ("answer", "solution", "ground_truth", "target", "label")
# Arguments of `load_dataset` and the options of `[tasks]` that mean the same.
TASKS_OPTIONS = {"path": "dataset", "name": "config", "split": "split"}
# Functions that load a dataset from one file, and those that take its rows.
FILE_LOADERS = ("from_json", "from_csv", "from_parquet")
ROW_LOADERS = ("from_list", "from_dict")
NEEDS_RUNNING = "is only known by running the script"
BINARY_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
# Errors of values that can't be computed without running the script.
UNKNOWN_VALUE_ERRORS = (LookupError, TypeError, ArithmeticError)
# GRPOTrainer and its subclasses, but not the asynchronous one.
_TRAINER_NAME = re.compile(r"(?!Async)\w*GRPOTrainer\w*")


class Script:
    """Settings, data and reward functions of one script; `flags` are those of its command line."""

    def __init__(self, text: str, path: Path, flags: Mapping[str, Any]) -> None:
        self.settings: dict[str, Any] = dict(flags)
        self.tasks: dict[str, Any] = {}
        self.lost: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self._lines = text.splitlines()
        self._has_flags = bool(flags)
        # Statements that bind each name.
        self._statements: dict[str, list[ast.stmt]] = {}
        # Expressions that are assigned to each name; a flag's name begins with dashes.
        self._expressions: dict[str, list[ast.expr]] = {}
        for key, value in flags.items():
            self._expressions[f"--{key}"] = [ast.Constant(value, lineno=0)]
        try:
            nodes = list(_in_order(ast.parse(text)))
            for node in nodes:
                self._remember(node)
            trainers = [node for node in nodes if _TRAINER_NAME.fullmatch(_called_name(node))]
            if not trainers:
                raise ConfigError(
                    f"{path} does not call GRPOTrainer(…), so that there is no training to convert."
                )
            self._read_trainer(trainers[0])
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is no Python script that can be read: {error}.") from None

    def _read_trainer(self, trainer: Any) -> None:
        none = ast.Constant(None)
        arguments = dict(zip(TRAINER_ARGUMENTS, trainer.args, strict=False))
        for keyword in trainer.keywords:
            if keyword.arg:
                arguments[keyword.arg] = keyword.value

        self._take_call(arguments.pop("args", none), "GRPOConfig", "")
        self._take_call(arguments.pop("peft_config", none), "LoraConfig", "peft_config.")
        model = self._follow(arguments.pop("model", none))
        if isinstance(model, ast.Call) and _called_name(model) == "from_pretrained":
            self._take_call(model, "from_pretrained", "model_init_kwargs.")
            model = model.args[0]
        self.settings["model_name_or_path"] = self._take("model", model)

        self._read_data(arguments.pop("train_dataset", none))
        for name in list(self.settings):
            if name.startswith("dataset_"):
                del self.settings[name]
        rewards = self._follow(arguments.pop("reward_funcs", ast.List([])))
        if isinstance(rewards, ast.List | ast.Tuple):
            self._copy_rewards(rewards.elts)
        else:
            self._copy_rewards([rewards])

        for name, node in arguments.items():
            if ast.unparse(self._follow(node)) == "None":
                continue
            reason = "it has no equivalent"
            if name == "eval_dataset":
                reason = "a part of the rows is held out instead"
            self.lost[name] = f"{ast.unparse(node)}: {reason}"

    def _remember(self, node: ast.AST) -> None:
        """Note what a statement binds to names."""
        match node:
            case (
                ast.Assign([target], value)
                | ast.AnnAssign(target=target, value=ast.expr() as value)
            ):
                if isinstance(target, ast.Tuple):
                    for index, element in enumerate(target.elts):
                        part = ast.Subscript(value, ast.Constant(index))
                        self._remember_value(element, ast.copy_location(part, value), node)
                else:
                    self._remember_value(target, value, node)
            case ast.ClassDef(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                self._statements[name] = [node]
            case ast.Import(aliases) | ast.ImportFrom(names=aliases):
                # One statement per name, so that only those that are needed are copied.
                for alias in aliases:
                    single: ast.stmt = ast.Import([alias])
                    if isinstance(node, ast.ImportFrom):
                        single = ast.ImportFrom(node.module, [alias], 0)
                    name = (alias.asname or alias.name).partition(".")[0]
                    self._statements[name] = [ast.copy_location(single, node)]
            case ast.Call(ast.Attribute(attr="add_argument"), [ast.Constant(str() as flag), *_]):
                name = flag.strip("-").replace("-", "_")
                self.settings.pop(name, None)  # a flag of the script's own
                for keyword in node.keywords:
                    if keyword.arg == "default":
                        self._expressions.setdefault(f"--{name}", [keyword.value])

    def _remember_value(self, target: ast.expr, value: ast.expr, statement: ast.stmt) -> None:
        name = ast.unparse(target)
        self._expressions.setdefault(name, []).append(value)
        self._statements.setdefault(name, []).append(statement)

    def _follow(self, node: ast.expr) -> ast.expr:
        """Return the expression behind a name: the last one assigned above it, else the first
        below.
        """
        if not isinstance(node, ast.Name | ast.Attribute):
            return node
        name = ast.unparse(node)
        flag = f"--{name.rpartition('.')[2]}"
        assigned = self._expressions.get(name) or self._expressions.get(flag, [])
        elsewhere = [value for value in assigned if value.lineno != node.lineno]
        if not elsewhere:
            return node
        above = [value for value in elsewhere if value.lineno < node.lineno]
        return self._follow(above[-1] if above else elsewhere[0])

    def _evaluate(self, node: ast.expr) -> Any:
        """Return a value that needs no running; a LookupError if there is none."""
        match followed := self._follow(node):
            case ast.Constant(value):
                return value
            case ast.List(elements) | ast.Tuple(elements):
                return [self._evaluate(element) for element in elements]
            case ast.Dict(keys, values):
                table: dict[Any, Any] = {}
                for key, value in zip(keys, values, strict=True):
                    # A `**` has no key, and is not known.
                    key = key or ast.Name("**", lineno=0)
                    table[self._evaluate(key)] = self._evaluate(value)
                return table
            case ast.Call(ast.Name("dict"), [], keywords):
                return {keyword.arg: self._evaluate(keyword.value) for keyword in keywords}
            case ast.UnaryOp(ast.USub(), operand):
                return -self._evaluate(operand)
            case ast.BinOp(left, op, right):
                compute = BINARY_OPERATORS[type(op)]
                return compute(self._evaluate(left), self._evaluate(right))
            case ast.Attribute(ast.Name("torch"), name):
                return name
            case ast.JoinedStr(pieces):
                return "".join(str(self._evaluate(piece)) for piece in pieces)
            case ast.FormattedValue(value):
                return self._evaluate(value)
        raise LookupError(ast.unparse(followed))

    def _take(self, name: str, node: ast.expr) -> Any:
        """Return a value; None if it is not known, which is listed."""
        try:
            return self._evaluate(node)
        except UNKNOWN_VALUE_ERRORS:
            self.lost[name] = f"{ast.unparse(node)} {NEEDS_RUNNING}"
            return None

    def _take_call(self, node: ast.expr, function: str, prefix: str) -> None:
        """Take the arguments of a call, and what is assigned to its attributes afterwards."""
        call = self._follow(node)
        if isinstance(call, ast.Call) and _called_name(call).endswith(function):
            for keyword in call.keywords:
                if keyword.arg:
                    name = prefix + keyword.arg
                    self.settings |= flatten({name: self._take(name, keyword.value)})
                else:
                    # `**options`
                    options = self._take(prefix + ast.unparse(keyword), keyword.value)
                    self.settings |= flatten(options or {})
        elif ast.unparse(call) != "None" and not self._has_flags:
            self.lost[function] = (
                f"comes from {ast.unparse(call)}: give the flags of its command line with --flags"
            )
        for name, values in self._expressions.items():
            if name.startswith(f"{ast.unparse(node)}."):
                key = prefix + name.partition(".")[2]
                self.settings |= flatten({key: self._take(key, values[-1])})

    def _read_data(self, node: ast.expr) -> None:
        """Read a dataset that is loaded or written out; what makes any other one is copied into
        rows.py.
        """
        dataset = self._follow(node)
        options: dict[str, Any] = {}
        rows: Any = []
        try:
            if isinstance(dataset, ast.Call) and _called_name(dataset) in ROW_LOADERS:
                rows = self._evaluate(dataset.args[0])
            elif isinstance(dataset, ast.Call):
                options = self._load_options(dataset)
        except UNKNOWN_VALUE_ERRORS:
            pass
        if isinstance(rows, dict):
            values_by_row = zip(*rows.values(), strict=True)
            rows = [dict(zip(rows, values, strict=True)) for values in values_by_row]

        if rows:
            self._write_rows(rows)
            return
        if isinstance(options.get("data_files"), str):
            self.tasks["file"] = options["data_files"]
        elif isinstance(options.get("path"), str) and options.keys() <= TASKS_OPTIONS.keys():
            for name, value in options.items():
                if value is not None:
                    self.tasks[TASKS_OPTIONS[name]] = value
        else:
            self._copy_data(node)
        if "chat" not in self.tasks:
            self.lost["tasks.chat"] = (
                "set it to false where prompts are texts: TRL sends them without a chat template"
            )

    def _load_options(self, call: ast.Call) -> dict[str, Any]:
        """Return the arguments of a call that loads a dataset, `data_files` if it is from a file;
        empty for any other call.
        """
        function = _called_name(call)
        if function in FILE_LOADERS:
            return {"data_files": self._evaluate(call.args[0])}
        if function != "load_dataset":
            return {}
        arguments = dict(zip(TASKS_OPTIONS, call.args, strict=False))
        for keyword in call.keywords:
            arguments[str(keyword.arg)] = keyword.value
        return {name: self._evaluate(value) for name, value in arguments.items()}

    def _write_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a dataset's rows into rows.jsonl."""
        self.tasks["file"] = "rows.jsonl"
        self.tasks["train"] = len(rows)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        self.files["rows.jsonl"] = "".join(lines)
        if all(isinstance(row.get("prompt"), str) for row in rows):
            self.tasks["chat"] = False

    def _copy_data(self, node: ast.expr) -> None:
        """Copy what makes a dataset into rows.py, which writes rows.jsonl."""
        self.tasks["file"] = "rows.jsonl"
        self.lost["train_dataset"] = (
            f"{NEEDS_RUNNING}: look at rows.py, and run it once to write rows.jsonl"
        )
        script = (
            "from pathlib import Path\n"
            f"{self._source_of_needed([node])}\n\n"
            f"rows = {ast.unparse(node)}\n"
            "rows.to_json(Path(__file__).with_name('rows.jsonl'))\n"
        )
        self.files["rows.py"] = script
        # TRL sends texts as they are, and messages through the chat template.
        self.tasks["chat"] = bool(re.search("['\"]role['\"]", script))

    def _copy_rewards(self, nodes: list[ast.expr]) -> None:
        """Copy the reward functions into rewards.py."""
        names: list[str] = []
        assignments: list[str] = []
        for index, node in enumerate(nodes):
            if isinstance(node, ast.Constant):
                self.lost[f"reward_funcs[{index}]"] = (
                    f"{node.value!r}: a reward model has no equivalent"
                )
            elif not isinstance(node, ast.Name):
                name = f"reward_{index + 1}"
                names.append(name)
                assignments.append(f"{name} = {ast.unparse(node)}")
            elif node.id in self._statements:
                names.append(node.id)
            else:
                self.lost[f"reward_funcs[{index}]"] = f"{node.id} is not defined in the script"

        parameters: set[str] = set()
        if names:
            rewards = [f"rewards.py:{name}" for name in names]
            self.tasks["reward"] = rewards if len(rewards) > 1 else rewards[0]
            source = self._source_of_needed(nodes).lstrip()
            copied = "\n".join([source, *assignments, ""])
            self.files["rewards.py"] = copied
            parameters = _parameters_in(ast.parse(copied))
        known = (name for name in ANSWER_PARAMETERS if name in parameters)
        self.tasks["answer"] = next(known, "")

    def _source_of_needed(self, expressions: Sequence[ast.expr]) -> str:
        """Return the source of all statements that expressions need, in their order."""
        needed: list[ast.AST] = [*expressions]
        for node in needed:  # grows while it is read
            names = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
            own_names = _parameters_in(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                own_names |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
            for outer_name in sorted({name.id for name in names} - own_names):
                for statement in self._statements.get(outer_name, ()):
                    if statement not in needed:
                        needed.append(statement)
        statements = [node for node in needed if isinstance(node, ast.stmt)]
        statements.sort(key=lambda statement: statement.lineno)
        return "\n".join(map(self._source, statements))

    def _source(self, node: ast.stmt) -> str:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return ast.unparse(node)
        decorators = getattr(node, "decorator_list", ())
        first_line = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        text = textwrap.dedent("\n".join(self._lines[first_line - 1 : node.end_lineno]))
        return text if isinstance(node, ast.Assign | ast.AnnAssign) else f"\n\n{text}"


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        yield node
        yield from _in_order(node)


def _called_name(node: ast.AST) -> str:
    """Return the name of the function that a node calls, without its module; empty for any other
    node.
    """
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def _parameters_in(tree: ast.AST) -> set[str]:
    """Return the parameters of all functions in a tree."""
    return {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
