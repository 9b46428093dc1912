"""What is on disk, what is declared and what is installed agree."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import dflash_mlx

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]


def test_every_package_on_disk_is_declared() -> None:
    found = []
    for name, folder in SETUPTOOLS["package-dir"].items():
        for init in (ROOT / folder).rglob("__init__.py"):
            below = init.parent.relative_to(ROOT / folder).parts
            found.append(".".join([name, *below]))
    assert sorted(found) == sorted(SETUPTOOLS["packages"])


def test_every_module_lies_in_a_package() -> None:
    for folder in SETUPTOOLS["package-dir"].values():
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), module


def test_versions_agree() -> None:
    assert PROJECT["project"]["version"] == dflash_mlx.__version__ == metadata.version("dflash-mlx")


def test_the_changelog_knows_the_version_or_what_comes_next() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_the_script_is_the_program() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="dflash-mlx")
    assert script.value == PROJECT["project"]["scripts"]["dflash-mlx"]
    assert callable(script.load())


def test_the_package_is_typed() -> None:
    assert (ROOT / "dflash_mlx" / "py.typed").exists()


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "Makefile"])
def test_nothing_installs_the_other_project_of_this_name(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(r"install\s+(?:-\S+\s+)*['\"]?dflash[-_]mlx", text)


def test_the_constraints_are_exact_and_admit_the_requirements() -> None:
    from packaging.requirements import Requirement

    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = {}
    for requirement in map(Requirement, filter(None, lines)):
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", requirement
        pins[requirement.name.lower().replace("_", "-")] = specifier.version
    asked = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]
    for requirement in map(Requirement, asked):
        version = pins[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(version), requirement
