"""Serve a trained run as a page and a JSON API on this machine; requires the extra `serve`, imported lazily."""

from regard.serve.limits import Limits

__all__ = ["Limits"]


def __dir__() -> list[str]:
    return sorted(__all__)
