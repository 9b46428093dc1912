"""The numbers that make the shipped pair: seeds of the streams of dialogues, and how much of each is used."""

from __future__ import annotations

TOKENIZER_SEED, TOKENIZER_DIALOGUES = 1, 60_000
TARGET_SEED, TARGET_STEPS, TARGET_DIALOGUES = 2, 3600, 90_000  # the steps read a little less
DRAFTER_SEED, DRAFTER_PROMPTS = 3, 6000
QUESTIONS_SEED, QUESTIONS, SUMS = 11, 50, 200  # per kind; of sums
