"""The words that the demo pair's dialogues are made of. All of them are ours."""

from __future__ import annotations

from random import Random

NAMES = (
    "Ada Ben Cleo Dan Ella Finn Gus Hana Ivy Jack Kim Leo Mia Nora Otto Pia Quinn Rosa Sam Tom Uma Vera Will "
    "Yara Zoe Anna Bob Carl Dora Emma Fred Gina Hugo Ida Jane Kurt Lily Max Nina Olga Paul Rita Steve Tina "
    "Vic Wanda Alex Bella Chris Diana Eric Flora Grace Henry Iris John Karen Luis Maria Nick Oscar Peter "
    "Ruth Sara Theo Ursula Violet Walter Alice Boris Clara David Eva Frank Greta Helen Igor Julia Kate Lars "
    "Martin Nadia Oliver Petra Ralph Sofia Tara Victor Wendy Adam Bruno Celia Dylan Edith Felix Gloria "
    "Hector Irene Jonas Kira Lena Marco Noah Olive Philip Rachel Simon Tessa"
).split()

# Fixed companions: a story that is asked for an animal without a name gives it this one.
ANIMALS = {
    "fox": "Finn",
    "owl": "Ada",
    "bear": "Bruno",
    "cat": "Mia",
    "dog": "Max",
    "mouse": "Pia",
    "rabbit": "Hana",
    "horse": "Hugo",
    "duck": "Dora",
    "frog": "Fred",
    "goat": "Gus",
    "hen": "Greta",
    "lion": "Leo",
    "pig": "Paul",
    "sheep": "Lily",
    "snail": "Sam",
    "tiger": "Tara",
    "turtle": "Theo",
    "wolf": "Walter",
    "bird": "Bella",
    "cow": "Clara",
    "crab": "Carl",
    "deer": "Diana",
    "dragon": "Dylan",
    "elephant": "Ella",
    "monkey": "Marco",
    "penguin": "Petra",
    "robot": "Rita",
    "spider": "Simon",
    "whale": "Wanda",
}

# thing: (where it lay, what happened with it)
THINGS = {
    "map": ("under a flat stone", "followed it to a hidden garden"),
    "kite": ("in a tall tree", "let it fly above the clouds"),
    "key": ("in the wet grass", "opened a small green door with it"),
    "lamp": ("on a dusty shelf", "lit every dark corner with it"),
    "book": ("on an old bench", "read it until the last page"),
    "ring": ("between two roots", "gave it back to the queen"),
    "drum": ("behind a wall", "played a loud march on it"),
    "boat": ("on the sand", "sailed to a small island in it"),
    "coin": ("in a deep crack", "bought warm bread with it"),
    "hat": ("on a broken fence", "wore it all day long"),
    "bell": ("at the end of a rope", "rang it three times"),
    "shell": ("near the water", "heard the sea in it"),
    "feather": ("on a soft hill of moss", "wrote a long letter with it"),
    "letter": ("in a blue bottle", "answered it the same day"),
    "basket": ("beside the road", "filled it with red apples"),
    "mirror": ("in an empty room", "saw a bright star in it"),
    "rope": ("around a pole", "made a swing out of it"),
    "seed": ("in a crack of a stone", "planted it in good earth"),
    "cake": ("in a white box", "shared it with everyone"),
    "clock": ("in a hollow tree", "made it tick again"),
    "wheel": ("in the tall reeds", "built a little cart with it"),
    "flute": ("under a bush", "played a slow song on it"),
    "egg": ("in a lost nest", "kept it warm for a week"),
    "ball": ("on the other side of the hedge", "played with it for hours"),
    "box": ("under the stairs", "found seven buttons in it"),
    "stone": ("at the bottom of a stream", "put it on the window"),
    "candle": ("in a cold cave", "told stories in its light"),
    "flag": ("on a high rock", "waved it in the wind"),
    "cup": ("next to a spring", "drank cool water from it"),
    "blanket": ("on a wooden chair", "slept under it like a stone"),
}

# place: (its adjective, the thing that a story finds there when none was asked for)
PLACES = {
    "lake": ("quiet", "boat"),
    "forest": ("deep", "map"),
    "hill": ("green", "kite"),
    "market": ("busy", "coin"),
    "beach": ("long", "shell"),
    "castle": ("old", "key"),
    "garden": ("small", "seed"),
    "river": ("wide", "stone"),
    "mountain": ("high", "flag"),
    "mill": ("empty", "wheel"),
    "village": ("little", "cake"),
    "cave": ("dark", "candle"),
    "school": ("new", "book"),
    "farm": ("sunny", "egg"),
    "bridge": ("narrow", "rope"),
    "tower": ("round", "bell"),
    "island": ("lonely", "drum"),
    "meadow": ("bright", "feather"),
    "harbor": ("noisy", "letter"),
    "park": ("wet", "ball"),
}

COUNTABLE = (
    "apples books coins cards eggs shells stones stamps pens cups balls keys boxes flowers buttons cookies "
    "marbles nuts pears plums stickers toys tickets fish ducks"
).split()

NOUNS = (
    "sun moon star tree house door window table chair bread apple water fire cloud stone leaf flower road "
    "boat train bus bike song game picture paper pen glass plate spoon knife fork cup bottle shoe hat coat "
    "sock shirt bed wall floor roof lamp clock box bag ball bell drum flute rope wheel king queen farmer "
    "baker teacher doctor friend brother sister summer winter morning evening rain snow wind storm ice "
    "sand grass hill lake river sea island forest field garden park street city village bridge tower castle "
    "cave mill farm school market shop kitchen letter word number color red green blue black white silver "
    "gold"
).split()

ADJECTIVES = (
    "old new small big red green blue white black brown warm cold quick slow quiet loud happy sad soft hard "
    "bright dark tall short clean empty full round long little brave clever gentle hungry lazy proud wise"
).split()

VERBS = (
    "sees finds takes likes paints holds watches follows carries opens draws needs wants keeps cleans hides "
    "brings builds moves loses"
).split()

PREPOSITIONS = ("near", "behind", "under", "above", "beside", "before", "after", "without")

_ONSETS = "b d f g h j k l m n p r s t v w z br dr gr kl pl st tr sh ch".split()
_VOWELS = "a e i o u ai ee oo".split()
_CODAS = ("", "", "", "n", "r", "s", "l", "m", "k", "t", "x")


def made_up(random: Random, syllables: int) -> str:
    """A word that is in no list, so that only copying helps."""
    parts = [random.choice(_ONSETS) + random.choice(_VOWELS) for _ in range(syllables)]
    return "".join(parts) + random.choice(_CODAS)


def name(random: Random) -> str:
    """Three known names in four; the rest made up."""
    if random.random() < 0.75:
        return random.choice(NAMES)
    return made_up(random, random.choice((1, 2, 2))).capitalize()


def word(random: Random) -> str:
    """A lower-case word to count, spell or say; one in five made up."""
    if random.random() < 0.8:
        return random.choice((random.choice(NOUNS), random.choice(NOUNS), random.choice(ADJECTIVES)))
    return made_up(random, random.choice((1, 2)))


def is_listed(word: str) -> bool:
    """True for a word of the lists. Most are one token, whose letters nobody can know who was never told."""
    return word in NOUNS or word in ADJECTIVES


def article(noun: str) -> str:
    """The noun with `a` or `an`."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun
