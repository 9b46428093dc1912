"""Sums, differences, products and units: every step is a fact of a table for single digits."""

from __future__ import annotations

from random import Random

from .exchange import Exchange, phrase
from .words import COUNTABLE, name

_COLUMNS = ("Ones", "Tens", "Hundreds")

_SUMS = (
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} = ?",
    "What is {a} plus {b}?",
    "{a} plus {b}",
    "Add {a} and {b}.",
    "Calculate {a} + {b}.",
    "How much is {a} + {b}?",
    "Please add {a} and {b}.",
)
_SUM_STORIES = (
    "{name} has {a} {things} and finds {b} more. How many {things} does {name} have now?",
    "There are {a} red {things} and {b} blue {things}. How many {things} are there?",
    "{name} buys {a} {things} and then {b} more. How many {things} is that?",
)
_DIFFERENCES = (
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a}-{b}",
    "What is {a} minus {b}?",
    "{a} minus {b}",
    "Subtract {b} from {a}.",
    "Calculate {a} - {b}.",
    "How much is {a} - {b}?",
)
_DIFFERENCE_STORIES = (
    "{name} has {a} {things} and gives away {b}. How many {things} are left?",
    "There were {a} {things} and {b} are gone. How many {things} are left?",
)
_PRODUCTS = (
    "What is {a} x {b}?",
    "{a} x {b}",
    "{a} * {b}",
    "{a} times {b}",
    "What is {a} times {b}?",
    "Multiply {a} by {b}.",
    "Calculate {a} x {b}.",
)
_FOLLOW = ("Now add {b}.", "Add {b} to that.", "And {b} more?", "Plus {b}.", "Add {b} more.")

# (one, several, small units, how many)
UNITS = (
    ("week", "weeks", "days", 7),
    ("yard", "yards", "feet", 3),
    ("hour", "hours", "minutes", 60),
    ("minute", "minutes", "seconds", 60),
    ("gallon", "gallons", "pints", 8),
    ("gallon", "gallons", "quarts", 4),
    ("nickel", "nickels", "cents", 5),
    ("pint", "pints", "cups", 2),
    ("meter", "meters", "centimeters", 100),
    ("dollar", "dollars", "cents", 100),
    ("dime", "dimes", "cents", 10),
    ("centimeter", "centimeters", "millimeters", 10),
    ("kilometer", "kilometers", "meters", 1000),
    ("kilogram", "kilograms", "grams", 1000),
    ("liter", "liters", "milliliters", 1000),
    ("century", "centuries", "years", 100),
    ("decade", "decades", "years", 10),
)
_UNITS = (
    "How many {small} are {value} {several}?",
    "How many {small} are in {value} {several}?",
    "Convert {value} {several} to {small}.",
    "{value} {several} in {small}",
    "What is {value} {several} in {small}?",
    "Turn {value} {several} into {small}.",
)


def added(a: int, b: int) -> str:
    """The columns of a sum."""
    steps, carry = [], 0
    for place, column in enumerate(_COLUMNS[: max(2, len(str(max(a, b))))]):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        shown = f"{x} + {y} + {carry}" if place else f"{x} + {y}"
        last = place + 1 == max(2, len(str(max(a, b))))
        rest = "" if last else f", write {total % 10}, carry {total // 10}"
        steps.append(f"{column}: {shown} = {total}{rest}.")
        carry = total // 10
    return f"{' '.join(steps)} So {a} + {b} = {a + b}"


def subtracted(a: int, b: int) -> str:
    """The columns of a difference of numbers below 100, the larger one first."""
    ones, borrow = a % 10, int(a % 10 < b % 10)
    first = f"Ones: {ones + 10 * borrow} - {b % 10} = {ones + 10 * borrow - b % 10}, borrow {borrow}."
    tens = a // 10 - b // 10 - borrow
    return f"{first} Tens: {a // 10} - {b // 10} - {borrow} = {tens}. So {a} - {b} = {a - b}"


def multiplied(a: int, b: int) -> str:
    """A number below 100 times a digit, column by column."""
    ones, tens = a % 10 * b, a // 10 * b
    carry = ones // 10
    return (
        f"Ones: {a % 10} x {b} = {ones}, write {ones % 10}, carry {carry}. "
        f"Tens: {a // 10} x {b} = {tens}, {tens} + {carry} = {tens + carry}. So {a} x {b} = {a * b}"
    )


def _operands(random: Random) -> tuple[int, int]:
    high = 999 if random.random() < 0.15 else 99
    low = 1 if random.random() < 0.3 else 10
    return random.randint(low, high), random.randint(1 if random.random() < 0.3 else 10, high)


def sum_(random: Random) -> Exchange:
    """A sum, in figures or in words."""
    a, b = _operands(random)
    unit, templates = "", _SUMS
    slots = {"name": name(random), "things": random.choice(COUNTABLE)}
    if random.random() < 0.3:
        unit, templates = f" {slots['things']}", _SUM_STORIES
    prompt = phrase(random, templates, a=a, b=b, **slots)
    kind = "sum" if max(a, b) < 100 else "large sum"
    return Exchange(kind, prompt, f"{added(a, b)}{unit}.", f"{min(a, b)} {max(a, b)}")


def difference(random: Random) -> Exchange:
    """A difference of two numbers below 100."""
    a, b = sorted((random.randint(1, 99), random.randint(1, 99)), reverse=True)
    unit, templates = "", _DIFFERENCES
    slots = {"name": name(random), "things": random.choice(COUNTABLE)}
    if random.random() < 0.3:
        unit, templates = f" {slots['things']}", _DIFFERENCE_STORIES
    prompt = phrase(random, templates, a=a, b=b, **slots)
    return Exchange("difference", prompt, f"{subtracted(a, b)}{unit}.", f"{a} {b}")


def product(random: Random) -> Exchange:
    """A number below 100 times a digit."""
    a, b = random.randint(2, 99), random.randint(2, 9)
    prompt = phrase(random, _PRODUCTS, a=a, b=b)
    return Exchange("product", prompt, f"{multiplied(a, b)}.", f"{a} {b}")


def unit(random: Random) -> Exchange:
    """So many large units in small ones."""
    one, several, small, factor = random.choice(UNITS)
    value = random.randint(2, 99)
    prompt = phrase(random, _UNITS, value=value, several=several, small=small)
    facts = f"1 {one} is {factor} {small}."
    zeros = len(str(factor)) - 1
    if factor == 10**zeros:
        work = f"{value} x {factor} = {value * factor}, {value} with {zeros} more {_zeros(zeros)}"
    elif factor == 60:
        work = f"{multiplied(value, 6)} and {value} x 60 = {value * 60}"
    else:
        work = multiplied(value, factor)
    answer = f"{facts} {work}. {value} {several} are {value * factor} {small}."
    return Exchange("unit", prompt, answer, f"{value} {several} {small}")


def _zeros(count: int) -> str:
    return "zero" if count == 1 else "zeros"


def sum_and_more(random: Random) -> list[Exchange]:
    """A sum and a second turn that goes on from its result."""
    first = sum_(random)
    while first.kind != "sum":
        first = sum_(random)
    result = sum(map(int, first.about.split()))
    b = random.randint(2, 99)
    prompt = phrase(random, _FOLLOW, b=b)
    return [first, Exchange("follow", prompt, f"{added(result, b)}.", f"{result} {b}")]
