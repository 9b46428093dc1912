"""GGUF, llama.cpp's file format, which mlx-lm does not load models from: told from what only looks broken."""

from __future__ import annotations

from pathlib import Path

from dflash_mlx.errors import UserError

SUFFIX, MAGIC = ".gguf", b"GGUF"


def is_gguf(path: Path) -> bool:
    """True for such a file, by its name or its first bytes."""
    if not path.is_file():
        return False
    if path.suffix.lower() == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def first_gguf(folder: Path) -> Path | None:
    """The first of the files so named in a folder; None if there is none."""
    if not folder.is_dir():
        return None
    return next((path for path in sorted(folder.iterdir()) if path.suffix.lower() == SUFFIX), None)


def refuse_gguf(path: Path) -> None:
    """Refuse a GGUF file, or a folder that holds one where a model's files were looked for in vain.

    Raises:
        UserError: It is one.
    """
    found = path if is_gguf(path) else first_gguf(path)
    if found is not None:
        raise gguf_error(str(found))


def gguf_error(name: str) -> UserError:
    """The error for a file or a repository of this name."""
    return UserError(
        f"`{name}` is in GGUF, llama.cpp's format, which is not read here",
        "take the same model in safetensors or in MLX format",
    )
