"""The cached context: however rows arrive, are skipped or come back, drafts are those of a fresh context."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from drafter_cases import (
    LAYOUTS,
    TOLERANCE,
    close,
    features,
    hidden,
    random_drafter,
    random_target,
    raw_config,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_mlx.drafters.context import DrafterContext, LayerContext
from dflash_mlx.drafters.dflash import DFlashDrafter

LONGEST = 40
ROWS = features(LONGEST)
TARGET = random_target()
DRAFTERS = {
    (name, generation): random_drafter(raw_config(generation, layers, is_causal=causal))
    for name, layers in LAYOUTS.items()
    for generation, causal in ((1, None), (2, False))
}
QUICK = settings(max_examples=20, deadline=None)
every_drafter = st.sampled_from(sorted(DRAFTERS))
chunks = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def fresh(drafter: DFlashDrafter, length: int, rows: mx.array = ROWS) -> mx.array:
    context = drafter.new_context()
    if length:
        drafter.extend(rows[:, :length], context)
    return hidden(drafter, context, TARGET)


def same(drafter: DFlashDrafter, context: Any, length: int, rows: mx.array = ROWS) -> bool:
    found = context.length == length
    return found and close(hidden(drafter, context, TARGET), fresh(drafter, length, rows), TOLERANCE / 2)


@QUICK
@given(which=every_drafter, sizes=chunks, drafts=st.lists(st.booleans(), min_size=8, max_size=8))
def test_any_split_of_the_context(which: tuple[str, int], sizes: list[int], drafts: list[bool]) -> None:
    drafter = DRAFTERS[which]
    context, length = drafter.new_context(), 0
    for size, draft in zip(sizes, drafts, strict=False):
        size = min(size, LONGEST - length)
        if size:
            drafter.extend(ROWS[:, length : length + size], context)
        length += size
        if draft:  # leaves nothing behind
            assert same(drafter, context, length)
    assert same(drafter, context, length)


@pytest.mark.parametrize("which", sorted(DRAFTERS))
def test_rows_one_at_a_time(which: tuple[str, int]) -> None:
    """What a ring buffer gets wrong: exactly one row committed, with the window full."""
    drafter, context = DRAFTERS[which], DRAFTERS[which].new_context()
    for length in range(1, 13):
        drafter.extend(ROWS[:, length - 1 : length], context)
        assert same(drafter, context, length)


@pytest.mark.parametrize("which", sorted(DRAFTERS))
def test_drafting_without_context(which: tuple[str, int]) -> None:
    drafter = DRAFTERS[which]
    assert mx.all(mx.isfinite(hidden(drafter, drafter.new_context(), TARGET)))


@QUICK
@given(generation=st.sampled_from([1, 2]), skipped=st.integers(0, 30), sizes=chunks)
def test_skipping_equals_extending(generation: int, skipped: int, sizes: list[int]) -> None:
    drafter = DRAFTERS["sliding", generation]
    assert drafter.window == 4
    context, length = drafter.new_context(), 3
    drafter.extend(ROWS[:, :3], context)
    skipped = min(skipped, LONGEST - 3 - drafter.window)
    context.skip(skipped)
    length += skipped
    for size in [*sizes, drafter.window]:
        size = min(size, LONGEST - length)
        if size:
            drafter.extend(ROWS[:, length : length + size], context)
        length += size
    assert same(drafter, context, length)


def test_skip_is_for_windows_only_and_rows_must_follow() -> None:
    for name in ("full", "mixed"):
        with pytest.raises(ValueError, match="cannot skip 5 rows"):
            DRAFTERS[name, 1].new_context().skip(5)
    drafter = DRAFTERS["sliding", 1]
    context = drafter.new_context()
    with pytest.raises(ValueError, match="cannot skip -1 rows"):
        context.skip(-1)
    context.skip(10)
    drafter.extend(ROWS[:, 10:13], context)
    with pytest.raises(ValueError, match="less than a draft sees"):
        hidden(drafter, context, TARGET)
    drafter.extend(ROWS[:, 13:14], context)
    assert same(drafter, context, 14)


@QUICK
@given(which=every_drafter, data=st.data())
def test_snapshots_in_any_order(which: tuple[str, int], data: st.DataObject) -> None:
    """Extend, draft, snapshot and restore at random; rows after a restore differ from those before it."""
    drafter = DRAFTERS[which]
    context, rows = drafter.new_context(), ROWS[:, :0]
    saved: list[tuple[Any, mx.array]] = []
    for step in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["extend", "snapshot", "restore", "draft"]))
        if action == "extend":
            new = features(data.draw(st.integers(1, 7)), seed=step)
            drafter.extend(new, context)
            rows = mx.concatenate([rows, new], axis=1)
        elif action == "snapshot":
            saved.append((context.snapshot(), rows))
        elif action == "restore" and saved:
            snapshot, then = saved[data.draw(st.integers(0, len(saved) - 1))]
            if snapshot.stale:
                with pytest.raises(ValueError, match="was overwritten"):
                    context.restore(snapshot)
            else:
                context.restore(snapshot)
                rows = then
        else:
            assert same(drafter, context, rows.shape[1], rows)
        assert all(not snapshot.stale for snapshot, _ in saved) or which[0] != "sliding"
    assert same(drafter, context, rows.shape[1], rows)


def test_a_snapshot_survives_what_comes_after_it() -> None:
    for name in ("full", "mixed", "sliding"):
        drafter = DRAFTERS[name, 2]
        context = drafter.new_context()
        drafter.extend(ROWS[:, :9], context)
        snapshot = context.snapshot()
        for seed in range(3):
            drafter.extend(features(7, seed=seed), context)
            hidden(drafter, context, TARGET)
            context.restore(snapshot)
            assert same(drafter, context, 9)


def test_an_overwritten_or_foreign_snapshot_is_refused() -> None:
    drafter = DRAFTERS["mixed", 2]
    context = drafter.new_context()
    drafter.extend(ROWS[:, :4], context)
    short = context.snapshot()
    drafter.extend(ROWS[:, 4:9], context)
    long = context.snapshot()
    context.restore(short)
    context.restore(long)  # nothing was written in between
    assert same(drafter, context, 9)
    context.restore(short)
    hidden(drafter, context, TARGET)  # a block lies where rows 4.. were
    with pytest.raises(ValueError, match="the snapshot of length 9"):
        context.restore(long)
    assert same(drafter, context, 4)
    drafter.extend(ROWS[:, 4:9], context)
    long = context.snapshot()
    context.restore(short)
    drafter.extend(ROWS[:, 4:5], context)  # so does a row that stays
    with pytest.raises(ValueError, match="the snapshot of length 9"):
        context.restore(long)
    with pytest.raises(ValueError, match="is not of this context"):
        drafter.new_context().restore(short)


# ---- buffers


def rows_of(start: int, count: int) -> tuple[mx.array, mx.array]:
    keys = mx.broadcast_to(mx.arange(start, start + count, dtype=mx.float32)[:, None], (count, 4))
    return keys[None, None], -keys[None, None]


@pytest.mark.parametrize("window", [1, 6, 255, 256, 300, None])
def test_time_order_and_bounded_memory(window: int | None) -> None:
    layer, end = LayerContext(window), 0
    for count in [1, 5, 300, *[1, 2, 7] * 120, 700, *[3] * 200]:
        layer.append(*rows_of(end, count))
        end += count
        keys, values = layer.with_block(*rows_of(10_000, 8))
        wanted = list(range(end - layer.rows, end)) + list(range(10_000, 10_008))
        if end % 5 == 0:
            assert keys[0, 0, :, 0].tolist() == wanted
            assert mx.array_equal(keys, -values)
            assert layer.rows == (end if window is None else min(end, window))
        if window is not None:
            assert layer.arrays()[0].shape[2] <= max(window, layer.rows) + 2 * 256
    assert [array.shape[2] for array in layer.visible()] == [layer.rows] * 2


@pytest.mark.parametrize("window", [None, 20_000])
def test_drafting_copies_no_context(window: int | None) -> None:
    layer = LayerContext(window)
    block = mx.zeros((1, 2, 8, 64)), mx.zeros((1, 2, 8, 64))
    context = mx.random.normal((1, 2, 20_100, 64))
    layer.append(context, context)
    mx.eval(*layer.with_block(*block))  # the buffer has room now
    for _ in range(3):
        layer.append(*block)
        mx.eval(layer.arrays())
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        keys, values = layer.with_block(*block)
        mx.eval(keys, values)
        del keys, values
        assert mx.get_peak_memory() - before < 100_000  # the buffers are 10 MB each


def test_long_chunks_keep_no_more_than_the_window() -> None:
    drafter = DRAFTERS["sliding", 2]
    context = drafter.new_context()
    drafter.extend(features(2000), context)
    mx.eval(context.arrays())
    assert context.length == 2000
    assert context.nbytes == sum(array.nbytes for array in context.arrays())
    assert context.nbytes == 2 * 2 * 2 * 256 * 8 * 4  # layers, keys and values, heads, rows, head_dim, bytes


def test_a_held_snapshot_costs_its_window_only() -> None:
    context = DrafterContext([10, None])
    rows = mx.zeros((1, 2, 4000, 64))
    for layer in context.layers:
        layer.append(rows, rows)
    context.advance(4000)
    mx.eval(context.arrays())
    before = mx.get_active_memory()
    snapshot = context.snapshot()
    mx.synchronize()
    assert mx.get_active_memory() - before < 50_000
    assert snapshot.windows[1] is None
    for layer in context.layers:  # and the next rows go into the same buffers
        layer.append(rows[..., :1, :], rows[..., :1, :])
    mx.eval(context.arrays())
    assert mx.get_active_memory() - before < 50_000
