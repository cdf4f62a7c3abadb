"""Parameter types and error responses that several routes use."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query

from dynedge.serving import problem_details, schemas

MAX_LISTED = 200

PathId = Annotated[str, Path(min_length=1, max_length=256, pattern=schemas.ID_PATTERN)]
ItemCount = Annotated[int, Query(ge=1, le=schemas.MAX_ITEMS, description="Number of items.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LISTED, description="Maximum number of entries.")]
QueryTime = Annotated[
    str | None, Query(max_length=64, description="Number in the unit of the run's log, or ISO 8601.")
]
MinPosition = Annotated[
    str | None,
    Query(max_length=64, description="Answer from this position of the journal or a later one, else 503."),
]
FilterSeen = Annotated[bool, Query(description="Hide items that the user has already seen.")]

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ProblemDetails, "content": {problem_details.MEDIA_TYPE: {}}}
    for status in (401, 403, 404, 421, 422, 503)
}
BODY_ERRORS = ERRORS | dict.fromkeys((400, 413, 507), ERRORS[422])
