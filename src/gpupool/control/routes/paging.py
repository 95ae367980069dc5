"""What the routes share: the pool, paging and the form of answers."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Query, Request
from pydantic import BaseModel, TypeAdapter
from starlette.responses import Response

from gpupool.control.http.guard import BY
from gpupool.control.pool import Pool
from gpupool.core.errors import InvalidInputError

MAX_LIMIT: Final = 1000
MAX_WAIT: Final = 60.0
JSON: Final = "application/json"
CURSOR_HEADER: Final = "X-Next-Cursor"
_T = TypeVar("_T", bound=BaseModel)
_C = TypeVar("_C")


async def _pool(request: Request) -> Pool:
    pool: Pool = request.app.state.pool
    return pool


async def _by(request: Request) -> str | None:
    by: str | None = request.scope.get(BY)
    return by


PoolHere = Annotated[Pool, Depends(_pool)]
By = Annotated[str | None, Depends(_by)]
"""Who asks, as events name the caller."""
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many at most.")]
Cursor = Annotated[
    str | None,
    Query(
        max_length=100, description=f"Go on after this id, which the last answer named in {CURSOR_HEADER}."
    ),
]


def answer(message: BaseModel, status: int = 200) -> Response:
    """Return one message as JSON."""
    return Response(message.model_dump_json(), status_code=status, media_type=JSON)


def cut(
    items: Sequence[_C], cursor: str | None, limit: int, key: Callable[[_C], str]
) -> tuple[Sequence[_C], dict[str, str] | None]:
    """Return the items after ``cursor``, and the header that names the next one where there are more.

    Raises InvalidInputError where the cursor is not known.
    """
    start = 0
    if cursor is not None:
        keys = [key(item) for item in items]
        if cursor not in keys:
            raise InvalidInputError(
                f"The cursor {cursor!r} is not in this list (any more).", remedy="Start over without it."
            )
        start = keys.index(cursor) + 1
    shown = items[start : start + limit]
    return shown, {CURSOR_HEADER: key(shown[-1])} if start + limit < len(items) else None


def page(items: Sequence[_T], cursor: str | None, limit: int, key: Callable[[_T], str]) -> Response:
    """Return the items after ``cursor`` as a JSON array; raise InvalidInputError where the cursor is not known."""
    shown, more = cut(items, cursor, limit, key)
    return Response(TypeAdapter(list[Any]).dump_json(list(shown)), media_type=JSON, headers=more)
