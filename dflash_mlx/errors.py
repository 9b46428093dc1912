"""The one exception whose text is meant for a person."""

from __future__ import annotations


class UserError(Exception):
    """Wrong input or an environment that cannot do what was asked.

    Args:
        message: One sentence, without a period at its end.
        hint: What to do about it, or None.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message
