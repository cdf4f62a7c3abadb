"""Routes of the page: static files under a content security policy without inline code."""

from __future__ import annotations

from html import escape
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, HTMLResponse, Response

from dynedge.serving.problem_details import problem

PAGE = Path(__file__).parents[1] / "page"
FILES = {path.name for path in PAGE.iterdir() if path.is_file()}
POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

router = APIRouter(include_in_schema=False)


@router.get("/")
async def get_page() -> Response:
    return _file("index.html")


@router.get("/docs")
async def get_docs(request: Request) -> Response:
    """The operations of /openapi.json as one page, without scripts of other hosts."""
    rows = [
        f"<dt><code>{method.upper()} {escape(path)}</code></dt><dd>{escape(operation.get('description', ''))}</dd>"
        for path, methods in request.app.openapi()["paths"].items()
        for method, operation in methods.items()
    ]
    text = f"<p>The full schema is <a href='/openapi.json'>/openapi.json</a>.</p><dl>{''.join(rows)}</dl>"
    head = "<!doctype html><html lang='en'><meta charset='utf-8'><title>dynedge API</title><h1>dynedge API</h1>"
    return HTMLResponse(head + text, headers={"Content-Security-Policy": POLICY})


@router.get("/page/{name}")
async def get_page_file(name: str) -> Response:
    return _file(name)


def _file(name: str) -> Response:
    if name not in FILES:
        return problem(404, f"the page has no file {name[:64]!r}.")
    return FileResponse(PAGE / name, headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})
