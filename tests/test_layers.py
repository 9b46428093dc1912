"""Who may import and use what: read from the source, so that a slip fails before it matters."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGINE = sorted((ROOT / "dflash_mlx").rglob("*.py"))
CLI = sorted((ROOT / "cli").rglob("*.py"))
CONVERTER = sorted((ROOT / "weights_convert").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))

# Looking at objects by the names of their attributes is for targets/, which meets models of every family.
# Elsewhere each use has its reason.
BY_NAME = {
    "dflash_mlx/__init__.py": "PEP 562: hands out the public names of other modules",
    "dflash_mlx/types.py": "checks its own fields in a loop",
}


# Nor is the environment read but here.
ENVIRONMENT = {"dflash_mlx/blas.py": "OpenBLAS takes how long its threads wait from nowhere else"}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def package(path: Path) -> list[str]:
    """The dotted name of the package that a file belongs to, as installed."""
    parts = list(path.relative_to(ROOT).parts[:-1])
    return parts if parts[0] == "dflash_mlx" else ["dflash_mlx", *parts]


def imports(path: Path) -> Iterator[str]:
    """Full names of what a file imports, inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package(path)[: len(package(path)) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def within(imported: str, *packages: str) -> bool:
    return any(imported == one or imported.startswith(f"{one}.") for one in packages)


def calls(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


@pytest.mark.parametrize("path", ENGINE, ids=name)
def test_the_engine_knows_neither_terminals_nor_the_converter(path: Path) -> None:
    above = (
        "cli",
        "weights_convert",
        "dflash_mlx.cli",
        "dflash_mlx.weights_convert",
        "typer",
        "click",
        "rich",
        "prompt_toolkit",
    )
    assert [one for one in imports(path) if within(one, *above)] == []
    assert "print" not in calls(path)
    assert "input" not in calls(path)


@pytest.mark.parametrize("path", ENGINE, ids=name)
def test_the_engine_computes_without_numpy(path: Path) -> None:
    assert [one for one in imports(path) if within(one, "numpy", "scipy", "torch")] == []


@pytest.mark.parametrize("path", CLI, ids=name)
def test_the_command_line_knows_no_tensors(path: Path) -> None:
    tensors = ("mlx", "mlx_lm", "numpy", "transformers")
    assert [one for one in imports(path) if within(one, *tensors)] == []


@pytest.mark.parametrize("path", [*CLI, *CONVERTER], ids=name)
def test_folders_with_two_names_are_imported_by_one(path: Path) -> None:
    assert [one for one in imports(path) if within(one, "cli", "weights_convert")] == []


@pytest.mark.parametrize("path", [p for p in CLI if p.name != "console.py"], ids=name)
def test_only_the_console_prints(path: Path) -> None:
    assert "print" not in calls(path)
    written = [node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)]
    assert not {"stdout", "stderr"} & set(written)
    assert [one for one in imports(path) if within(one, "rich.console")] == []


@pytest.mark.parametrize("path", [*ENGINE, *CONVERTER], ids=name)
def test_no_hidden_switches(path: Path) -> None:
    if name(path) in ENVIRONMENT:
        return
    attributes = {node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}
    assert not {"environ", "getenv", "putenv"} & attributes
    assert [one for one in imports(path) if one in ("os.environ", "os.getenv")] == []


@pytest.mark.parametrize("path", [*ENGINE, *CONVERTER, *BENCHMARKS], ids=name)
def test_one_module_asks_for_the_device(path: Path) -> None:
    attributes = {node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}
    asked = {"default_device", "device_info"} & attributes
    assert asked == ({"default_device", "device_info"} if name(path) == "dflash_mlx/device.py" else set())


@pytest.mark.parametrize("path", [*ENGINE, *CLI, *CONVERTER], ids=name)
def test_attributes_by_name_only_where_models_differ(path: Path) -> None:
    if name(path).startswith("dflash_mlx/targets/") or name(path) in BY_NAME:
        return
    assert not {"getattr", "hasattr", "setattr", "delattr"} & set(calls(path))


def test_every_exception_is_needed() -> None:
    for file, reason in BY_NAME.items():
        assert reason
        assert {"getattr", "hasattr", "setattr", "delattr"} & set(calls(ROOT / file)), file


@pytest.mark.parametrize("path", [*ENGINE, *CLI, *CONVERTER], ids=name)
def test_nothing_is_assigned_to_foreign_classes_or_modules(path: Path) -> None:
    """`Imported.name = value` and `module.Class.name = value`; instances are another matter."""
    module = tree(path)
    imported = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                imported.add((alias.asname or alias.name).split(".")[0])
    for node in ast.walk(module):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        for target in targets:
            if isinstance(target, ast.Attribute):
                assert root(target) not in imported, f"{path}:{target.lineno}: {ast.unparse(target)}"


def root(node: ast.expr) -> str | None:
    """The name that a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


@pytest.mark.parametrize("path", [*ENGINE, *CLI, *CONVERTER], ids=name)
def test_imports_are_declared(path: Path) -> None:
    declared = {
        "dflash_mlx",
        "mlx",
        "mlx_lm",
        "huggingface_hub",
        "jinja2",
        "markdown_it",
        "prompt_toolkit",
        "rich",
        "sentencepiece",
        "typer",
    }
    tops = {one.split(".")[0] for one in imports(path)} - set(sys.stdlib_module_names)
    if name(path) == "dflash_mlx/train/plot.py":
        declared = declared | {"matplotlib"}  # the extra `plot`
    # transformers belongs to mlx-lm, which gives out its tokenizers.
    assert tops <= declared | {"transformers"}
