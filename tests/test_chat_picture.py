"""The picture for the README: a chat that really ran, and nothing loaded from elsewhere."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import chat_cases
import pytest


def test_a_picture_of_two_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = chat_cases.write_pair(tmp_path)
    spec = importlib.util.spec_from_file_location(
        "chat_picture", Path(__file__).parent.parent / "tools" / "chat_picture.py"
    )
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    out = tmp_path / "chat.svg"
    arguments = ["--target", case.target, "--drafter", case.drafter, "--max-tokens", "24", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["chat_picture.py", *arguments, "w10 w11", "w12"])
    tool.main()
    assert capsys.readouterr().out.startswith(f"{out}: ")

    def said() -> str:
        return "\n".join(ElementTree.parse(out).getroot().itertext()).replace("\u00a0", " ")

    for words in ("> w10 w11", "> w12", "DFlash 2", "kept by position", "first token", "reused"):
        assert words in said()
    assert not re.search(r"@font-face|url\(\W?http|href", out.read_text(encoding="utf-8"))
    monkeypatch.setattr(sys, "argv", ["chat_picture.py", *arguments, "--unseen", "1", "w10 w11", "w12"])
    tool.main()
    assert "> w10 w11" not in said()
    assert said().count("kept by position") == 1
    assert all(words in said() for words in ("DFlash 2", "> w12", "reused"))
