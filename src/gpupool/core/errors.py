"""The one error hierarchy of the product.

Every error a user can meet carries three things: a stable ``code`` that scripts may match, one line that says
what happened and to what, and one line that says what to do next. Adapters translate the errors of third-party
libraries into these at their border, so nothing above them ever catches a library's exception.

The docstring of a class is its default message, so the class list reads as the catalog of faults.
"""

from typing import ClassVar


class GpupoolError(Exception):
    """Something went wrong in the pool."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    """HTTP status that carries this error over a wire."""
    exit_code: ClassVar[int] = 1
    """Exit status of a command that ends with this error."""
    default_remedy: ClassVar[str] = "Run the command again; if it stays, report it with the log."

    def __init__(self, message: str | None = None, *, remedy: str | None = None) -> None:
        doc = (type(self).__doc__ or "").strip().splitlines()
        self.message = message or (doc[0] if doc else type(self).__name__)
        self.remedy = remedy or self.default_remedy
        super().__init__(self.message)


class InvalidInputError(GpupoolError):
    """The input is not valid."""

    code = "invalid_input"
    status = 400
    exit_code = 2
    default_remedy = "Correct the input and try again; nothing was changed."


class TooLargeError(InvalidInputError):
    """The input is larger than the limit."""

    code = "too_large"
    status = 413
    default_remedy = "Send less; the limit is in the message."


class UnsupportedError(InvalidInputError):
    """This is not supported here."""

    code = "unsupported"
    status = 422
    default_remedy = "See the capability report of the server for what it supports."


class NotFoundError(GpupoolError):
    """There is no such thing."""

    code = "not_found"
    status = 404
    exit_code = 4
    default_remedy = "List what exists and check the name."


class ConflictError(GpupoolError):
    """The present state does not allow this."""

    code = "conflict"
    status = 409
    exit_code = 5
    default_remedy = "Look at the present state, then decide again."


class LimitReachedError(ConflictError):
    """There are as many of these as there may be."""

    code = "limit_reached"
    default_remedy = "Remove what is not needed any more; the limit is in the message."


class NodeInUseError(ConflictError):
    """Work runs on the node."""

    code = "node_in_use"
    default_remedy = "Move the work first with `gpupool node drain NAME --wait`, or end it with `--yes`."


class ImpossibleMoveError(ConflictError):
    """A state machine refuses this move."""

    code = "impossible_move"


class LeaseLostError(GpupoolError):
    """Another control leads this pool by now, so this change is not made."""

    code = "lease_lost"
    status = 409
    exit_code = 5
    default_remedy = "Nothing is to be done: the leader makes the change where it is still right."


class UnauthorizedError(GpupoolError):
    """The request carries no valid credential."""

    code = "unauthorized"
    status = 401
    exit_code = 6
    default_remedy = (
        "Send the operator token as a bearer token; it is in keys/operator.token of the pool's state folder "
        "(commands take it from GPUPOOL_HOME, or from GPUPOOL_TOKEN)."
    )


class ClockSkewError(UnauthorizedError):
    """This machine's clock is wrong, so that its signatures are refused."""

    code = "clock_skew"
    default_remedy = "Set the clock: `timedatectl set-ntp true`, or `chronyc makestep` where chrony runs."


class ForbiddenError(GpupoolError):
    """The credential does not allow this."""

    code = "forbidden"
    status = 403
    exit_code = 6
    default_remedy = "Use a credential with the needed role."


class NodeRemovedError(ForbiddenError):
    """The node was removed from the pool."""

    code = "node_removed"
    default_remedy = (
        "To bring the machine back, run `gpupool node add` and start its agent with the command that prints."
    )


class BusyError(GpupoolError):
    """The queue is full."""

    code = "busy"
    status = 429
    exit_code = 7
    default_remedy = "Try again after the time in Retry-After."

    def __init__(
        self, message: str | None = None, *, remedy: str | None = None, retry_after: float | None = None
    ) -> None:
        """``retry_after``: seconds after which there may be room; None where nobody said."""
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after


class NoCapacityError(BusyError):
    """There is no room for one more."""

    code = "no_capacity"
    status = 423
    default_remedy = "Try another one first, and this one again later."


class UnavailableError(GpupoolError):
    """The peer cannot be reached or is not ready."""

    code = "unavailable"
    status = 503
    exit_code = 8
    default_remedy = "Check that the process runs (`gpupool status`), then try again."


class DeadlineError(GpupoolError):
    """The work did not finish before its deadline."""

    code = "deadline"
    status = 504
    exit_code = 9
    default_remedy = "Allow more time or use a faster device."


class EnvironmentProblemError(GpupoolError):
    """This machine or its set-up does not allow this."""

    code = "environment"
    status = 500
    exit_code = 3
    default_remedy = "Follow the fix in the message."


class PortTakenError(EnvironmentProblemError):
    """A port that is needed is taken."""

    code = "port_taken"
    default_remedy = "Free the port or choose another one with the setting in the message."


class StorageError(EnvironmentProblemError):
    """The database cannot be used."""

    code = "storage"
    default_remedy = "Check that the data folder is on a healthy, writable disk with free space."
