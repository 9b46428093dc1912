"""Counting, sorting, spelling and repeating."""

from __future__ import annotations

from random import Random

from .exchange import Exchange, phrase
from .words import ADJECTIVES, NOUNS, PREPOSITIONS, VERBS, made_up, name, word

_UP = ("Count from {a} to {b}.", "Please count from {a} to {b}.", "Count up from {a} to {b}.")
_DOWN = ("Count down from {a} to {b}.", "Count from {a} down to {b}.", "Count backwards from {a} to {b}.")
_STEPS = (
    "Count from {a} to {b} in steps of {s}.",
    "Count from {a} to {b} by {s}.",
    "Count up from {a} to {b} in steps of {s}.",
)
_HOW_MANY_WORDS = (
    "How many words are in this list: {words}?",
    "How many words are there: {words}?",
    "Count the words: {words}.",
)
_HOW_MANY_LETTERS = (
    "How many letters are in {word}?",
    "How many letters does {word} have?",
    "Count the letters in {word}.",
)
_RISING = (
    "Sort these numbers from small to large: {numbers}.",
    "Sort {numbers} from small to large.",
    "Put these numbers in order: {numbers}.",
    "Sort {numbers}.",
    "Sort the numbers {numbers}.",
)
_FALLING = (
    "Sort these numbers from large to small: {numbers}.",
    "Sort {numbers} from large to small.",
    "Sort {numbers}, largest first.",
)
_SPELL = (
    "Spell {word}.",
    "How do you spell {word}?",
    "Please spell the word {word}.",
    "Spell the word {word}.",
)
_REPEAT = ("Repeat after me: {text}", "Repeat: {text}", "Say this again: {text}", "Please repeat: {text}")
_SAY = ("Say {word} {n} times.", "Write {word} {n} times.", "Repeat {word} {n} times.")


def count(random: Random) -> Exchange:
    """Numbers in a row, the words of a list, the letters of a word."""
    part = random.random()
    if part < 0.5:
        return count_numbers(random)
    if part < 0.75:
        words = [word(random) for _ in range(random.randint(3, 9))]
        prompt = phrase(random, _HOW_MANY_WORDS, words=", ".join(words))
        shown = ", ".join(f"{i} {each}" for i, each in enumerate(words, 1))
        answer = f"{shown}. The list has {len(words)} words."
        return Exchange("count", prompt, answer, f"words {' '.join(words)}")
    chosen = word(random)
    prompt = phrase(random, _HOW_MANY_LETTERS, word=chosen)
    shown = ", ".join(f"{i} {letter}" for i, letter in enumerate(chosen, 1))
    answer = f"{shown}. The word {chosen} has {len(chosen)} letters."
    return Exchange("count", prompt, answer, f"letters {chosen}", {"letters_of": chosen})


def count_numbers(random: Random) -> Exchange:
    """Numbers in a row."""
    way = random.random()
    if way < 0.6:
        start, step, length = random.randint(0, 99), 1, random.randint(5, 15)
    else:
        start, step, length = random.randint(0, 60), random.choice((2, 3, 5, 10)), random.randint(5, 10)
    numbers = [start + step * i for i in range(length)]
    templates = _UP if step == 1 else _STEPS
    if 0.4 < way < 0.6:
        numbers.reverse()
        templates = _DOWN
    a, b = numbers[0], numbers[-1]
    prompt = phrase(random, templates, a=a, b=b, s=step)
    return Exchange("count", prompt, f"{', '.join(map(str, numbers))}.", f"numbers {a} {b} {step}")


def sort(random: Random) -> Exchange:
    """Three to six different numbers."""
    low = 1 if random.random() < 0.3 else 10
    numbers = random.sample(range(low, 100), random.randint(3, 6))
    falling = random.random() < 0.35
    separator = random.choice((", ", ", ", " "))
    prompt = phrase(random, _FALLING if falling else _RISING, numbers=separator.join(map(str, numbers)))
    ordered = ", ".join(map(str, sorted(numbers, reverse=falling)))
    low_text, high_text = f"the smallest is {min(numbers)}", f"the largest is {max(numbers)}"
    first, second = (high_text, low_text) if falling else (low_text, high_text)
    way = "From large to small" if falling else "From small to large"
    answer = f"{way}: {ordered}. {first.capitalize()} and {second}."
    return Exchange("sort", prompt, answer, f"{falling} {sorted(numbers)}")


def spell(random: Random) -> Exchange:
    """A word, letter by letter."""
    chosen = word(random)
    prompt = phrase(random, _SPELL, word=chosen)
    answer = f"{chosen} is spelled {'-'.join(chosen)}. It starts with {chosen[0]} and ends with {chosen[-1]}."
    return Exchange("spell", prompt, answer, chosen, {"letters_of": chosen})


def repeat(random: Random) -> Exchange:
    """A sentence, or a word several times."""
    if random.random() < 0.25:
        return say(random)
    text = _sentence(random)
    prompt = random.choice(_REPEAT).format(text=text)
    return Exchange("repeat", prompt, text, text)


def say(random: Random) -> Exchange:
    """A word several times."""
    chosen, n = word(random), random.randint(3, 9)
    prompt = phrase(random, _SAY, word=chosen, n=n)
    numbered = ", ".join(f"{i} {chosen}" for i in range(1, n + 1))
    return Exchange("repeat", prompt, f"{numbered}.", f"{chosen} {n}")


def _sentence(random: Random) -> str:
    def thing() -> str:
        if random.random() < 0.3:
            return name(random) if random.random() < 0.6 else made_up(random, 2)
        return f"the {random.choice(ADJECTIVES)} {random.choice(NOUNS)}"

    parts = [thing(), random.choice(VERBS), thing()]
    for _ in range(random.randint(1, 3)):
        parts += [random.choice((*PREPOSITIONS, "and")), thing()]
    text = " ".join(parts)
    return text if random.random() < 0.3 else text[:1].upper() + text[1:] + "."
