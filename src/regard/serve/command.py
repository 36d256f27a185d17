"""The command `regard serve`; its dependencies are imported on use."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from regard.errors import missing_extra
from regard.progress import message, quiet, redirected
from regard.serve.limits import Limits
from regard.serve.request_log import RequestLog

commands = typer.Typer()

DecodingPrecision = Literal["float32", "bfloat16", "int8"]


def _with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command whose last parameter is `**limits` an option per limit."""
    own = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    given = [each.replace(annotation=hints[each.name]) for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default,
            annotation=Annotated[type(each.default), typer.Option(min=each.metadata["least"], help=each.metadata["help"])],
        )
        for each in fields(Limits)
    ]

    @functools.wraps(command)
    def wrapped(**options: Any) -> None:
        command(**options)

    wrapped.__signature__ = own.replace(parameters=[*given, *more])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in (*given, *more)}
    return wrapped


@commands.command()
@_with_limits
def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder made by `regard train`")],
    other: Annotated[Path | None, typer.Argument(metavar="RUN2", help="a second run of the same task, to compare")] = None,
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0: all of this machine")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0: any free port")] = 8000,
    precision: Annotated[
        DecodingPrecision | None, typer.Option(help="precision of matrix products where text is generated; default: that of each run")
    ] = None,
    allowed_host: Annotated[list[str] | None, typer.Option(help="another host name of this server; may be repeated")] = None,
    examples: Annotated[
        int | None,
        typer.Option(min=0, help="validation examples that the page offers to start from; default: 4, and 0 where others reach the server"),
    ] = None,
    **limits: float,
) -> None:
    """Serve a page and a JSON API on this machine.

    SIGTERM or Ctrl-C stops the server with exit code 0.
    """
    runs = [run] if other is None else [run, other]
    given = Limits(**limits)  # pyright: ignore[reportArgumentType]
    log = RequestLog(sys.stderr)
    with redirected(lambda text: log.write({"event": "message", "message": text})):
        _serve(runs, (host, port), allowed_host or [], given, examples, precision=precision, log=log)


def _serve(
    runs: Sequence[Path],
    address: tuple[str, int],
    allowed: Sequence[str],
    limits: Limits,
    examples: int | None,
    *,
    precision: DecodingPrecision | None,
    log: RequestLog,
) -> None:
    from regard.tasks.glibc_memory import SERVER_BYTES, bound_free_memory

    bound_free_memory(SERVER_BYTES)  # before PyTorch starts its threads
    try:
        from regard.serve.app import Service
        from regard.serve.middleware import host_names
        from regard.serve.server import address_of, addresses_for_others, listen, run_server
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in ("starlette", "uvicorn", "h11", "anyio"):
            raise
        raise missing_extra(f"serving needs {name}, which is not installed", "serve") from error
    from regard.serve.examples import COUNT, LOCAL
    from regard.serve.routes import open_models

    host = address[0]
    offered = (COUNT if host in LOCAL else 0) if examples is None else examples
    with listen(*address) as listening:  # first: report a taken port at once
        models = open_models(runs, precision=precision)
        service = Service(models, limits, hosts=host_names(host, allowed), log=log, examples=offered)

        def ready() -> None:
            if others := addresses_for_others(listening):
                message(f"on other machines: {' or '.join(others)}")
            quiet()  # what follows is of requests
            line = f"{' and '.join(model.name for model in models)}: {address_of(listening)}\n"
            sys.stdout.buffer.write(line.encode("utf-8", "replace"))
            sys.stdout.flush()

        finished = run_server(service, listening, ready)
    if not finished:
        # The model's thread cannot be stopped, and the interpreter would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
