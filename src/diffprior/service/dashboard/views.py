"""Routes of the dashboard, for tokens that may read, from a header or from a sign-in cookie.

The cookie opens these pages only, and they change nothing.
"""

import asyncio
import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

import fastapi
import sqlalchemy as sa
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from ...reporting.page import STYLE, templates
from ...reporting.tables import Link
from ..auth import Token, Tokens
from ..engine import Engine
from ..reading import Reader
from ..requests import ServiceError
from .model_page import Content, ModelPage, task_address
from .task_page import task_content

TEMPLATES = Path(__file__).parent / "templates"
COOKIE = "diffprior_session"
Query = Annotated[str | None, fastapi.Query(max_length=200)]

# Browsers apply this stylesheet only, load nothing, run no script, and show pages in no frame.
STYLE_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{STYLE_DIGEST}'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def dashboard_router(engine: Engine, tokens: Tokens, reader: Reader) -> fastapi.APIRouter:
    """Create the routes of the dashboard, the pages of tasks and the sign-in form."""
    router = fastapi.APIRouter(include_in_schema=False)
    models = ModelPage(engine.database, engine.catalog, engine.guard)

    @router.get("/")
    def home(request: fastapi.Request, model: Query = None) -> Response:
        """The page of a model."""
        return _show(
            request, tokens, model, lambda t: models.content(model, t.models, engine.healthy)
        )

    @router.get("/tasks/{model}/{task:path}")
    def task_page(request: fastapi.Request, model: str, task: str) -> Response:
        """The page of a task."""
        return _show(
            request, tokens, model, lambda _: task_content(engine.database, reader, model, task)
        )

    @router.get("/tasks")
    def find(model: str, task: str) -> Response:
        """From the form of a model's page to the page of a task."""
        return RedirectResponse(task_address(model, task), 303)

    @router.post("/sign-in")
    async def sign_in(request: fastapi.Request) -> Response:
        """Store a token in a cookie."""
        secret = _form_token(await request.body())
        session = await asyncio.to_thread(tokens.session, secret) if secret.isascii() else None
        if session is None:
            return _sign_in("That token is not valid; try another.", 401)
        reply = RedirectResponse("/", 303)
        secure = request.url.scheme == "https"
        reply.set_cookie(COOKIE, session, httponly=True, samesite="strict", secure=secure)
        return reply

    @router.post("/sign-out")
    def sign_out() -> Response:
        """Delete the cookie."""
        reply = RedirectResponse("/", 303)
        reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return reply

    return router


def _show(
    request: fastapi.Request,
    tokens: Tokens,
    model: str | None,
    content: Callable[[Token], Content],
) -> Response:
    """Respond with a page about a model (None: any) to those who may see it."""
    header, cookie = request.headers.get("authorization"), request.cookies.get(COOKIE)
    try:
        found = tokens.check(header) if header or cookie is None else tokens.check_session(cookie)
        if found is None:
            return _sign_in("This service requires a token.", 401)
        if not found.allows("read", found.model if model is None else model):
            return _sign_in("That token may not read this; use another.", 403)
        template, context = content(found)
    except ServiceError as error:
        return _error(error.message, error.status)
    except sa.exc.SQLAlchemyError:
        return _error("The database does not answer; try again.", 503)
    # Metrics are only for those who need no token, because browsers send them none.
    links = [Link("API", "/docs"), *([] if found.id else [Link("Metrics", "/metrics")])]
    context = context | {"links": [*context.get("links", ()), *links]}
    return _page(template, 200, sign_out=cookie is not None, **context)


def _form_token(body: bytes) -> str:
    """The token that the sign-in form has sent; empty if there is none."""
    try:
        found = parse_qs(body.decode("ascii"), max_num_fields=4)
    except ValueError:
        return ""
    return found.get("token", [""])[0].strip()


def _sign_in(message: str, status: int) -> HTMLResponse:
    return _page("sign_in.html", status, title="Sign in", message=message)


def _error(message: str, status: int) -> HTMLResponse:
    links = [Link("Dashboard", "/")]
    return _page("layout.html", status, title="Cannot show this page", message=message, links=links)


def _page(template: str, status: int, **context: Any) -> HTMLResponse:
    """Render a template of the dashboard."""
    content = templates(TEMPLATES).get_template(template).render(context)
    return HTMLResponse(content, status, HEADERS)
