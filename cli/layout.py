"""Help pages: options in groups, names never cut, readable in a narrow terminal."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperOption

# Narrower than this, the text of an option goes below its name.
_TWO_COLUMNS = 60


class GroupedCommand(TyperCommand):
    """A command whose options are listed under their `rich_help_panel`, in plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the groups in the order of their first option."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record:
                panel = (isinstance(parameter, TyperOption) and parameter.rich_help_panel) or "Options"
                groups.setdefault(panel, []).append(record)
        for panel, rows in groups.items():
            with formatter.section(panel):
                if formatter.width >= _TWO_COLUMNS:
                    formatter.write_dl(rows)
                    continue
                for name, text in rows:
                    formatter.write_text(name)
                    with formatter.indentation():
                        formatter.write_text(text)
