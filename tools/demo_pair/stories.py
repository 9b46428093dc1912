"""Short stories. What the prompt gives is used; what it leaves open is drawn from two ways to go on."""

from __future__ import annotations

from random import Random

from .exchange import Exchange, phrase
from .words import ANIMALS, PLACES, THINGS, article, name

_ASK = ("Tell me a story about {about}.", "Tell a story about {about}.", "Write a short story about {about}.")
_ASK_MORE = (
    "A story about {about}, please.",
    "Can you tell me a story about {about}?",
    "Story about {about}",
)


def story(random: Random) -> Exchange:
    """A hero, at times a friend, a thing and a place."""
    facts = _facts(random)
    about = _about(facts)
    prompt = phrase(random, _ASK + _ASK_MORE, about=about)
    return Exchange("story", prompt, tell(random, facts), about, facts)


def _facts(random: Random) -> dict[str, str]:
    """What the prompt says: `hero` or `animal`, and some of `friend`, `friend_animal`, `thing`, `place`."""
    facts: dict[str, str] = {}
    shape = random.random()
    if shape < 0.75:
        facts["hero"] = name(random)
    if shape >= 0.4:
        facts["animal"] = random.choice(tuple(ANIMALS))
    if random.random() < 0.35:
        friend = name(random)
        if friend not in (facts.get("hero"), ANIMALS.get(facts.get("animal", ""))):
            facts["friend"] = friend
            if random.random() < 0.5:
                facts["friend_animal"] = random.choice(tuple(ANIMALS))
    if random.random() < 0.5:
        facts["thing"] = random.choice(tuple(THINGS))
    if random.random() < 0.4:
        facts["place"] = random.choice(tuple(PLACES))
    return facts


def _about(facts: dict[str, str]) -> str:
    def someone(who: str | None, animal: str | None) -> str:
        if who and animal:
            return f"{who} the {animal}"
        return who or article(animal or "child")

    parts = [someone(facts.get("hero"), facts.get("animal"))]
    if "friend" in facts:
        parts.append(someone(facts["friend"], facts.get("friend_animal")))
    if "thing" in facts:
        parts.append(article(facts["thing"]))
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{listed} at the {facts['place']}" if "place" in facts else listed


def tell(random: Random, facts: dict[str, str]) -> str:
    """The story: a few two-way choices, the rest follows from them and from the prompt."""
    animal = facts.get("animal")
    hero = facts.get("hero") or ANIMALS[animal or ""]
    friend = facts.get("friend")
    morning = random.random() < 0.5
    place = facts.get("place") or random.choice(("forest", "lake"))
    adjective, found_there = PLACES[place]
    thing = facts.get("thing") or found_there
    lay, deed = THINGS[thing]
    both, they = (f"{hero} and {friend}", "they") if friend else (hero, hero)

    lines = [f"Once there was {article(animal or 'child')} named {hero}."]
    if friend:
        kind = f", {article(facts['friend_animal'])}" if "friend_animal" in facts else ""
        lines.append(f"The best friend of {hero} was {friend}{kind}.")
    lines.append(
        f"One {'sunny morning' if morning else 'quiet evening'} {both} went to the {adjective} {place}."
    )
    lines.append(f"There {hero} found {article(thing)} {lay}.")
    lines.append(f'"What a {random.choice(("lucky day", "strange place"))}!" said {friend or hero}.')
    lines.append(f"So {they} took the {thing} and {deed}.")
    lines.append(
        f"At noon it was time to go home, and {both} sang all the way."
        if morning
        else f"Soon the moon was high, and {both} walked home in its light."
    )
    lines.append(
        f"{hero} never forgot the {place}."
        if random.random() < 0.5
        else f"{hero} still dreams of the {thing}."
    )
    return " ".join(lines)
