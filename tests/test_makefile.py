"""The first minute: what `make` says while it installs, and when it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        command,
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def quietly(log: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return run("sh", "tools/quietly.sh", str(log), "installing it", *command)


def test_a_step_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "new" / "log"
    step = quietly(log, "sh", "-c", "echo warning; echo more >&2")
    assert (step.returncode, step.stderr) == (0, "")
    assert step.stdout.startswith("installing it ... ")
    assert step.stdout.count("\n") == 1
    assert log.read_text() == "warning\nmore\n"


def test_a_step_that_fails_shows_its_last_lines_and_where_all_are(tmp_path: Path) -> None:
    log = tmp_path / "log"
    step = quietly(log, "sh", "-c", "seq 100; echo no such package >&2; exit 7")
    assert step.returncode == 7
    assert step.stdout == "installing it ... failed\n"
    lines = step.stderr.splitlines()
    assert lines[-3] == "  no such package"
    assert lines[-2].startswith("error: installing it: ")
    assert lines[-2].endswith("ended with status 7")
    assert lines[-1].endswith(str(log))
    assert len(lines) < 20
    assert len(log.read_text().splitlines()) == 101


def test_a_step_takes_nothing_from_the_keyboard(tmp_path: Path) -> None:
    assert quietly(tmp_path / "log", "sh", "-c", "! read answer").returncode == 0


@pytest.mark.parametrize(
    ("system", "remedy"),
    [("Darwin", "`brew install python@3.13`"), ("Linux", "`apt-get install python3 python3-venv`")],
)
def test_a_python_that_does_not_fit_is_refused_with_a_remedy(
    system: str, remedy: str, tmp_path: Path
) -> None:
    """Nothing is made for it, neither."""
    for name, line in {
        "uname": f"echo {system}",
        "python3.9": 'case $2 in *version*) echo " (found: 3.9.6)";; esac; false',
    }.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    venv, path = tmp_path / "venv", f"{tmp_path}:{os.environ['PATH']}"
    made = run("make", "env", "PYTHON=python3.9", f"VENV={venv}", PATH=path)
    assert made.returncode == 2
    error, hint = made.stderr.splitlines()[:2]
    assert error == "error: this needs a Python from 3.11 to 3.14 with its venv module (found: 3.9.6)"
    assert hint.startswith(f"hint: {remedy}")
    assert not venv.exists()


def test_a_failing_installation_leaves_nothing_half_installed(tmp_path: Path) -> None:
    """A step that failed is done again by the next `make`."""
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ncase "$*" in *--version*) exit 0;; esac\necho "no index"; exit 1\n')
    program.chmod(0o755)
    log = tmp_path / "log"
    made = run("make", "demo", f"VENV={tmp_path}", f"LOG={log}")
    assert made.returncode == 2
    assert made.stdout == "installing pip ... failed\n"
    assert "  no index\n" in made.stderr
    assert f"all of them in {log}" in made.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "log"]
