"""The command line: its commands, and errors in one line. Commands import torch on use, so that help is fast."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from typing import Annotated

import typer

from regard import __version__
from regard.commands import (
    captioning,
    check,
    classification,
    compare,
    distillation,
    evaluate,
    explain,
    info,
    language,
    scoring,
    translation,
    view,
)
from regard.commands.shared_options import with_shared_options
from regard.commands.train import setting_meant, training
from regard.cores import limit_products, limit_threads
from regard.errors import DataError, RegardError, os_reason, out_of_memory, shortened
from regard.integrations.command import commands as exchange_commands
from regard.progress import Display, message
from regard.serve.command import commands as serve_commands

app = typer.Typer(
    help="Train, run, evaluate and view attention models.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(info.commands)
app.add_typer(training, name="train")
for verbs in (
    translation.commands,
    captioning.commands,
    language.commands,
    scoring.commands,
    distillation.commands,
    classification.commands,
    explain.commands,
    evaluate.commands,
    view.commands,
    check.commands,
    compare.commands,
    serve_commands,
    exchange_commands,
):
    app.add_typer(verbs)


def main() -> None:
    """Run the command line; every error a user can cause is one line on standard error and an exit code."""
    if sys.stderr is None:  # closed: print would otherwise write to standard output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - stays open as long as the process
    if sys.platform != "win32" and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        # Inherited from a program that ignores it: the exit codes of child processes would be lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Imported objects are permanent; scanning them repeatedly takes a fifth of the import time.
    gc.set_threshold(20_000)
    limit_products()
    limit_threads()
    try:
        with Display() as display:
            code = _run(display)
        sys.exit(code)
    except BrokenPipeError:
        _forget_output()  # the reader has exited (`| head`)
        sys.exit(141)


def _run(display: Display) -> int:
    try:
        if sys.stdout is None:
            raise DataError("standard output: closed; redirect it to /dev/null to discard it")
        code = with_shared_options(app)(standalone_mode=False, obj=display, prog_name="regard") or 0
        sys.stdout.flush()  # here, while a failure can still be reported
        return code
    except RegardError as error:
        return _fail(" ".join(str(error).splitlines()), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except SystemExit as leaving:
        # typer has its own exit code for a broken pipe.
        if isinstance(leaving.__context__, BrokenPipeError):
            raise BrokenPipeError from leaving
        raise
    except BrokenPipeError:
        raise
    except Exception as error:
        # pydantic's core turns an interrupt while it builds a model into an error of its own.
        if type(error).__module__.startswith("pydantic_core") and "KeyboardInterrupt" in str(error):
            return 130
        # A usage error. The class is click's, which typer vendors under another name.
        if type(error).__name__ == "NoArgsIsHelpError":  # unchanged: the help with its line breaks
            print(error, file=sys.stderr)
            return 2
        explain, code = getattr(error, "format_message", None), getattr(error, "exit_code", 2)
        if explain is not None:
            told = " ".join(explain().replace("Value error, ", "").split()) or "no command given; see regard --help"
            return _fail(told + setting_meant(getattr(error, "option_name", None), sys.argv[1:]), code)
        if out_of_memory(error):
            return _fail(
                "not enough memory; a smaller model, --batch-size, --beam-size or (in training) training.batch_tokens needs less", 1
            )
        if isinstance(error, OSError):
            unnamed = "standard output" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "input or output"
            return _fail(f"{error.filename or unnamed}: {os_reason(os.fsdecode(error.filename or '.'), error)}", 2)
        raise


def _fail(text: str, code: int) -> int:
    message(f"error: {shortened(text)}", warning=True)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _forget_output()
    return code


def _forget_output() -> None:
    # Otherwise the interpreter flushes the buffer again at exit, and fails with its own message.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if version:
        print(f"regard {__version__}")
        raise typer.Exit
