"""Seconds of imports are paid by those who want tokens, not by those who want help."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "mlx",
    "mlx_lm",
    "transformers",
    "tokenizers",
    "huggingface_hub",
    "numpy",
    "torch",
    "jinja2",
    "prompt_toolkit",
    "scipy_openblas32",  # its import opens the library
}

REPORT = "import sys; print('\\nLOADED', *sorted({name.split('.')[0] for name in sys.modules}))"


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh process after `code`."""
    program = f"import atexit\natexit.register(lambda: exec({REPORT!r}))\n{code}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    last = result.stdout.splitlines()[-1]
    assert last.startswith("LOADED")
    return set(last.split()[1:])


def program(*arguments: str) -> str:
    return (
        f"import sys; sys.argv = ['dflash-mlx', *{arguments!r}]; from dflash_mlx.cli.app import main; main()"
    )


def test_importing_the_package_loads_no_library() -> None:
    assert not loaded_by("import dflash_mlx; dflash_mlx.SamplingParams(); dir(dflash_mlx)") & (
        HEAVY | {"typer", "rich"}
    )


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["generate", "--help"], ["chat", "--help"]])
def test_help_loads_no_library(arguments: list[str]) -> None:
    loaded = loaded_by(program(*arguments))
    assert "typer" in loaded
    assert not loaded & (HEAVY | {"rich"})


def test_wrong_flags_are_refused_before_the_libraries_load() -> None:
    code = program("generate", "--target", "t", "--plain", "--width", "4", "--prompt", "Hi")
    assert not loaded_by(f"try:\n    {code}\nexcept SystemExit as end:\n    assert end.code == 1\n") & HEAVY


def test_public_names_are_found_when_used() -> None:
    import dflash_mlx

    for name in dflash_mlx.__all__:
        assert getattr(dflash_mlx, name) is not None
    assert set(dflash_mlx.__all__) <= set(dir(dflash_mlx))


def test_other_names_are_not_found() -> None:
    import dflash_mlx

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dflash_mlx.nothing
