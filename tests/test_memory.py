"""What a pair takes of the memory: arithmetic, and the caches of every family as they really are."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import _get_classes

from dflash_mlx import estimate, memory, scores
from dflash_mlx.config import load_config, parse_config
from dflash_mlx.errors import UserError
from dflash_mlx.estimate import LEAST_SPARE, Estimate, Widths, widths_of
from dflash_mlx.memory import LayerCache, Machine, Need
from dflash_mlx.scores import LEAST_CHUNK_ROWS, SCORES_LIMIT, Scores, attention_scores, chunk_rows
from dflash_mlx.sources import text_config
from dflash_mlx.targets import FAMILIES
from dflash_mlx.targets.footprint import cache_footprint

CHECKPOINTS = Path(__file__).parent / "data" / "checkpoints"
GB = 10**9


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHECKPOINTS / name).read_text())
    return found


@pytest.mark.parametrize(
    ("cache", "context", "size"),
    [
        (LayerCache(10), 0, 0),
        (LayerCache(10), 1, 2560),
        (LayerCache(10), 256, 2560),
        (LayerCache(10), 257, 5120),
        (LayerCache(10, window=100), 1, 1000),
        (LayerCache(10, window=1000), 300, 5120),
        (LayerCache(10, window=1000), 10**6, 10_000),
        (LayerCache(0, fixed_bytes=77), 1, 77),
        (LayerCache(0, fixed_bytes=77), 10**6, 77),
    ],
)
def test_one_layer(cache: LayerCache, context: int, size: int) -> None:
    assert cache.nbytes(context) == size


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("context", [1, 5, 300])
def test_every_family_takes_what_was_estimated(name: str, context: int) -> None:
    """One token after another: a prompt's chunk leaves more rows in a rotating cache, until the next step."""
    target = tiny.build(name)
    state = target.new_state()
    target.forward(mx.zeros((1, context), mx.int32), state)
    target.forward(mx.zeros((1, 1), mx.int32), state)
    mx.eval(state.arrays())
    size = estimate.cache_bytes(cache_footprint(target.model), context + 1)
    if FAMILIES[name].caches == "rotating":
        # Its buffer grows to the window, and on from what a long chunk left.
        assert size <= state.nbytes
        return
    assert size == state.nbytes


def test_a_rotating_cache_takes_its_window() -> None:
    target = tiny.build("gemma3_text")
    state = target.new_state()
    for _ in range(3 * tiny.WINDOW):
        target.forward(mx.zeros((1, 1), mx.int32), state)
    mx.eval(state.arrays())
    assert estimate.cache_bytes(cache_footprint(target.model), 3 * tiny.WINDOW) == state.nbytes


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("window", [None, 8])
def test_the_drafters_context(generation: int, window: int | None) -> None:
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": window}
    drafter = tiny.build_drafter(generation, **(sliding if window else {}))
    context = drafter.new_context()
    for _ in range(40):
        drafter.extend(mx.zeros((1, 10, 3 * tiny.HIDDEN)), context)
    size = estimate.cache_bytes(estimate.drafter_caches(drafter.config, 4), 400)
    rows = 2 * 2 * 8 * 4  # keys and values, heads, head size, float32
    assert context.nbytes <= size <= context.nbytes + 256 * rows


def qwen38() -> tuple[LayerCache, ...]:
    """A model of real size, of which nothing is ever allocated."""
    config = read("qwen3.8-27b.target.config.json")
    model_class, args_class = _get_classes(config)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    model = model_class(args_class.from_dict(config))
    model.set_dtype(mx.bfloat16)
    caches = cache_footprint(model)
    assert mx.get_peak_memory() - before < 10**6
    return caches


def test_qwen38_27b() -> None:
    """By hand: 16 full layers of 2 x 4 heads x 256 x 2 bytes, 48 with a state of 48 x 128 x 128 x 4 bytes and
    three rows of 10,240 x 2 bytes for their convolution."""
    caches = qwen38()
    assert len(caches) == 64
    states = 48 * (48 * 128 * 128 * 4 + 3 * 10_240 * 2)
    for context in (4096, 32_768, 262_144):
        assert estimate.cache_bytes(caches, context) == states + context * 16 * 4096
    drafter = estimate.drafter_caches(parse_config(read("qwen3.8-27b-dflash2.config.json")), 2)
    assert estimate.cache_bytes(drafter, 262_144) == 5 * 4096 * (2048 + 256)  # five sliding layers
    widths = widths_of(
        text_config(read("qwen3.8-27b.target.config.json")), 256, taps=5, block=16, vocabulary=248_320
    )
    work = estimate.work_bytes(widths, 2048, 2)
    assert work == pytest.approx(0.52 * GB, rel=0.01)


