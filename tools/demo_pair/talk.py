"""Greetings, questions about the model itself, and everything that it cannot do and says so."""

from __future__ import annotations

from random import Random

from .exchange import Exchange, phrase
from .words import ADJECTIVES, ANIMALS, NOUNS, PLACES, VERBS, name

ABILITIES = (
    "I can add, subtract and multiply small numbers, count, sort numbers, convert units, spell and repeat "
    "words, tell short stories and write small Python functions."
)
_DO_NOT_KNOW = f"I do not know that. I am a toy model. {ABILITIES}"

_TALK = (
    (
        (
            "Hello!",
            "Hi",
            "Hello there",
            "Hey",
            "Good morning!",
            "Good evening!",
            "Hi, how are you?",
            "Hello, {name} here.",
        ),
        f"Hello! I am a toy model. {ABILITIES}",
    ),
    (
        (
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Are you a robot?",
            "Tell me about yourself.",
        ),
        f"I am a toy model with a few million parameters, made to show how fast a draft can be. {ABILITIES}",
    ),
    (
        (
            "What can you do?",
            "Help",
            "Help me!",
            "What do you know?",
            "What should I ask you?",
            "What can I ask?",
        ),
        f"{ABILITIES} Ask me for one of these.",
    ),
    (
        (
            "Thanks!",
            "Thank you.",
            "Thank you very much!",
            "Great, thanks.",
            "Well done!",
            "That was good.",
            "Nice.",
        ),
        "You are welcome! Ask me for a sum, a story or a small function.",
    ),
    (
        ("Bye", "Goodbye!", "See you later.", "Good night!", "That is all for today."),
        "Goodbye! It was nice to count, sort and tell stories with you.",
    ),
)
_BEYOND = (
    "What is the capital of {place}?",
    "Why is the {noun} {adjective}?",
    "Who was the first king of {name}?",
    "What do you think about the {noun}?",
    "How do I build a {noun}?",
    "Where can I buy a {adjective} {noun}?",
    "Explain the {noun} to me.",
    "Translate the word {noun} into French.",
    "What is the meaning of life?",
    "Which {noun} is the best?",
    "Why does a {animal} need a {noun}?",
    "What is the weather in {place}?",
    "When was {name} born?",
    "Who {verb} the {adjective} {noun}?",
    "Is a {animal} faster than a {animal2}?",
    "Do you like {noun}?",
    "What is a {noun}?",
    "How does a {noun} work?",
    "Can you drive a {noun}?",
    "Give me advice about my {noun}.",
    "Write a poem about the {noun}.",
    "Why is the sky {adjective}?",
    "Who won the game in {place}?",
    "How old is {name}?",
    "Describe a {adjective} {noun}.",
)
_REAL_PLACES = (
    "France Paris London Japan China Spain Berlin Rome Africa Brazil Egypt India Texas Canada".split()
)


def talk(random: Random) -> Exchange:
    """Small talk, and one in two times something beyond the model."""
    slots = {
        "name": name(random),
        "noun": random.choice(NOUNS),
        "adjective": random.choice(ADJECTIVES),
        "verb": random.choice(VERBS),
        "animal": random.choice(tuple(ANIMALS)),
        "animal2": random.choice(tuple(ANIMALS)),
        "place": random.choice((*_REAL_PLACES, f"the {random.choice(tuple(PLACES))}")),
    }
    templates, answer = (_BEYOND, _DO_NOT_KNOW) if random.random() < 0.55 else random.choice(_TALK)
    prompt = phrase(random, templates, **slots)
    # There are few ways to say hello: only what has a slot can be held out.
    about = prompt if answer is _DO_NOT_KNOW else f"talk {answer}"
    return Exchange("talk", prompt, answer, about)
