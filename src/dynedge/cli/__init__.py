"""The verbs. Each file here holds a few of them; heavy imports happen inside, so that --help is quick."""

from __future__ import annotations

import errno
import os
import sys
import traceback

import typer

from dynedge import __version__
from dynedge.errors import DynedgeError

app = typer.Typer(
    name="dynedge",
    help="Learn how users and items evolve from a time-stamped log of their interactions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# Typer carries its own copy of click in some versions and uses the installed one in others.
_ClickError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _version(asked: bool) -> None:
    if asked:
        print(f"dynedge {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run a verb. Exit 0 good, 2 usage, 3 bad data; an error is one sentence on stderr, never a traceback."""
    from dynedge.cli import (  # noqa: F401
        compare,
        data,
        demo,
        embed,
        evaluate,
        export,
        plan,
        recommend,
        serve,
        train,
        tune,
    )

    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    try:
        return int(app(arguments, standalone_mode=False) or 0)
    except DynedgeError as error:
        return _say(str(error), error.exit_code)
    except _ClickError as error:
        return _say(error.format_message(), 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted.", 130)
    except BrokenPipeError:  # the reader of our output left early, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _say("not enough memory for this; close other programs or use a smaller setting.", 3)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _say("the disk is full; free some space and run it again.", 3)
        return _say(f"{error.filename or 'a file'}: {error.strerror or error}.", 3)
    except Exception as error:
        if os.environ.get("DYNEDGE_DEBUG"):
            traceback.print_exc()
        kind = type(error).__name__
        return _say(f"this is a bug in dynedge ({kind}: {error}); DYNEDGE_DEBUG=1 shows where.", 1)


def _say(sentence: str, code: int) -> int:
    print(f"dynedge: {' '.join(sentence.split())}", file=sys.stderr)
    return code
