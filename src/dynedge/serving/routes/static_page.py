"""Routes of the page: static files under a content security policy without inline code."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from dynedge.serving.problem_details import problem

PAGE = Path(__file__).parents[1] / "page"
FILES = {path.name for path in PAGE.iterdir() if path.is_file()}
POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

router = APIRouter(include_in_schema=False)


@router.get("/")
async def get_page() -> Response:
    return _file("index.html")


@router.get("/page/{name}")
async def get_page_file(name: str) -> Response:
    return _file(name)


def _file(name: str) -> Response:
    if name not in FILES:
        return problem(404, f"the page has no file {name[:64]!r}.")
    return FileResponse(PAGE / name, headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})
