"""The wired limit and the cache limit of mlx, by stand-ins that note what is set."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import fakes
import mlx.core as mx
import pytest
import tiny

from dflash_mlx.residency import Residency, recommended_working_set
from dflash_mlx.session import Session

RECOMMENDED = 12_000


class Target:
    """Anything that can be referred to weakly."""


class Limits:
    """mlx's side: every limit set, in order; the cache's own limit is 5,000."""

    def __init__(self, recommended: int | None = RECOMMENDED) -> None:
        self.wired, self.cache, self.waited = [0], [5000], 0
        self.residency = Residency(
            lambda: recommended, self._setter(self.wired), self._setter(self.cache), self._wait
        )

    @staticmethod
    def _setter(limits: list[int]) -> Any:
        def set_limit(limit: int) -> int:
            limits.append(limit)
            return limits[-2]

        return set_limit

    def _wait(self) -> None:
        self.waited += 1


def test_from_the_first_target_to_the_last() -> None:
    limits = Limits()
    first, second = Target(), Target()
    for _ in range(3):  # every reply asks
        limits.residency.keep(first)
        limits.residency.keep(second)
    assert limits.wired == [0, RECOMMENDED]
    del first
    assert limits.wired == [0, RECOMMENDED]
    assert not limits.waited
    del second
    assert limits.wired == [0, RECOMMENDED, 0]
    assert limits.waited == 1
    third = Target()
    limits.residency.keep(third)
    assert limits.wired[3:] == [RECOMMENDED]
    assert len(limits.cache) == 1  # nobody said how much


def test_what_was_set_before_comes_back() -> None:
    limits = Limits()
    limits.wired[:] = [777]
    target = Target()
    limits.residency.keep(target)
    del target
    assert limits.wired == [777, RECOMMENDED, 777]


def test_nothing_where_there_is_no_metal() -> None:
    limits = Limits(recommended=None)
    target = Target()
    limits.residency.keep(target)
    del target
    assert limits.wired == [0]
    assert not limits.waited


def test_the_cache_serves_the_neediest_target() -> None:
    limits = Limits()
    small, large, unknown = Target(), Target(), Target()
    limits.residency.keep(small, 300)
    assert limits.cache[-1] == 300
    limits.residency.keep(large, 900)
    limits.residency.keep(unknown)
    limits.residency.keep(large)  # a reply knows nothing of sizes
    assert limits.cache[-1] == 900
    del large
    assert limits.cache[-1] == 300
    del small, unknown
    assert limits.cache[-1] == 5000


def test_the_cache_is_never_given_more_than_it_had() -> None:
    limits = Limits()
    target, more = Target(), Target()
    limits.residency.keep(target, 6000)
    assert limits.cache[-1] == 5000
    limits.residency.keep(more, 400)
    assert limits.cache[-1] == 5000
    del target
    assert limits.cache[-1] == 400
    del more
    assert limits.cache[-1] == 5000


def test_targets_that_come_and_go_in_threads() -> None:
    limits = Limits()

    def come_and_go() -> None:
        for _ in range(200):
            target = Target()
            limits.residency.keep(target, 100)
            del target

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert limits.wired[-1] == 0
    assert limits.cache[-1] == 5000
    # Always on, off, on, off.
    assert limits.wired == [0, *[RECOMMENDED, 0] * (len(limits.wired) // 2)]


def test_garbage_that_is_collected_while_a_limit_is_set() -> None:
    """A target in a cycle dies inside the call that another one's end has made."""
    limits = Limits()
    cyclic, other, last = Target(), Target(), Target()
    cyclic.itself = cyclic  # type: ignore[attr-defined]
    limits.residency.keep(cyclic, 900)
    limits.residency.keep(other, 300)
    limits.residency.keep(last, 950)
    set_cache = limits.residency._set_cache

    def collecting(limit: int) -> int:
        gc.collect()
        return set_cache(limit)

    limits.residency._set_cache = collecting  # type: ignore[method-assign]
    del cyclic, last
    assert limits.cache[-3:] == [300, 900, 300]
    del other
    assert limits.wired == [0, RECOMMENDED, 0]
    assert limits.cache[-1] == 5000


def test_a_reply_keeps_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits()
    monkeypatch.setattr("dflash_mlx.session.residency", limits.residency)
    pair = fakes.pair_of(tiny.build("llama"))
    for _ in range(2):
        list(Session(pair).generate([1, 2, 3], max_tokens=3))
    assert limits.wired == [0, RECOMMENDED]
    del pair
    gc.collect()
    assert limits.wired == [0, RECOMMENDED, 0]


def test_the_real_functions() -> None:
    """On a CPU no limit is wired, and a larger cache limit than mlx's own is not set."""
    before = mx.set_cache_limit(1 << 20)
    try:
        residency, target = Residency(), Target()
        residency.keep(target, 1 << 30)
        assert mx.set_cache_limit(1 << 20) == 1 << 20
        if recommended_working_set() is None:
            assert mx.set_wired_limit(0) == 0
        residency.keep(target, 1 << 10)
        assert mx.set_cache_limit(1 << 10) == 1 << 10
        held = [target]
        del target
        thread = threading.Thread(target=held.clear)  # the last one may end anywhere
        thread.start()
        thread.join()
        assert mx.set_cache_limit(1 << 20) == 1 << 20
    finally:
        mx.set_cache_limit(before)


def test_the_end_of_the_interpreter_is_quiet() -> None:
    code = """
from dflash_mlx.residency import Residency
import mlx.core as mx
class Target: pass
def set_limit(limit): print(limit, flush=True); return 0
residency, target = Residency(lambda: 5, set_limit, set_limit, mx.synchronize), Target()
residency.keep(target, 7)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", ["5", "7", "0"])
