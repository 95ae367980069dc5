"""How a market refuses: a status and one sentence, in the form that miners of this protocol read.

The sentences are for people; software acts on the status (chutes.md section 2.2).
"""

from gpupool.core.errors import GpupoolError


class RefusedError(GpupoolError):
    """The market refuses this."""

    code = "refused"
    status = 400

    def __init__(self, status: int, message: str) -> None:
        """``status``: of the HTTP answer, 400-499."""
        super().__init__(message)
        self.answer = status
