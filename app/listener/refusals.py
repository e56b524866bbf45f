"""Refusals of bytes that are no request of HTTP/1.1."""

import httptools

from app.errors import BadRequest, CommitlogError, CrossOrigin, HeadTooLarge


def refusal_of(error: httptools.HttpParserError) -> CommitlogError:
    """Return the refusal that a callback of the parser raised, without its traceback.

    The traceback holds the frames that parsed, and with them all received bytes. A frame that names the
    refusal would keep both until the collector runs, hundreds of refused connections later.
    """
    refusal = error.__context__
    if not isinstance(refusal, HeadTooLarge | BadRequest | CrossOrigin):
        if isinstance(error, httptools.HttpParserInvalidMethodError):
            return BadRequest("it does not begin with a method of HTTP")
        if isinstance(error, httptools.HttpParserCallbackError):  # the target could not be split
            return BadRequest("the target of the request must be a path, or a URL with a path")
        return BadRequest(f"this is not HTTP/1.1: {error.args[0]}")
    return refusal.with_traceback(None)
