"""The OpenAPI description, generated from the table that also validates and answers requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard import __version__
from regard.serve.endpoints import Endpoint

ERROR = {
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "the error; names the field, the header or the limit"},
        "request_id": {"type": "string"},
    },
    "required": ["error", "request_id"],
    "additionalProperties": False,
}
REQUEST_ID = {"X-Request-Id": {"description": "the client's own if valid, else a random one", "schema": {"type": "string"}}}
RETRY = {"Retry-After": {"description": "seconds after which to try again", "schema": {"type": "integer"}}}
STATUSES = {
    403: "sent from a page of another site",
    408: "the body took too long to arrive",
    413: "the body is too large",
    415: "the body is not application/json, or is compressed",
    421: "the Host header is not a name of this server",
    422: "the body is invalid, or an image cannot be read; the message names the field",
    429: "too many lines are waiting, or too much is being read",
    503: "too many connections, or the server is stopping, or the model could not do it",
    504: "the answer took too long",
}
EVERYWHERE = (403, 421, 503)
TEXTS = {
    "/": ("The page.", "text/html"),
    "/metrics": ("Counters and gauges in the text format of Prometheus.", "text/plain"),
}
HEALTH = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "enum": ["ok", "stopping"]},
        "version": {"type": "string"},
        "waiting": {"type": "integer", "description": "lines that wait for the model"},
        "models": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "task": {"type": "string"}, "attends": {"type": "boolean"}},
                "required": ["name", "task", "attends"],
            },
        },
    },
    "required": ["status", "version", "waiting", "models"],
}


def describe_api(jobs: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI description of a server with these operations.

    Example:
        >>> sorted(describe_api([])["paths"])
        ['/', '/health', '/metrics', '/openapi.json']
    """
    paths: dict[str, Any] = {}
    for path, (summary, kind) in TEXTS.items():
        paths[path] = {"get": _operation(summary, {kind: {"schema": {"type": "string"}}}, EVERYWHERE)}
    paths["/health"] = {"get": _operation("Status of the server, and its models.", _json(HEALTH), EVERYWHERE)}
    # During shutdown the response has the same form.
    paths["/health"]["get"]["responses"]["503"]["content"] = _json({"anyOf": [HEALTH, {"$ref": "#/components/schemas/Error"}]})
    paths["/openapi.json"] = {"get": _operation("This description.", _json({"type": "object"}), EVERYWHERE)}
    for job in jobs:
        items = {"type": "array", "items": job.item}
        answer = {"type": "object", "properties": {job.result: items}, "required": [job.result], "additionalProperties": False}
        operation = _operation(job.summary, _json(answer), tuple(STATUSES))
        paths[job.path] = {"post": {**operation, "requestBody": {"required": True, "content": _json(job.request)}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Regard", "version": __version__, "summary": "A trained run behind a page and a small API."},
        "paths": paths,
        "components": {"schemas": {"Error": ERROR}},
    }


def _operation(summary: str, content: Any, statuses: Sequence[int]) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "done", "headers": REQUEST_ID, "content": content}}
    error = _json({"$ref": "#/components/schemas/Error"})
    for status in statuses:
        headers = {**REQUEST_ID, **RETRY} if status == 429 else REQUEST_ID
        responses[str(status)] = {"description": STATUSES[status], "headers": headers, "content": error}
    return {"summary": summary, "responses": responses}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
