"""The ASGI application: page and JSON API. Requests never change state."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from regard import __version__
from regard.serve.batching import Batcher, BatchKey
from regard.serve.endpoints import Endpoint, ServedModel, has_attention, reads_images, two_inputs
from regard.serve.examples import starting_points
from regard.serve.http_errors import ClientGone, HTTPError
from regard.serve.json_schema import validate_schema
from regard.serve.limits import Limits
from regard.serve.metrics import TYPE, Metrics
from regard.serve.middleware import RequestMiddleware
from regard.serve.openapi import describe_api
from regard.serve.request_body import BodyMemory, read_json
from regard.serve.request_log import RequestLog, RequestRecord
from regard.serve.routes import endpoints, served_task
from regard.tasks.explained_records import ASKED
from regard.viewer import render_page

ResponseBody = Callable[[Request], Awaitable[Response]]


class Service:
    """Runs behind a page and an API, as an ASGI application.

    Args:
        models: served models, at least one; all of one task.
        limits: see `Limits`.
        hosts: names in the Host header that are answered; see `regard.serve.middleware.host_names`.
        log: request log.
        examples: number of examples of the first run on the page.

    Attributes:
        app: the application.
        batcher: the batcher.
        connections: number of open connections, set by the server.
    """

    def __init__(
        self, models: Sequence[ServedModel[Any]], limits: Limits, *, hosts: frozenset[str], log: RequestLog, examples: int = 0
    ) -> None:
        self.log = log
        self.limits = limits
        self.metrics = Metrics()
        self.batcher = Batcher(limits, self.metrics)
        self.connections: Callable[[], int] = lambda: 0
        self._models = models
        self._held = BodyMemory(limits.max_body_memory)
        names, self._task = [model.name for model in models], served_task(models)
        worker = models[0].worker
        shown = "sentence and image" if reads_images(worker) else "two inputs" if two_inputs(worker) else self._task
        offered = starting_points(models[0].worker.run, examples)
        page = render_page([], live=True, models=names, task=shown, largest=limits.max_image, examples=offered, methods=ASKED)
        self._page = page.encode("utf-8")
        work = endpoints(models, limits)
        self._paths = [job.path for job in work]
        self._description = json.dumps(describe_api(work)).encode("ascii")
        routes = [Route(path, answer, methods=["GET"]) for path, answer in self._reading().items()]
        routes += [Route(job.path, self._working(job), methods=["POST"]) for job in work]
        paths = frozenset(route.path for route in routes)
        gate = Middleware(RequestMiddleware, hosts=hosts, paths=paths, log=log, metrics=self.metrics)  # pyright: ignore[reportArgumentType]
        self.app = Starlette(routes=routes, middleware=[gate], exception_handlers={HTTPException: self._refuse}, lifespan=self._lifespan)
        self.app.router.redirect_slashes = False

    def _reading(self) -> dict[str, ResponseBody]:
        async def page(request: Request) -> Response:
            return Response(self._page, media_type="text/html")

        async def health(request: Request) -> Response:
            models = [{"name": model.name, "task": self._task, "attends": has_attention(model)} for model in self._models]
            stopping = self.batcher.stopping
            values = {"status": "stopping" if stopping else "ok", "version": __version__, "waiting": self.batcher.waiting, "models": models}
            return JSONResponse(values, 503 if stopping else 200)

        async def metrics(request: Request) -> Response:
            gauges: dict[str, tuple[str, Callable[[], float]]] = {
                "regard_queue_lines": ("Lines that wait for the model.", lambda: self.batcher.waiting),
                "regard_connections": ("Open connections.", self.connections),
            }
            return Response(self.metrics.render(gauges), headers={"Content-Type": TYPE})

        async def description(request: Request) -> Response:
            return Response(self._description, media_type="application/json")

        return {"/": page, "/health": health, "/metrics": metrics, "/openapi.json": description}

    def _working(self, job: Endpoint) -> ResponseBody:
        async def answer(request: Request) -> Response:
            exchange: RequestRecord = request.state.exchange
            with self._held.hold() as came:
                settings, lines = job.plan(validate_schema(await read_json(request, self.limits, job.max_body, came), job.request))
                exchange.lines = len(lines)
                found = await self._wait(request, BatchKey(job, settings), lines)
            return Response(f'{{"{job.result}":[{",".join(filter(None, found))}]}}', media_type="application/json")

        return answer

    async def _wait(self, request: Request, task: BatchKey, lines: Sequence[Any]) -> list[str]:
        """Return the model's answers; on timeout or disconnect, drop what still waits."""
        exchange: RequestRecord = request.state.exchange
        work = asyncio.ensure_future(self.batcher.submit(task, lines))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            left = max(0.0, self.limits.timeout - exchange.seconds)
            await asyncio.wait((work, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if gone.done():
                raise ClientGone
            raise HTTPError(504, f"no answer within {self.limits.timeout:g} seconds")
        finally:
            for waiting in (work, gone):
                waiting.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _refuse(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            allowed = ", ".join(sorted(_allowed(error)))
            raise HTTPError(405, f"this path needs another method; it takes {allowed}", {"Allow": allowed})
        there = f"a run of the task {self._task} has {' and '.join(self._paths)}; /openapi.json describes them"
        raise HTTPError(error.status_code, f"there is nothing under this path: {there}")

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        running = asyncio.create_task(self.batcher.run())
        try:
            yield
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            self.batcher.close()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _allowed(error: HTTPException) -> list[str]:
    return [name.strip() for name in (error.headers or {}).get("Allow", "").split(",")]