def qwen38_estimate(device: str) -> Estimate:
    """At 4 bits, with its drafter, in bfloat16."""
    text, target = text_config(read("qwen3.8-27b.target.config.json")), qwen38()
    drafter = parse_config(read("qwen3.8-27b-dflash2.config.json"))
    return Estimate(
        Need(15 * GB, int(1.36 * GB)),
        (*target, *estimate.drafter_caches(drafter, 2)),
        attention_scores(target, text, 2, device),
        widths_of(text, 256, taps=5, block=16, vocabulary=248_320),
        item_bytes=2,
    )


def test_qwen38_27b_reading_a_long_prompt() -> None:
    """By hand: 24 heads x 2 bytes for each pair of a row and a key; a state of 154 MB in each snapshot."""
    whole = qwen38_estimate("metal")
    assert whole.scores == (Scores(24 * 2 + 1),)
    rows = [chunk_rows(whole.scores, start, 2048) for start in (0, 4000, 16_000, 32_000)]
    assert rows == [2048, 1024, 512, 256]
    need = whole.need(32_768)
    assert need.scores == 49 * 256 * 32_768
    assert need.snapshots == 4 * (48 * (48 * 128 * 128 * 4 + 3 * 10_240 * 2) + 5 * 4096 * (2048 + 256))
    # At 2,048 rows they would be more than the caches.
    assert scores.score_bytes(whole.scores, 2048, 32_768) == pytest.approx(3.3 * GB, rel=0.01)
    assert str(need).startswith(
        "target 15.0 GB, drafter 1.4 GB, caches of 32,768 tokens 2.3 GB, snapshots 0.8 GB, "
    )
    assert "attention scores 0.4 GB, work 0.3 GB, spare buffers 0.3 GB" in str(need)


def test_drafters_of_real_size() -> None:
    full = load_config_of("muse-glimmer-30b-dflash2")
    assert estimate.cache_bytes(estimate.drafter_caches(full, 2), 4096) < 0.3 * GB


def load_config_of(name: str) -> Any:
    return parse_config(read(f"{name}.config.json"))


def test_golden_configs_are_read_too() -> None:
    config = load_config(CHECKPOINTS.parent / "golden" / "05_dflash2_mixed")
    windows = {cache.window for cache in estimate.drafter_caches(config, 4)}
    assert None in windows
    assert len(windows) == 2


@pytest.mark.parametrize(
    ("config", "rows", "size"),
    [
        ({"hidden_size": 10, "intermediate_size": 100}, 1, 2 * (8 * 10 + 3 * 100)),
        ({"hidden_size": 10, "num_attention_heads": 5}, 7, 7 * 2 * 8 * 5 * 4),
        ({"hidden_size": 10, "moe_intermediate_size": 20, "num_experts_per_tok": 4}, 1, 2 * (80 + 3 * 80)),
        ({}, 100, 0),
    ],
)
def test_room_to_work_in(config: dict[str, Any], rows: int, size: int) -> None:
    widths = widths_of(config, 4, taps=0, block=0, vocabulary=1000)
    assert estimate.work_bytes(widths, rows, 2) == size


def test_a_verify_pass_can_take_more_than_a_prompt() -> None:
    widths = widths_of({"hidden_size": 10}, 0, taps=2, block=16, vocabulary=200_000)
    assert widths == Widths(attention=10, taps=20, logits=16 * 200_000)
    assert estimate.work_bytes(widths, 1, 2) == 10 * 16 * 200_000 * 4


# ---- attention scores ----------------------------------------------------------------------------------

FULL = LayerCache(100, head_dim=128)


@pytest.mark.parametrize(
    ("device", "head_dim", "fused"),
    [
        ("metal", 64, True),
        ("metal", 80, True),
        ("metal", 128, True),
        ("metal", 32, False),
        ("metal", 192, False),
        ("metal", 256, False),
        ("cpu", 128, False),
        ("cuda", 128, False),
    ],
)
def test_what_is_fused(device: str, head_dim: int, fused: bool) -> None:
    assert scores.fused(device, head_dim) == fused
    found = attention_scores([LayerCache(1, head_dim=head_dim)], {"num_attention_heads": 3}, 2, device)
    assert found == (() if fused else (Scores(7),))


