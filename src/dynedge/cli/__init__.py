"""The command line. Each module here holds one command or a few; heavy imports happen inside, so --help is quick."""

from __future__ import annotations

import errno
import os
import sys
import traceback

import typer

from dynedge import __version__
from dynedge.cli.help_format import SectionedGroup
from dynedge.errors import CommonError, DynedgeError
from dynedge.utils import progress

app = typer.Typer(
    name="dynedge",
    help="Learn how users and items evolve from a log of their interactions, and recommend what comes next.",
    epilog="dynedge COMMAND --help describes a command. Exit codes: 0 success, 2 wrong usage, 3 bad data.",
    cls=SectionedGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 110},
)

EXTRAS = dict.fromkeys(("fastapi", "httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"), "serve") | {
    "matplotlib": "plots",
    "optuna": "tune",
    "redis": "redis",
    "mlflow": "mlflow",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}  # by package: the optional dependency of dynedge that installs it

# Typer carries its own copy of click in some versions and uses the installed one in others.
_ClickError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _print_version(requested: bool) -> None:
    if requested:
        print(f"dynedge {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """Entry point of the program `dynedge`."""
    progress.show_compiling = True
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs a command and returns its exit code; an error is one sentence on stderr, never a traceback."""
    try:
        os.getcwd()
    except FileNotFoundError:  # importing numpy or torch would end the process with a message of its own
        return _fail("the current directory no longer exists; change to another one (cd) and repeat the command.", 3)
    _register_commands()
    try:
        return int(app(arguments, standalone_mode=False) or 0)
    except CommonError as error:
        return error.exit_code
    except DynedgeError as error:
        return _fail(str(error), error.exit_code)
    except _ClickError as error:
        return _fail(error.format_message(), 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted.", 130)
    except BrokenPipeError:  # the reader of our output left early, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _fail("not enough memory; close other programs or choose smaller settings.", 3)
    except OSError as error:
        return _fail(_explain(error), 3)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in EXTRAS:
            extra = EXTRAS[package]
            return _fail(f"this command needs {package}; install it with: pip install 'dynedge[{extra}]'", 2)
        return _report_bug(error)
    except Exception as error:
        return _report_bug(error)


def _report_bug(error: Exception) -> int:
    if os.environ.get("DYNEDGE_DEBUG"):
        traceback.print_exc()
    kind = type(error).__name__
    return _fail(f"this is a bug in dynedge ({kind}: {error}); DYNEDGE_DEBUG=1 prints the traceback.", 1)


def stopped(signal_name: object, exit_code: int, advice: str) -> typer.Exit:
    """Reports that a signal ended the command, with what to do next; returns the exception to raise."""
    return typer.Exit(_fail(f"stopped by {signal_name}; {advice}.", exit_code))


def _register_commands() -> None:
    from dynedge.cli import (  # noqa: F401
        backtest,
        compare,
        data,
        demo,
        doctor,
        embed,
        evaluate,
        export,
        paper,
        plan,
        prepare,
        recommend,
        refresh,
        serve,
        train,
        tune,
        update,
    )


def _explain(error: OSError) -> str:
    """Returns one sentence for an error of the operating system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; free some space and run the command again."
    return f"{error.filename or 'a file'}: {error.strerror or error}."


def _fail(message: str, exit_code: int) -> int:
    print(f"dynedge: {' '.join(message.split())}", file=sys.stderr)
    return exit_code
