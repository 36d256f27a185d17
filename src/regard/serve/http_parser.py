"""Strict HTTP/1.1 parsing with h11, so that a proxy and this server always read the same request."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import h11

# The largest head of a request, in bytes.
MAX_HEAD = 16_384
BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
BARE_SIZE = re.compile(rb"[0-9A-Fa-f]{1,20}[ \t]*(;[^\r\n]*)?\n")  # of a chunk
FOLDED_LINE = re.compile(rb"\n[ \t]")
# Bytes between chunks: the end of one, the size of the next, an optional extension; after the last an empty line.
BETWEEN = re.compile(rb"(?:\r\n)?(?:[0-9A-Fa-f]+(?:;[^\r\n]*)?\r\n(?:\r\n)?)?")
LENGTH = re.compile(rb"\r\ncontent-length:([^\r]*)", re.IGNORECASE)
CODINGS = re.compile(rb"\r\ntransfer-encoding:([^\r]*)", re.IGNORECASE)
ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
NOT_HTTP = "this is not HTTP/1.1 as this server reads it"


class Refusal(NamedTuple):
    """Reason for refusing a request: the status, and one line for the client."""

    status: int
    message: str


class StrictConnection(h11.Connection):
    r"""An h11 connection that refuses what RFC 9112 lets a recipient repair, if the repair could change where a request ends.

    Sections 2.2 (bare LF), 5.2 (folded lines), 6.1 and 6.3 (Transfer-Encoding, Content-Length) and 7.1 (chunks) each let lenient and
    strict readers disagree; a client behind a proxy could then hide a second request in the first (request smuggling).

    Args:
        our_role: `h11.SERVER`.

    Attributes:
        refusal: why the last `next_event` raised.

    Example:
        >>> connection = StrictConnection(h11.SERVER)
        >>> connection.receive_data(b"GET / HTTP/1.1\nHost: a\n\n")
        >>> try:
        ...     _ = connection.next_event()
        ... except h11.RemoteProtocolError:
        ...     connection.refusal.message
        'the head of the request has a line that does not end in CR LF'
    """

    def __init__(self, our_role: Any) -> None:
        super().__init__(our_role, MAX_HEAD)
        self.refusal = Refusal(400, NOT_HTTP)
        self._chunked = False
        self._between = b""
        self._searched = 0
        self._skipped_line = False

    def next_event(self) -> Any:
        """Return the next event, as h11 does.

        Raises:
            h11.RemoteProtocolError: refused; see `refusal`.
        """
        try:
            if self.their_state is h11.IDLE:
                return self._read_head()
            if self.their_state is h11.SEND_BODY and self._chunked:
                return self._read_chunk()
            return super().next_event()
        except h11.RemoteProtocolError as error:
            self.refusal = Refusal(error.error_status_hint, str(error) if isinstance(error, _Refused) else NOT_HTTP)
            raise

    def _read_head(self) -> Any:
        data = self.trailing_data[0]
        # One empty line before a request line: some clients end a body so (RFC 9112, section 2.2); h11 has no public way to drop it.
        if data.startswith(b"\r\n") and not self._skipped_line:
            self._receive_buffer.maybe_extract_at_most(2)
            self._skipped_line = True
            data = data[2:]
        elif data == b"\r" and not self._skipped_line:
            return h11.NEED_DATA
        new = max(0, self._searched - 3)  # avoids searching a slowly arriving head from its beginning each time
        end = data.find(b"\r\n\r\n", new)
        size = len(data) if end < 0 else end + 4
        if size > MAX_HEAD:
            raise _Refused(f"the head of the request has more than {MAX_HEAD} bytes", 431)
        if BARE_LINE_FEED.search(data, new, size):
            raise _Refused("the head of the request has a line that does not end in CR LF")
        if FOLDED_LINE.search(data, new, size):
            raise _Refused("the head of the request has a header over more than one line")
        self._searched = size if end < 0 else 0
        if end >= 0:
            _check_framing(data[:size])
        event = super().next_event()
        if isinstance(event, h11.Request):
            if event.http_version not in (b"1.0", b"1.1"):
                raise _Refused("HTTP/1.1 and HTTP/1.0 are read, no other version", 505)
            self._chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
            if self._chunked and event.http_version == b"1.0":
                raise _Refused("Transfer-Encoding: HTTP/1.0 has none")
            self._skipped_line = False
            absolute = ABSOLUTE.fullmatch(event.target)
            return event if absolute is None else _origin_form(event, *absolute.groups())
        return event

    def _read_chunk(self) -> Any:
        before = self.trailing_data[0]
        event = super().next_event()
        if event is h11.NEED_DATA and BARE_SIZE.match(self.trailing_data[0]):
            raise _Refused(NOT_HTTP)  # as h11 says once a CR LF follows, for which it would wait
        consumed = before[: len(before) - len(self.trailing_data[0])]
        if isinstance(event, h11.Data):
            consumed = consumed[: len(consumed) - len(event.data)]
        self._between += consumed
        if isinstance(event, h11.EndOfMessage) and event.headers:
            raise _Refused("the body ends in trailers, which are not read")
        if isinstance(event, h11.Data | h11.EndOfMessage):
            if not BETWEEN.fullmatch(self._between):
                raise _Refused("the body has a chunk that is not a size in hexadecimal, CR LF, the data and CR LF")
            self._between = b""
        return event


def _origin_form(request: h11.Request, host: bytes, rest: bytes) -> h11.Request:
    # RFC 9112, section 3.2.2: the host of the target counts, the header Host does not.
    headers = [("host", host), *((name, value) for name, value in request.headers if name != b"host")]
    target = rest if rest.startswith(b"/") else b"/" + rest
    return h11.Request(method=request.method, target=target, headers=headers, http_version=request.http_version)


class _Refused(h11.RemoteProtocolError):
    """Raised for input that h11 would accept."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message, error_status_hint=status)


def _check_framing(head: bytes) -> None:
    # On the raw bytes: h11 merges equal lengths.
    lengths, codings = LENGTH.findall(head), CODINGS.findall(head)
    if len(lengths) > 1 or b"," in b"".join(lengths):
        raise _Refused("Content-Length: expected once, and one number")
    if lengths and (digits := lengths[0].strip()).isdigit() and len(digits) > 20:  # h11 reads no more
        raise _Refused("Content-Length: more than is read", 413)
    if lengths and codings:
        raise _Refused("Content-Length and Transfer-Encoding: expected one of them")
    if codings:
        names = [name.strip().lower() for name in b",".join(codings).split(b",")]
        if names[-1] != b"chunked" or names.count(b"chunked") > 1:
            raise _Refused("Transfer-Encoding: expected chunked, once and last")
        if len(names) > 1:
            raise _Refused("Transfer-Encoding: chunked is read, no other coding", 501)