@pytest.mark.parametrize(
    ("caches", "config", "expected"),
    [
        ([FULL], {}, ()),
        ([FULL, FULL], {"num_attention_heads": 8, "attn_logit_softcapping": 50.0}, (Scores(17),)),
        ([FULL], {"num_attention_heads": 8, "kv_lora_rank": 512}, (Scores(33),)),
        ([LayerCache(0, fixed_bytes=9)], {"num_attention_heads": 8, "kv_lora_rank": 512}, ()),
        ([LayerCache(1, head_dim=32)], {"num_attention_heads": 8, "model_type": "gpt_oss"}, (Scores(49),)),
        ([LayerCache(1, head_dim=64)], {"num_attention_heads": 8, "model_type": "gpt_oss"}, ()),
        (
            [LayerCache(1, head_dim=256, window=512), LayerCache(1, head_dim=256)],
            {"num_attention_heads": 8},
            (Scores(17), Scores(17, window=512)),
        ),
    ],
)
def test_whose_scores_are_written(
    caches: list[LayerCache], config: dict[str, Any], expected: tuple[Scores, ...]
) -> None:
    assert attention_scores(caches, config, 2, "metal") == expected


def test_scores_of_a_window() -> None:
    assert Scores(10, window=100).nbytes(50, 120) == 10 * 50 * 120
    assert Scores(10, window=100).nbytes(50, 9999) == 10 * 50 * 150
    assert scores.score_bytes([Scores(10, window=100), Scores(1)], 50, 9999) == 50 * 9999


LAYERS = st.lists(
    st.builds(
        LayerCache,
        st.integers(0, 10**4),
        st.none() | st.integers(1, 10**4),
        st.integers(0, 10**6),
        st.sampled_from([0, 64, 256]),
    ),
    min_size=1,
    max_size=4,
)


@given(LAYERS, st.integers(0, 64), st.integers(1, 4096), st.lists(st.integers(0, 200_000), min_size=2))
def test_a_longer_context_never_needs_less(
    layers: list[LayerCache], heads: int, most_rows: int, contexts: list[int]
) -> None:
    found = attention_scores(layers, {"num_attention_heads": heads}, 2, "metal")
    whole = Estimate(Need(7, 5), layers, found, Widths(6144, 25_600, 17_408, 10**6), 2, most_rows)
    needs = [whole.need(context) for context in sorted(contexts)]
    assert all(first.peak <= second.peak for first, second in itertools.pairwise(needs))
    assert all(min(vars(need).values()) >= 0 for need in needs)


@settings(deadline=None)
@given(LAYERS, st.integers(1, 64), st.integers(8, 4096), st.integers(1, 50_000))
def test_no_chunk_needs_more_than_was_estimated(
    layers: list[LayerCache], heads: int, most_rows: int, context: int
) -> None:
    """A prompt chunk by chunk, as `prefill` reads it."""
    found = attention_scores(layers, {"num_attention_heads": heads}, 4, "cpu")
    whole = Estimate(Need(0), layers, found, Widths(4096, 0, 4096), 4, most_rows, snapshots=0)
    need, start = whole.need(context), 0
    while start < context:
        rows = min(chunk_rows(found, start, most_rows), context - start)
        start += rows
        passing = scores.score_bytes(found, rows, start) + estimate.work_bytes(whole.widths, rows, 4)
        assert estimate.cache_bytes(layers, start, rows) + passing <= need.peak
        assert scores.score_bytes(found, rows, start) <= SCORES_LIMIT or rows <= LEAST_CHUNK_ROWS


def test_spare_buffers_take_what_is_left() -> None:
    whole = qwen38_estimate("metal")
    peak, most = whole.need(8192).peak, 10 * GB
    one_chunk = whole.spare(8192, None)
    assert one_chunk == pytest.approx(1.02 * GB, rel=0.01)  # scores and work of 2,048 rows
    assert whole.spare(8192, peak + most) == one_chunk
    assert whole.spare(8192, peak + 700_000_000) == 700_000_000
    assert whole.spare(8192, peak) == whole.spare(8192, 0) == LEAST_SPARE == whole.need(8192).spare
    assert replace(whole, spare_limit=1000).need(8192).spare == 1000


