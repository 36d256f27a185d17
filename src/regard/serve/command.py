"""The verb `regard serve`. What it needs is imported when it is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import ConfigError, MissingExtraError
from regard.serve.limits import Limits

if TYPE_CHECKING:
    from regard.serve.operation import Model

commands = typer.Typer()
_LIMITS = Limits()


def _option(name: str, least: float = 1) -> object:
    return typer.Option(min=least, help=Limits.model_fields[name].description)


@commands.command()
def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder made by `regard train`")],
    other: Annotated[Path | None, typer.Argument(metavar="RUN2", help="a second run of the same task, to see side by side")] = None,
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 is every one this machine has")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0 takes any that is free")] = 8000,
    allowed_host: Annotated[list[str] | None, typer.Option(help="a further name this server may be called by; may be repeated")] = None,
    batch_size: Annotated[int, _option("batch_size")] = _LIMITS.batch_size,
    batch_characters: Annotated[int, _option("batch_characters")] = _LIMITS.batch_characters,
    queue: Annotated[int, _option("queue")] = _LIMITS.queue,
    timeout: Annotated[float, _option("timeout", 0.001)] = _LIMITS.timeout,
    stop_seconds: Annotated[float, _option("stop_seconds", 0)] = _LIMITS.stop_seconds,
    max_body: Annotated[int, _option("max_body")] = _LIMITS.max_body,
    max_text: Annotated[int, _option("max_text")] = _LIMITS.max_text,
    max_lines: Annotated[int, _option("max_lines")] = _LIMITS.max_lines,
    max_beam: Annotated[int, _option("max_beam")] = _LIMITS.max_beam,
    max_output: Annotated[int, _option("max_output")] = _LIMITS.max_output,
    max_image: Annotated[int, _option("max_image")] = _LIMITS.max_image,
    max_pixels: Annotated[int, _option("max_pixels")] = _LIMITS.max_pixels,
    max_held: Annotated[int, _option("max_held")] = _LIMITS.max_held,
    max_connections: Annotated[int, _option("max_connections")] = _LIMITS.max_connections,
    header_seconds: Annotated[float, _option("header_seconds", 0.001)] = _LIMITS.header_seconds,
    body_seconds: Annotated[float, _option("body_seconds", 0.001)] = _LIMITS.body_seconds,
    write_seconds: Annotated[float, _option("write_seconds", 0.001)] = _LIMITS.write_seconds,
) -> None:
    """Serve a page with typed input and a JSON API, for this machine; SIGTERM or Ctrl-C ends it, exit code 0."""
    if max_lines > queue:
        raise ConfigError(f"--max-lines {max_lines}: must not be more than --queue {queue}, it could never be taken")
    limits = Limits(
        batch_size=batch_size,
        batch_characters=batch_characters,
        queue=queue,
        timeout=timeout,
        stop_seconds=stop_seconds,
        max_body=max_body,
        max_text=max_text,
        max_lines=max_lines,
        max_beam=max_beam,
        max_output=max_output,
        max_image=max_image,
        max_pixels=max_pixels,
        max_held=max_held,
        max_connections=max_connections,
        header_seconds=header_seconds,
        body_seconds=body_seconds,
        write_seconds=write_seconds,
    )
    _serve([run] if other is None else [run, other], host, port, allowed_host or [], limits)


def _serve(runs: Sequence[Path], host: str, port: int, allowed: Sequence[str], limits: Limits) -> None:
    try:
        from regard.serve.app import Service
        from regard.serve.gate import host_names
        from regard.serve.server import address_of, listen, run
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in ("starlette", "uvicorn", "h11", "anyio"):
            raise
        raise MissingExtraError(f"serving needs {name}, which is not installed: pip install 'regard[serve]'") from error
    from regard.serve.log import Log

    with listen(host, port) as listening:  # first: a port that is taken is told at once
        models = _open(runs)
        service = Service(models, limits, hosts=host_names(host, allowed), log=Log(sys.stderr))

        def ready() -> None:
            line = f"{' and '.join(model.name for model in models)}: {address_of(listening)}\n"
            sys.stdout.buffer.write(line.encode("utf-8", "replace"))
            sys.stdout.flush()

        finished = run(service, listening, ready)
    if not finished:
        # The model's thread cannot be stopped, and the interpreter would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _open(runs: Sequence[Path]) -> list[Model[Any]]:
    from regard.serve.routes import open_models

    return open_models(runs)
