"""What a pair takes of the memory: arithmetic, and the caches of every family as they really are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from mlx_lm.utils import _get_classes

from dflash_mlx import memory
from dflash_mlx.config import load_config, parse_config
from dflash_mlx.errors import UserError
from dflash_mlx.memory import LayerCache, Machine, Need
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
    estimate = memory.cache_bytes(cache_footprint(target.model), context + 1)
    if FAMILIES[name].caches == "rotating":
        # Its buffer grows to the window, and on from what a long chunk left.
        assert estimate <= state.nbytes
        return
    assert estimate == state.nbytes


def test_a_rotating_cache_takes_its_window() -> None:
    target = tiny.build("gemma3_text")
    state = target.new_state()
    for _ in range(3 * tiny.WINDOW):
        target.forward(mx.zeros((1, 1), mx.int32), state)
    mx.eval(state.arrays())
    assert memory.cache_bytes(cache_footprint(target.model), 3 * tiny.WINDOW) == state.nbytes


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("window", [None, 8])
def test_the_drafters_context(generation: int, window: int | None) -> None:
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": window}
    drafter = tiny.build_drafter(generation, **(sliding if window else {}))
    context = drafter.new_context()
    for _ in range(40):
        drafter.extend(mx.zeros((1, 10, 3 * tiny.HIDDEN)), context)
    estimate = memory.cache_bytes(memory.drafter_caches(drafter.config, 4), 400)
    rows = 2 * 2 * 8 * 4  # keys and values, heads, head size, float32
    assert context.nbytes <= estimate <= context.nbytes + 256 * rows


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
        assert memory.cache_bytes(caches, context) == states + context * 16 * 4096
    drafter = memory.drafter_caches(parse_config(read("qwen3.8-27b-dflash2.config.json")), 2)
    assert memory.cache_bytes(drafter, 262_144) == 5 * 4096 * (2048 + 256)  # five sliding layers
    work = memory.work_bytes(text_config(read("qwen3.8-27b.target.config.json")), 5, 4096, 2)
    assert work == pytest.approx(0.49 * GB, rel=0.01)


def test_drafters_of_real_size() -> None:
    full = load_config_of("muse-glimmer-30b-dflash2")
    assert memory.cache_bytes(memory.drafter_caches(full, 2), 4096) < 0.3 * GB


def load_config_of(name: str) -> Any:
    return parse_config(read(f"{name}.config.json"))


def test_golden_configs_are_read_too() -> None:
    config = load_config(CHECKPOINTS.parent / "golden" / "05_dflash2_mixed")
    windows = {cache.window for cache in memory.drafter_caches(config, 4)}
    assert None in windows
    assert len(windows) == 2


@pytest.mark.parametrize(
    ("config", "context", "size"),
    [
        ({"hidden_size": 10, "intermediate_size": 100}, 1, 2 * (8 * 10 + 3 * 100)),
        ({"hidden_size": 10, "intermediate_size": 100}, 5000, 2048 * 2 * (8 * 10 + 3 * 100)),
        ({"hidden_size": 10, "moe_intermediate_size": 20, "num_experts_per_tok": 4}, 1, 2 * (80 + 3 * 80)),
        ({}, 100, 0),
    ],
)
def test_room_to_work_in(config: dict[str, Any], context: int, size: int) -> None:
    assert memory.work_bytes(config, 0, context, 2) == size


# ---- against the machine -------------------------------------------------------------------------------


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


NEED = Need(target=15 * GB, drafter=int(1.4 * GB), caches=int(2.5 * GB), work=GB // 2, context=32_768)


@pytest.mark.parametrize("there", [Machine(None), Machine(24 * GB), Machine(64 * GB, 20 * GB, metal=True)])
def test_what_fits(there: Machine) -> None:
    memory.check("owner/model", NEED, there)


@pytest.mark.parametrize(
    ("there", "available", "moved"),
    [
        (Machine(16 * GB), "16.0", False),
        (Machine(16 * GB, 12 * GB, metal=True), "12.0", False),
        (Machine(24 * GB, 18 * GB, metal=True), "18.0", True),
        (Machine(24 * GB, 18 * GB), "18.0", False),
    ],
)
def test_what_does_not_fit(there: Machine, available: str, moved: bool) -> None:
    with pytest.raises(UserError) as caught:
        memory.check("owner/model", NEED, there)
    assert caught.value.message == f"`owner/model` needs about 19.4 GB, {available} GB are available"
    hint = str(caught.value.hint)
    assert hint.startswith("target 15.0 GB, drafter 1.4 GB, caches of 32,768 tokens 2.5 GB, work 0.5 GB; ")
    assert ("sudo sysctl iogpu.wired_limit_mb=18502" in hint) == moved
    assert "--force" in hint


def test_the_longest_context_that_fits() -> None:
    def need(context: int) -> Need:
        return Need(1000, caches=memory.cache_bytes([LayerCache(10), LayerCache(10, window=300)], context))

    for available in (999, 1000, 6119, 6120, 10**4, 10**6):
        longest = memory.longest_context(need, Machine(available))
        assert longest is not None
        assert longest % memory.ROW_STEP == 0
        assert longest == 0 or need(longest).total <= available
        assert need(longest + 1).total > available
    assert memory.longest_context(need, Machine(10**6), most=500) == 500
    assert memory.longest_context(need, Machine(1000), most=500) == 0
    assert memory.longest_context(need, Machine(None)) is None