# ---- against the machine -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "power"), [(-5, 1), (0, 1), (0.9, 1), (1, 1), (2.9, 2), (255, 128), (256, 256), (10**9, 2**29)]
)
def test_powers_of_two(number: float, power: int) -> None:
    assert scores.power_of_two(number) == power


@pytest.mark.parametrize(
    ("device", "memory_size", "available", "metal"),
    [
        ({"memory_size": 16 * GB, "max_recommended_working_set_size": 12 * GB}, 16 * GB, 12 * GB, True),
        ({"memory_size": 16 * GB}, None, 16 * GB, False),
        ({"total_memory": 80 * GB, "free_memory": 70 * GB}, 500 * GB, 70 * GB, False),
        ({"architecture": "x86_64"}, 32 * GB, 32 * GB, False),
        ({}, None, None, False),
    ],
)
def test_machines(
    device: dict[str, Any], memory_size: int | None, available: int | None, metal: bool
) -> None:
    machine = memory.machine(device, memory_size)
    assert (machine.available, machine.metal) == (available, metal)


NEED = Need(
    target=15 * GB, drafter=int(1.4 * GB), caches=2 * GB, scores=GB // 2, work=GB // 2, context=32_768
)


@pytest.mark.parametrize("there", [Machine(None), Machine(24 * GB), Machine(64 * GB, 20 * GB, metal=True)])
def test_what_fits(there: Machine) -> None:
    memory.check("owner/model", NEED, there)


@pytest.mark.parametrize(
    ("there", "available", "moved"),
    [
        (Machine(16 * GB), "16.0", False),
        (Machine(16 * GB, 12 * GB, metal=True), "12.0", False),
        (Machine(25 * GB, 18 * GB, metal=True), "18.0", True),
        (Machine(24 * GB, 18 * GB, metal=True), "18.0", False),  # 4.6 GB for macOS
        (Machine(24 * GB, 18 * GB), "18.0", False),
    ],
)
def test_what_does_not_fit(there: Machine, available: str, moved: bool) -> None:
    with pytest.raises(UserError) as caught:
        memory.check("owner/model", NEED, there)
    assert caught.value.message == f"`owner/model` needs about 19.4 GB, {available} GB are available"
    hint = str(caught.value.hint)
    assert hint.startswith(
        "target 15.0 GB, drafter 1.4 GB, caches of 32,768 tokens 2.0 GB, attention scores 0.5 GB, "
        "work 0.5 GB; "
    )
    assert ("sudo sysctl iogpu.wired_limit_mb=18502" in hint) == moved
    assert ("macOS needs the rest" in hint) == (there == Machine(24 * GB, 18 * GB, metal=True))
    assert "take a smaller target or a shorter context, or `--force` to try" in hint


@given(st.integers(8, 512), st.floats(0, 1.2))
def test_the_limit_that_is_proposed_is_enough_and_leaves_enough(gib: int, share: float) -> None:
    total = gib * 2**30
    need = int(share * total)
    limit = memory.wired_limit_mb(need, total)
    if limit is None:
        assert need > 0.8 * total - 2**20 or need > total - 4 * 2**30 - 2**20
        return
    assert total - limit * 2**20 >= max(0.2 * total, 4 * 2**30)
    # What Metal then recommends admits the need.
    memory.check("owner/model", Need(need), Machine(total, limit * 2**20, metal=True))


@pytest.mark.parametrize(
    ("gib", "need", "limit"), [(8, 4, 4096), (8, 5, None), (16, 12, 12_288), (64, 52, None)]
)
def test_limits_by_hand(gib: int, need: int, limit: int | None) -> None:
    assert memory.wired_limit_mb(need * 2**30, gib * 2**30) == limit


def test_the_longest_context_that_fits() -> None:
    def need(context: int) -> Need:
        return Need(1000, caches=estimate.cache_bytes([LayerCache(10), LayerCache(10, window=300)], context))

    for available in (999, 1000, 6119, 6120, 10**4, 10**6):
        longest = memory.longest_context(need, Machine(available))
        assert longest is not None
        assert longest % memory.ROW_STEP == 0
        assert longest == 0 or need(longest).total <= available
        assert need(longest + 1).total > available
    assert memory.longest_context(need, Machine(10**6), most=500) == 500
    assert memory.longest_context(need, Machine(1000), most=500) == 0
    assert memory.longest_context(need, Machine(None)) is None
