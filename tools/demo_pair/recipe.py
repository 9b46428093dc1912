"""The numbers that make the shipped pair: seeds of the streams of dialogues, and how much of each is used."""

from __future__ import annotations

TOKENIZER_SEED, TOKENIZER_DIALOGUES = 1, 60_000
TARGET_SEED, TARGET_DIALOGUES = 2, 120_000  # the steps read a little less
TARGET_STAGES = (49_121, 78_026)  # dialogues
# (step, learning rate relative to the first one); the last step is the last point's.
TARGET_RATES = ((0, 1 / 60), (59, 1.0), (1440, 1.0), (2060, 0.7187), (3177, 0.2945), (4150, 0.02))
DRAFTER_SEED, DRAFTER_PROMPTS = 3, 10_000
QUESTIONS_SEED, QUESTIONS, SUMS = 11, 50, 200  # per kind; of sums
