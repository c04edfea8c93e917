"""A training script of TRL, read and never run: its settings, data and reward functions.

Names are followed to what was last assigned to them above: constants, functions that return a dataset, defaults of
command-line arguments. What is only known by running the script is listed as lost.
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
# Columns that scripts put the right answer into.
ANSWERS = ("answer", "solution", "ground_truth", "target", "label")
# Arguments of `load_dataset` and the options of `[tasks]` that say the same.
LOADED = {"path": "dataset", "name": "config", "split": "split"}
OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
# Raised where a value is only known by running the script, or has another form than is understood.
NOT_KNOWN = (LookupError, TypeError, ArithmeticError, AttributeError)


class Script:
    """What one script says; `flags` are those of its command line."""

    def __init__(self, text: str, path: Path, flags: Mapping[str, Any]) -> None:
        self.settings: dict[str, Any] = {"model_name_or_path": None, **flags}
        self.tasks, self.lost, self.files = dict[str, Any](), dict[str, str](), dict[str, str]()
        self._has_flags, self.rows = bool(flags), 0  # 0 where their number is not known
        self._text, self._defined = text.splitlines(), dict[str, ast.stmt]()
        self._assigned: dict[str, list[ast.expr]] = {f"--{key}": [ast.Constant(v, lineno=0)] for key, v in flags.items()}
        try:
            nodes = list(_in_order(ast.parse(text)))
            for node in nodes:
                self._remember(node)
            trainers = [node for node in nodes if re.fullmatch(r"(?!Async)\w*GRPOTrainer\w*", _called(node))]
            if not trainers:
                raise ConfigError(f"{path} does not call GRPOTrainer(…), so that there is no training to convert.")
            self._read(trainers[0])
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is no Python script that can be read: {error}.") from None

    def _read(self, trainer: Any) -> None:
        given = dict(zip(ARGUMENTS, trainer.args, strict=False)) | {k.arg: k.value for k in trainer.keywords if k.arg}
        for name, kind, prefix in (("args", "GRPOConfig", ""), ("peft_config", "LoraConfig", "peft_config.")):
            self._take_call(given.pop(name, ast.Constant(None)), kind, prefix)
        model = self._follow(given.pop("model", ast.Constant(None)))
        if isinstance(model, ast.Call) and _called(model) == "from_pretrained":
            self._take_call(model, "from_pretrained", "model_init_kwargs.")
            model = model.args[0]
        self.settings["model_name_or_path"] = self._take("model", model)
        self.tasks |= self._dataset(given.pop("train_dataset", ast.Constant(None)))
        if not {"file", "dataset"} & self.tasks.keys():
            self.tasks["file"] = "rows.jsonl"
            self.lost["train_dataset"] = "is only known by running the script: write its rows to rows.jsonl"
        rewards = self._follow(given.pop("reward_funcs", ast.List([])))
        self._copy_rewards(rewards.elts if isinstance(rewards, ast.List | ast.Tuple) else [rewards])
        for name, node in given.items():
            if ast.unparse(self._follow(node)) != "None":
                why = "a part of the rows is held out instead" if name == "eval_dataset" else "has no equivalent"
                self.lost[name] = f"{ast.unparse(node)}: {why}"

    def _remember(self, node: ast.AST) -> None:
        """Note what a statement binds to names."""
        match node:
            case ast.Assign([ast.Tuple(targets)], value):
                for i, target in enumerate(targets):
                    part = ast.copy_location(ast.Subscript(value, ast.Constant(i)), value)
                    self._assigned.setdefault(ast.unparse(target), []).append(part)
            case ast.Assign([target], value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assigned.setdefault(ast.unparse(target), []).append(value)
                if isinstance(target, ast.Name) and node.col_offset == 0:
                    self._defined[target.id] = node
            case ast.ClassDef(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                self._defined[name] = node
                arguments = getattr(node, "args", ast.arguments(args=[], defaults=[]))
                for argument, default in zip(reversed(arguments.args), reversed(arguments.defaults), strict=False):
                    self._assigned.setdefault(argument.arg, []).append(default)
            case ast.Import(names) | ast.ImportFrom(names=names):
                for alias in names:
                    one = ast.Import([alias]) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, [alias], 0)
                    self._defined[(alias.asname or alias.name).partition(".")[0]] = ast.copy_location(one, node)
            case ast.Call(ast.Attribute(attr="add_argument"), [ast.Constant(str() as flag), *_]):
                name = flag.strip("-").replace("-", "_")
                self.settings.pop(name, None)  # a flag of the script's own
                for keyword in node.keywords:
                    if keyword.arg == "default":
                        self._assigned.setdefault(f"--{name}", [keyword.value])

    def _follow(self, node: ast.expr) -> ast.expr:
        """Return the expression behind a name: the last one assigned above it, else the first below."""
        name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        known = self._assigned.get(name) or self._assigned.get(f"--{name.rpartition('.')[2]}") or []
        others = [each for each in known if each.lineno != node.lineno] if name else []
        above = [each for each in others if each.lineno < node.lineno]
        return self._follow((above[-1:] or others)[0]) if others else node

    def _value(self, node: ast.expr) -> Any:
        """Return a value that needs no running."""
        match found := self._follow(node):
            case ast.Constant(value):
                return value
            case ast.List(elts) | ast.Tuple(elts):
                return [self._value(each) for each in elts]
            case ast.Dict():
                return {self._value(key): self._value(value) for key, value in _items(found)}
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
        except NOT_KNOWN:
            self.lost[name] = f"{ast.unparse(node)} is only known by running the script"
            return None

    def _take_call(self, node: ast.expr, kind: str, prefix: str) -> None:
        """Take the arguments of a call, and what is assigned to its attributes afterwards."""
        call = self._follow(node)
        if isinstance(call, ast.Call) and _called(call).endswith(kind):
            for keyword in call.keywords:
                value = self._take(prefix + (keyword.arg or ast.unparse(keyword)), keyword.value)
                self.settings |= flatten({prefix + keyword.arg: value} if keyword.arg else value or {})
        elif ast.unparse(call) != "None" and not self._has_flags:
            self.lost[kind] = f"comes from {ast.unparse(call)}: give the flags of its command line after --"
        for name, values in self._assigned.items():
            if name.startswith(f"{ast.unparse(node)}."):
                name = prefix + name.partition(".")[2]
                self.settings |= flatten({name: self._take(name, values[-1])})

    def _dataset(self, node: ast.expr) -> dict[str, Any]:
        """Return the options of `[tasks]` that read a dataset; empty where it is not known."""
        match found := self._follow(node):
            case ast.Subscript(value, ast.Constant(part)):
                options = self._dataset(value)
                splits = options.get("split")
                return options | {"split": splits[part] if isinstance(splits, list) else part}
            case ast.Call(args=args, keywords=keywords) if _called(found) == "load_dataset":
                named = dict(zip(LOADED, args, strict=False)) | {str(k.arg): k.value for k in keywords}
                values = {key: self._take(f"load_dataset.{key}", value) for key, value in named.items()}
                if values.get("path") in ("json", "csv", "parquet"):
                    return {"file": values.get("data_files")}
                count = re.search(r"\[:(\d+)\]", str(values.get("split")))
                self.rows = int(count[1]) if count else 0
                self.lost |= {f"load_dataset.{key}": f"{v!r} has no equivalent" for key, v in values.items() if key not in LOADED}
                return {LOADED[key]: v for key, v in values.items() if key in LOADED and v is not None}
            case ast.Call(ast.Attribute(ast.Name("Dataset"), "from_json" | "from_csv" | "from_parquet"), [file, *_]):
                return {"file": self._take("train_dataset", file)}
            case ast.Call(ast.Attribute(ast.Name("Dataset"), "from_list" | "from_dict"), [data, *_]):
                return self._rows(self._take("train_dataset", data) or [])
            case ast.Call(ast.Attribute(base, method), args):
                options = self._dataset(base)
                if method == "map" and args:
                    self._map(args[0], options)
                elif method not in ("shuffle", "remove_columns"):
                    self.lost[f"train_dataset.{method}"] = f"({', '.join(map(ast.unparse, args))}) is left out"
                return options
            case ast.Call(ast.Name(name)) if isinstance(function := self._defined.get(name), ast.FunctionDef):
                return self._dataset(_returned(function))
        return {}

    def _rows(self, rows: Any) -> dict[str, Any]:
        if isinstance(rows, dict):
            rows = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
        if not rows:
            return {}
        self.rows = len(rows)
        self.files["rows.jsonl"] = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        is_text = all(isinstance(row.get("prompt"), str) for row in rows)
        return {"file": "rows.jsonl", "prompt": "prompt", **({"chat": False} if is_text else {})}

    def _map(self, node: ast.expr, options: dict[str, Any]) -> None:
        """Turn what `map` puts into columns into templates of the columns before it."""
        function: Any = self._defined.get(ast.unparse(node), node)
        returned = self._follow(function.body if isinstance(function, ast.Lambda) else _returned(function))
        for key, value in _items(returned):
            try:
                name, row = self._value(key), function.args.args[0].arg
                said = self._follow(value)
                if name != "prompt" or not isinstance(said, ast.List):
                    options |= {name: self._template(said, row)} | ({"chat": False} if name == "prompt" else {})
                    continue
                messages = [{self._value(key): each for key, each in _items(self._follow(one))} for one in said.elts]
                *first, last = [(self._value(one["role"]), one["content"]) for one in messages]
                options |= {"chat": True, "prompt": self._template(last[1], row)}
                options |= {role: self._value(content) for role, content in first}
            except NOT_KNOWN as error:
                self.lost[f"train_dataset.map {ast.unparse(key)}"] = f"{error} is left out"
        if not isinstance(returned, ast.Dict):
            self.lost["train_dataset.map"] = f"{ast.unparse(node)} is left out"
        for name in options.keys() - {*LOADED.values(), "file", "prompt", "chat", "system", "answer"}:
            self.lost[f"train_dataset.map {name}"] = f"{options.pop(name)!r} is left out"

    def _template(self, node: ast.expr, row: str) -> str:
        """Return a text with {columns}, or a column's plain name."""

        def text(node: ast.expr) -> str:
            match found := self._follow(node):
                case ast.Subscript(ast.Name(name), ast.Constant(str() as column)) if name == row:
                    return f"{{{column}}}"
                case ast.FormattedValue(value):
                    return text(value)
                case ast.JoinedStr(values):
                    return "".join(map(text, values))
                case ast.BinOp(left, ast.Add(), right):
                    return text(left) + text(right)
            return str(self._value(found)).replace("{", "{{").replace("}", "}}")

        found = text(node)
        return found[1:-1] if re.fullmatch(r"\{\w+\}", found) else found

    def _copy_rewards(self, nodes: list[ast.expr]) -> None:
        """Copy the reward functions into rewards.py, with the imports, constants and functions that they use."""
        made, names, wanted, found = list[str](), list[str](), list[ast.AST](), dict[tuple[int, str], str]()
        for i, node in enumerate(nodes, 1):
            if isinstance(node, ast.Constant):
                self.lost[f"reward_funcs[{i - 1}]"] = f"{node.value!r} is a reward model, which has no equivalent"
                continue
            names.append(node.id if isinstance(node, ast.Name) else f"reward_{i}")
            wanted.append(node)
            if names[-1] not in self._defined:
                wanted[-1] = self._follow(node)
                made.append(f"{names[-1]} = {ast.unparse(wanted[-1])}")
        for node in wanted:  # grows while it is read
            used = {n.id: n.ctx for n in ast.walk(node) if isinstance(n, ast.Name)}
            bound = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
            for name in sorted(used.keys() - bound):
                source = self._defined.get(name)
                is_local = isinstance(node, ast.FunctionDef) and isinstance(used[name], ast.Store)
                if source is not None and source not in wanted and not is_local:
                    wanted.append(source)
                    found[source.lineno, name] = self._source(source)
        if names:
            self.tasks["reward"] = [f"rewards:{name}" for name in names] if len(names) > 1 else f"rewards:{names[0]}"
            self.files["rewards.py"] = "\n".join([*(found[at] for at in sorted(found)), *made]).lstrip() + "\n"
        taken = {argument.arg for node in wanted for argument in ast.walk(node) if isinstance(argument, ast.arg)}
        self.tasks.setdefault("answer", next((name for name in ANSWERS if name in taken), ""))

    def _source(self, node: ast.stmt) -> str:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return ast.unparse(node)
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        text = textwrap.dedent("\n".join(self._text[first - 1 : node.end_lineno]))
        return text if isinstance(node, ast.Assign | ast.AnnAssign) else f"\n\n{text}"


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        yield node
        yield from _in_order(node)


def _called(node: ast.AST) -> str:
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def _items(node: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    return [(key or ast.Constant("**"), value) for key, value in pairs]


def _returned(function: Any) -> ast.expr:
    found = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
    return found[-1] if found else ast.Constant(None)
