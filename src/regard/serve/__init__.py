"""A trained run behind a page and a small JSON API on this machine; needs the extra `serve`, which is imported when it is used."""

from regard.serve.limits import Limits

__all__ = ["Limits"]


def __dir__() -> list[str]:
    return sorted(__all__)
