"""Small Python functions: asked for in words, checked by running them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from .exchange import Exchange, phrase


@dataclass(frozen=True)
class Function:
    """One thing that a function can be asked to do.

    Attributes:
        name: The function's name when none is asked for.
        asks: What it does, after `a function that`; `{0}` and `{1}` are its arguments.
        body: Lines after the `def`.
        arguments: Their names when none are asked for.
        says: The closing sentence, after `It returns`.
        cases: Arguments to try it with.
    """

    name: str
    asks: str
    body: str
    says: str
    cases: tuple[tuple[Any, ...], ...]
    arguments: tuple[str, ...] = ("first", "second")

    def code(self, name: str, arguments: tuple[str, ...]) -> str:
        """The whole definition."""
        lines = self.body.format(*arguments).split("\n")
        return "\n".join([f"def {name}({', '.join(arguments)}):", *(f"    {line}" for line in lines)])


_PAIRS = ((7, 3), (3, 8), (5, 5), (0, 4))
_NUMBERS = ((5,), (8,), (1,), (0,))
_LISTS = (([3, 1, 2],), ([5],), ([2, 9, 4, 7],))
_TEXTS = (("abc",), ("Level",), ("to be",))

FUNCTIONS = (
    Function("add", "adds {0} and {1}", "return {0} + {1}", "the sum of {0} and {1}", _PAIRS),
    Function("subtract", "subtracts {1} from {0}", "return {0} - {1}", "{0} minus {1}", _PAIRS),
    Function("multiply", "multiplies {0} and {1}", "return {0} * {1}", "the product of {0} and {1}", _PAIRS),
    Function(
        "larger",
        "returns the larger of {0} and {1}",
        "return max({0}, {1})",
        "the larger of {0} and {1}",
        _PAIRS,
    ),
    Function(
        "smaller",
        "returns the smaller of {0} and {1}",
        "return min({0}, {1})",
        "the smaller of {0} and {1}",
        _PAIRS,
    ),
    Function(
        "average",
        "returns the average of {0} and {1}",
        "return ({0} + {1}) / 2",
        "the average of {0} and {1}",
        _PAIRS,
    ),
    Function("equal", "checks if {0} equals {1}", "return {0} == {1}", "True if {0} equals {1}", _PAIRS),
    Function(
        "above",
        "checks if {0} is larger than {1}",
        "return {0} > {1}",
        "True if {0} is larger than {1}",
        _PAIRS,
    ),
    Function("square", "squares {0}", "return {0} * {0}", "the square of {0}", _NUMBERS, ("number",)),
    Function("double", "doubles {0}", "return 2 * {0}", "two times {0}", _NUMBERS, ("number",)),
    Function("triple", "triples {0}", "return 3 * {0}", "three times {0}", _NUMBERS, ("number",)),
    Function("half", "halves {0}", "return {0} / 2", "half of {0}", _NUMBERS, ("number",)),
    Function(
        "even", "checks if {0} is even", "return {0} % 2 == 0", "True if {0} is even", _NUMBERS, ("number",)
    ),
    Function(
        "odd", "checks if {0} is odd", "return {0} % 2 == 1", "True if {0} is odd", _NUMBERS, ("number",)
    ),
    Function(
        "absolute",
        "returns the absolute value of {0}",
        "if {0} < 0:\n    return -{0}\nreturn {0}",
        "{0} without its sign",
        ((-4,), (4,), (0,)),
        ("number",),
    ),
    Function(
        "factorial",
        "returns the factorial of {0}",
        "result = 1\nfor i in range(2, {0} + 1):\n    result = result * i\nreturn result",
        "the factorial of {0}",
        ((1,), (5,), (6,)),
        ("number",),
    ),
    Function(
        "total",
        "adds the numbers from 1 to {0}",
        "result = 0\nfor i in range(1, {0} + 1):\n    result = result + i\nreturn result",
        "the sum from 1 to {0}",
        ((1,), (5,), (10,)),
        ("number",),
    ),
    Function(
        "length", "returns the length of {0}", "return len({0})", "the length of {0}", _TEXTS, ("text",)
    ),
    Function("reverse", "reverses {0}", "return {0}[::-1]", "{0} in reverse", _TEXTS, ("text",)),
    Function(
        "upper", "turns {0} into upper case", "return {0}.upper()", "{0} in upper case", _TEXTS, ("text",)
    ),
    Function(
        "lower", "turns {0} into lower case", "return {0}.lower()", "{0} in lower case", _TEXTS, ("text",)
    ),
    Function("words", "splits {0} into words", "return {0}.split()", "the words of {0}", _TEXTS, ("text",)),
    Function("order", "sorts {0}", "return sorted({0})", "{0} in order", _LISTS, ("items",)),
    Function(
        "largest", "returns the largest of {0}", "return max({0})", "the largest of {0}", _LISTS, ("items",)
    ),
    Function(
        "smallest",
        "returns the smallest of {0}",
        "return min({0})",
        "the smallest of {0}",
        _LISTS,
        ("items",),
    ),
    Function("add_all", "adds all of {0}", "return sum({0})", "the sum of {0}", _LISTS, ("items",)),
    Function("first", "returns the first of {0}", "return {0}[0]", "the first of {0}", _LISTS, ("items",)),
    Function("last", "returns the last of {0}", "return {0}[-1]", "the last of {0}", _LISTS, ("items",)),
)

_NAMES = (
    "compute helper solve run apply calc answer process work task func test check make find get do change"
).split()
_ARGUMENTS = (
    "width height price count left right value size speed time age score x y a b n low high weight".split()
)
_ASK = (
    "Write a Python function that {asks}.",
    "Write a function that {asks}.",
    "Python function that {asks}",
    "Please write a Python function that {asks}.",
    "I need a Python function that {asks}.",
)
_ASK_NAMED = (
    "Write a Python function {name} that {asks}.",
    "Write a function {name} that {asks}.",
    "Write a Python function called {name} that {asks}.",
)


def code(random: Random) -> Exchange:
    """A function, with the names that were asked for."""
    function = random.choice(FUNCTIONS)
    arguments = function.arguments
    if random.random() < 0.75:
        arguments = tuple(random.sample(_ARGUMENTS, len(arguments)))
    named = random.random() < 0.5
    name = random.choice(_NAMES) if named else function.name
    asks = function.asks.format(*arguments)
    prompt = phrase(random, _ASK_NAMED if named else _ASK, name=name, asks=asks)
    says = function.says.format(*arguments)
    answer = f"```python\n{function.code(name, arguments)}\n```\n\nThe function {name} returns {says}."
    return Exchange(
        "code",
        prompt,
        answer,
        f"{name if named else ''} {asks}",
        {"name": name, "function": function.name, "arguments": list(arguments)},
    )
