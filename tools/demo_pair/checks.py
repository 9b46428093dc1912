"""Is an answer right? Numbers and lists are compared, code is run, stories are read for what was asked."""

from __future__ import annotations

import ast
import re
from typing import Any

from .functions import FUNCTIONS

ARITHMETIC = ("sum", "large sum", "difference", "product", "follow", "unit")
STORY_WORDS = (40, 130)
_BY_NAME = {function.name: function for function in FUNCTIONS}
_BUILTINS = {f.__name__: f for f in (max, min, sum, len, sorted, abs, range)}
_NODES = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.If, ast.For, ast.Assign,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod, ast.UnaryOp, ast.USub,
    ast.Compare, ast.Eq, ast.Gt, ast.Lt, ast.Name, ast.Load, ast.Store, ast.Constant,
    ast.Call, ast.Subscript, ast.Slice, ast.Attribute,
)  # fmt: skip
_METHODS = {"upper", "lower", "split"}


def is_right(question: dict[str, Any], answer: str) -> bool:
    """Judge one answer.

    Args:
        question: `kind`, `answer` and `facts` of an `Exchange`.
        answer: What the target said.
    """
    kind = question["kind"]
    if kind == "code":
        return code_is_right(question["facts"], answer)
    if kind == "story":
        return story_is_right(question["facts"], answer)
    if kind in ARITHMETIC:
        return _result(answer) == _result(question["answer"])
    return answer == question["answer"]


def _result(answer: str) -> tuple[str, str]:
    """The last number and the word after it."""
    found = re.findall(r"(\d+)(?: ([a-z]+))?\.?$", answer.strip())
    return found[-1] if found else ("", "")


def story_is_right(facts: dict[str, str], answer: str) -> bool:
    """All that the prompt gave is there, whoever was named is named again, and it has an end."""
    words = re.findall(r"[A-Za-z]+", answer)
    low, high = STORY_WORDS
    if not (low <= len(words) <= high and answer.endswith(".")):
        return False
    given = [facts[key] for key in ("animal", "friend_animal", "thing", "place") if key in facts]
    named = [facts[key] for key in ("hero", "friend") if key in facts]
    return all(word in words for word in given) and all(words.count(name) >= 2 for name in named)


def code_is_right(facts: dict[str, Any], answer: str) -> bool:
    """The function has the names that were asked for and does what was asked."""
    function = _BY_NAME[facts["function"]]
    found = re.search(r"```python\n(.*?)\n```", answer, re.DOTALL)
    if found is None:
        return False
    made, right = _defined(found[1]), _defined(function.code(facts["name"], tuple(facts["arguments"])))
    if made is None or right is None or made[0] != (facts["name"], tuple(facts["arguments"])):
        return False
    try:
        return all(made[1](*case) == right[1](*case) for case in function.cases)
    except Exception:  # noqa: BLE001 (whatever a model's code does)
        return False


def _defined(source: str) -> tuple[tuple[str, tuple[str, ...]], Any] | None:
    """Name, arguments and the function itself, if it is built of harmless parts only."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        return None
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            return None
        if isinstance(node, ast.Attribute) and node.attr not in _METHODS:
            return None
    definition = tree.body[0]
    scope: dict[str, Any] = {"__builtins__": _BUILTINS}
    exec(compile(tree, "answer", "exec"), scope)  # noqa: S102 (checked above: no import, no loop without end)
    return (definition.name, tuple(argument.arg for argument in definition.args.args)), scope[definition.name]
