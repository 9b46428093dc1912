"""What huggingface_hub and its network library raise, each as one sentence and a hint."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from dflash_mlx.errors import UserError

# Within one call huggingface_hub goes on in the middle of a file; the next call begins that file anew.
AGAIN = "run it again: files that are complete are kept"


class MissingRepositoryError(UserError):
    """The hub has no such repository, or shows it to its owner only."""


@contextmanager
def sentences(name: str, revision: str | None, *, begun: bool = True) -> Iterator[None]:
    """Within, the exceptions of a download become `UserError`.

    Args:
        name: The repository.
        revision: What was asked for.
        begun: A part of it is on this machine.
    """
    from huggingface_hub import errors

    # `errors.HTTPError` is the network library's, under whatever name this huggingface_hub imports it.
    network_error: type[Exception] = vars(errors)["HTTPError"]
    try:
        yield
    except (
        errors.EntryNotFoundError,
        errors.HFValidationError,
        errors.OfflineModeIsEnabled,
        errors.RevisionResolutionError,
        network_error,
        OSError,
        RuntimeError,  # what the hub's own transfer library raises
        AttributeError,  # see `_closed_by_another_thread`
    ) as problem:
        if isinstance(problem, AttributeError) and not _closed_by_another_thread(problem):
            raise
        raise _sentence(name, revision, problem, begun) from problem


def _sentence(name: str, revision: str | None, problem: Exception, begun: bool) -> UserError:
    from huggingface_hub import errors

    match problem:
        case errors.GatedRepoError():
            return UserError(
                f"`{name}` is gated: its owners want their terms accepted first",
                f"accept them at https://huggingface.co/{name}, then `hf auth login` or set `HF_TOKEN`",
            )
        case errors.RepositoryNotFoundError():
            return MissingRepositoryError(
                f"`{name}` is no folder here and no repository on the hub, or a private one",
                "check the spelling; for a private one `hf auth login` or set `HF_TOKEN`",
            )
        case errors.RevisionNotFoundError():
            return UserError(
                f"`{name}` has no revision `{revision}`", "give a branch, a tag or the full hash of a commit"
            )
        case errors.HFValidationError():
            return UserError(
                f"`{name}` does not exist and cannot be a repository's name",
                "give the path of a model folder, or a repository as `owner/name`",
            )
        case errors.DisabledRepoError():
            return UserError(f"`{name}` was disabled on the hub")
        case (
            errors.LocalEntryNotFoundError()
            | errors.OfflineModeIsEnabled()
            | errors.RevisionResolutionError()
        ):
            return _unreachable(name, problem, begun)
        case errors.HfHubHTTPError():
            return _refused(name, problem.response.status_code)
    if _closed_by_another_thread(problem):
        return _unreachable(name, problem, begun)
    return _system_sentence(name, problem)


def _closed_by_another_thread(problem: Exception) -> bool:
    """How huggingface_hub 2.4 fails where one of its threads closed the client over a connection error."""
    said = str(problem)
    return "client has been closed" in said or "'NoneType' object has no attribute 'request'" in said


def _system_sentence(name: str, problem: Exception) -> UserError:
    match problem:
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return UserError(
                f"the disk is full: `{name}` was not downloaded whole",
                "free some space, or set `HF_HOME` to a folder on another disk, and " + AGAIN,
            )
        case OSError(errno=errno.EACCES | errno.EROFS | errno.EPERM):
            return UserError(
                f"`{name}` cannot be saved: {problem.strerror}: `{problem.filename}`",
                "set `HF_HOME` to a folder that can be written to",
            )
    return UserError(f"the download of `{name}` was cut off: {_first_line(problem)}", AGAIN)


def _unreachable(name: str, problem: Exception, begun: bool) -> UserError:
    """The cache lacks something, and the hub was not or could not be asked."""
    from huggingface_hub import errors

    cause = problem.__cause__
    here = f"only a part of `{name}` is on this machine" if begun else f"`{name}` is not on this machine"
    again = f", and {AGAIN}" if begun else ""
    if isinstance(problem, errors.OfflineModeIsEnabled) or isinstance(cause, errors.OfflineModeIsEnabled):
        return UserError(f"{here}, and the hub is switched off", f"unset `HF_HUB_OFFLINE`{again}")
    if isinstance(cause, errors.HfHubHTTPError):
        return _refused(name, cause.response.status_code)
    return UserError(f"{here}, and the hub cannot be reached", f"check the network connection{again}")


def _refused(name: str, status: int) -> UserError:
    hints = {
        401: "`hf auth login`, or set `HF_TOKEN` to a valid token",
        403: "`hf auth login` with an account that may read it, or set `HF_TOKEN`",
        429: "wait some minutes; with `HF_TOKEN` set more requests are allowed",
    }
    return UserError(f"the hub answers {status} to a request for `{name}`", hints.get(status, AGAIN))


def _first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0].rstrip(".") or type(problem).__name__
