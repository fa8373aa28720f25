"""What a caller is told when a request cannot be served."""


class ServiceError(Exception):
    """A request that is refused: an HTTP status and a message that names the fix.

    Args:
        status: HTTP status code.
        message: What was expected, what came, and what to do.
        retry_after: Seconds after which the same request may succeed, if it may.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


def not_found(what: str, name: str) -> ServiceError:
    """A model, task or decision that does not exist, or that the token may not see."""
    return ServiceError(404, f"`{what}`: expected an existing one, got {name!r}; check the name")


def unavailable(reason: str) -> ServiceError:
    """The database cannot be reached or written to; nothing was acknowledged."""
    return ServiceError(
        503, f"the database cannot take the request now ({reason}); try it again", retry_after=1
    )
