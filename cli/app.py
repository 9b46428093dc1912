"""The program: its commands and the boundary where exceptions become sentences and exit codes.

Exit codes: 0; 1 for errors, and for a reader of stdout that went away; 2 for wrong usage; 130 for Ctrl-C.
"""

from __future__ import annotations

import shutil
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import dflash_mlx
from dflash_mlx.errors import UserError

from . import chat, console, convert, generate, options, train
from .layout import GroupedCommand

NAME = "dflash-mlx"


class Boundary(TyperGroup):
    """Turns what a command raises into a message; usage errors stay with Typer."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.TyperException, BrokenPipeError):
            raise
        except UserError as problem:
            if options.debugging(ctx):
                console.traceback()
            console.error(problem.message, problem.hint)
        except Exception as problem:  # noqa: BLE001 (the boundary: nobody is left to hand it to)
            if options.debugging(ctx):
                console.traceback()
            console.error(console.unexpected(problem), None if options.debugging(ctx) else _BUG)
        raise typer.Exit(1)


_BUG = "this is a mistake of dflash-mlx; `--debug` shows where it happened"


def _print_version(value: bool) -> None:
    if value:
        console.write(f"{NAME} {dflash_mlx.__version__}\n")
        raise typer.Exit


app = typer.Typer(
    name=NAME,
    cls=Boundary,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Typer's boxes cut option names in narrow terminals.
    rich_markup_mode=None,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "terminal_width": min(shutil.get_terminal_size().columns, 100),
    },
)


@app.callback(epilog=generate.EXAMPLE)
def root(
    debug: options.Debug = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Large language models on MLX, several tokens per pass: a drafter proposes, the target decides."""


app.command("chat", cls=GroupedCommand, epilog=chat.EXAMPLE)(chat.chat)
app.command("generate", cls=GroupedCommand, epilog=generate.EXAMPLE)(generate.generate)
app.command("convert", cls=GroupedCommand, epilog=convert.EXAMPLE)(convert.convert)
app.command("train", cls=GroupedCommand, epilog=train.EXAMPLE)(train.train)


def main() -> None:
    """Run the program; ends in `SystemExit`."""
    console.replace_unencodable()
    try:
        app(prog_name=NAME)
    # `--version` and `--help` print before there is a command, and so outside of the boundary.
    except UserError as problem:
        console.error(problem.message, problem.hint)
        sys.exit(1)
    except OSError as problem:
        console.error(f"the output cannot be written: {problem.strerror}")
        sys.exit(1)
    finally:
        if not console.flush_or_forget():
            sys.exit(1)
