"""Parameter types and error responses that several routes use."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import StringConstraints
from starlette.convertors import PathConvertor, register_url_convertor

from dynedge.errors import UsageError
from dynedge.inference.rule_texts import parse_rules
from dynedge.inference.rules import Rules
from dynedge.serving import problem_details, schemas

MAX_LISTED = 200


class _IdConvertor(PathConvertor):
    """Any text: the convertor `path` ends at a line break, and would take "ann\\n" for "ann"."""

    regex = "(?s:.*)"


register_url_convertor("id", _IdConvertor())


class StrictRoute(APIRoute):
    """A route that refuses query parameters it does not have: a mistyped rule would be ignored."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = _query_parameters(self.dependant)

        async def check_and_handle(request: Request) -> Response:
            for name in request.query_params if request.scope["query_string"] else ():
                if name not in known:
                    close = difflib.get_close_matches(name, known, 1, 0.5)
                    hint = f"did you mean {close[0]}? " if close else ""
                    parameters = f"the parameters are {', '.join(known)}" if known else "it has none"
                    raise UsageError(f"{name[:64]!r} is no query parameter of this path; {hint}{parameters}.")
            return await handle(request)

        return check_and_handle


def _query_parameters(dependant: Any) -> list[str]:
    own = [parameter.alias for parameter in dependant.query_params]
    return own + [name for inner in dependant.dependencies for name in _query_parameters(inner)]


PathId = Annotated[
    str, Path(description="Id in your data, URL-encoded.", min_length=1, max_length=256, pattern=schemas.ID_PATTERN)
]
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
MAX_RULES = 32  # rules of each kind in a URL; a body may have more
RuleText = Annotated[str, StringConstraints(max_length=4096)]


def _rule_texts(description: str) -> Any:
    return Query(max_length=MAX_RULES, description=description)


Allow = Annotated[list[RuleText] | None, _rule_texts("Only items with these values: genre=folk,pop or item_id=1,2.")]
Deny = Annotated[list[RuleText] | None, _rule_texts("Values that exclude an item: genre=folk.")]
BoostTexts = Annotated[list[RuleText] | None, _rule_texts("Added to scores: genre=folk:0.5.")]
MaxPer = Annotated[list[RuleText] | None, _rule_texts("Maximum number of items with the same value: artist=2.")]


async def query_rules(
    filter_seen: FilterSeen = False,
    allow: Allow = None,
    deny: Deny = None,
    boost: BoostTexts = None,
    max_per: MaxPer = None,
    min_score: Annotated[float | None, Query(allow_inf_nan=False, description="Minimum score of items.")] = None,
    diversity: Annotated[
        float, Query(ge=0, le=1, description="Weight of diversity (maximal marginal relevance).")
    ] = 0.0,
) -> Rules:
    """The business rules of a request; `async`, because FastAPI calls other functions in another thread."""
    return parse_rules(
        filter_seen=filter_seen,
        allow=allow,
        deny=deny,
        boost=boost,
        max_per=max_per,
        min_score=min_score,
        diversity=diversity,
    )


QueryRules = Annotated[Rules, Depends(query_rules)]

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ProblemDetails, "content": {problem_details.MEDIA_TYPE: {}}}
    for status in (401, 403, 404, 421, 422, 503)
}
BODY_ERRORS = ERRORS | dict.fromkeys((400, 413, 507), ERRORS[422])
