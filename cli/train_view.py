"""What training tells → text: pure functions."""

from __future__ import annotations

from dflash_mlx.train.report import Evaluated, Started, Stepped, Stopped, Timed

_GAP = "   "


def started(event: Started) -> str:
    """Before the first step."""
    parts = [
        f"drafter of {count(event.parameters)} parameters",
        f"{event.sequences} sequences, {count(event.tokens)} tokens",
        f"{event.held_out} prompts held out" if event.held_out else "no prompt held out",
        f"{event.steps} steps" + (f", going on from {event.step}" if event.step else ""),
    ]
    return _GAP.join(parts)


def stepped(event: Stepped, *, short: bool = False) -> str:
    """Beside the bar, or in a line of its own."""
    parts = [f"loss {event.loss:.3f}"]
    if event.selector_loss and not short:
        parts.append(f"selector {event.selector_loss:.3f}")
    if event.tokens_per_second is not None and not short:
        parts.append(f"{event.tokens_per_second:,.0f} tok/s")
    if event.seconds_left is not None:
        parts.append(f"{duration(event.seconds_left)} left")
    return _GAP.join(parts)


def evaluated(event: Evaluated) -> str:
    """One evaluation, in one line."""
    where = "training prompts" if event.training_prompts else "held-out prompts"
    parts = [f"step {event.step}", f"{event.prompts} {where}"]
    if event.tau is not None:
        argmax = "" if event.tau_argmax in (None, event.tau) else f" (argmax {event.tau_argmax:.2f})"
        parts.append(f"τ {event.tau:.2f}{argmax}")
    parts += [
        f"loss {event.loss:.3f}",
        f"accuracy {_by_slot(event.accuracy)}",
        f"recall@16 {_by_slot(event.recall)}",
    ]
    return _GAP.join(parts)


def timed(event: Timed) -> str:
    """Where the time goes, and how fast that is."""
    shares = (
        ("target forward", event.target_forward),
        ("drafter forward and backward", event.drafter),
        ("head and losses", event.head),
        ("update", event.update),
    )
    speed = f"{event.tokens / event.total:,.0f} tok/s, {event.blocks / event.total:,.0f} blocks/s"
    return _GAP.join([speed, *(f"{name} {seconds / event.total:.0%}" for name, seconds in shares if seconds)])


def stopped(event: Stopped) -> str:
    """The last line: what is there, and how to go on."""
    if event.out is None:
        return "stopped while the target wrote answers; run the same command again to go on"
    done = f"{event.out}: the drafter after {event.step} of {event.steps} steps"
    if event.reason == "finished":
        return done
    why = "the time is over" if event.reason == "budget" else "interrupted"
    return f"{why}{_GAP}{done}{_GAP}run the same command again to go on"


def duration(seconds: float) -> str:
    """`12 s`, `3 min`, `2 h 05 min`."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def count(number: int) -> str:
    """`1.2 M` and the like."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def _by_slot(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.2f}".removeprefix("0") for value in values)
