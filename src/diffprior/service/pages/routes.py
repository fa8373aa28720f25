"""Addresses of the pages, and who may see them: a token with the right to read, from a header or
from a cookie that a form has set. The cookie opens pages alone, which change nothing."""

import asyncio
from collections.abc import Callable
from typing import Annotated

import fastapi
import sqlalchemy as sa
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from ..auth import Token, Tokens
from ..engine import Engine
from ..reading import Reader
from ..requests import ServiceError
from .dashboard import Dashboard
from .markup import Frame, Link, page, task_address, text
from .prior_gain import PriorGains
from .sign_in import COOKIE, sign_in_page, token_of
from .style import HEADERS
from .task import TaskPage
from .window import WindowReader

Query = Annotated[str | None, fastapi.Query(max_length=200)]


def pages(engine: Engine, tokens: Tokens, reader: Reader) -> fastapi.APIRouter:
    """The dashboard, the pages of tasks, and the form to sign in."""
    router = fastapi.APIRouter(include_in_schema=False)
    database, catalog = engine.database, engine.catalog
    dashboard = Dashboard(database, catalog, WindowReader(database), PriorGains(database))
    tasks = TaskPage(database, reader)
    door = Door(tokens)

    @router.get("/")
    def home(request: fastapi.Request, model: Query = None) -> Response:
        """The dashboard."""

        def body(token: Token, frame: Frame) -> str:
            return dashboard.page(model, token.models, engine.healthy, frame)

        return door.show(request, model, body)

    @router.get("/tasks/{model}/{task:path}")
    def task_page(request: fastapi.Request, model: str, task: str) -> Response:
        """The page of a task."""
        return door.show(request, model, lambda _, frame: tasks.page(model, task, frame))

    @router.get("/tasks")
    def find(model: str, task: str) -> Response:
        """From the form of the dashboard to the page of a task."""
        return RedirectResponse(task_address(model, task), 303)

    @router.post("/sign-in")
    async def sign_in(request: fastapi.Request) -> Response:
        """Keep a token in a cookie."""
        secret = token_of(await request.body())
        return await asyncio.to_thread(door.sign_in, request, secret)

    @router.post("/sign-out")
    def sign_out() -> Response:
        """Forget the token."""
        reply = RedirectResponse("/", 303)
        reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return reply

    return router


class Door:
    """Shows pages to those who may see them, and what is wrong to the others."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def show(
        self,
        request: fastapi.Request,
        model: str | None,
        body: Callable[[Token, Frame], str],
    ) -> Response:
        """A page about a model, or about all."""
        header, cookie = request.headers.get("authorization"), request.cookies.get(COOKIE)
        if header is None and cookie is not None:
            header = f"Bearer {cookie}"
        try:
            token = self._tokens.check(header)
            if token is None:
                return _reply(sign_in_page("This service asks for a token."), 401)
            if not token.allows("read", token.model if model is None else model):
                return _reply(sign_in_page("That token may not read this; use another."), 403)
            return _reply(body(token, _frame(token, cookie is not None)))
        except ServiceError as error:
            return _reply(_error_page(error.message), error.status)
        except sa.exc.SQLAlchemyError:
            return _reply(_error_page("The database does not answer; try it again."), 503)

    def sign_in(self, request: fastapi.Request, secret: str) -> Response:
        """Back to the dashboard with a cookie, if the token is good."""
        if not secret.isascii() or self._tokens.check(f"Bearer {secret}") is None:
            return _reply(sign_in_page("That is no valid token; try another."), 401)
        reply = RedirectResponse("/", 303)
        secure = request.url.scheme == "https"
        reply.set_cookie(COOKIE, secret, httponly=True, samesite="strict", secure=secure)
        return reply


def _frame(token: Token, signed_in: bool) -> Frame:
    """Metrics are for those who need no token, as a browser sends none to them."""
    links = [Link("All calls", "/docs"), *([] if token.id else [Link("Metrics", "/metrics")])]
    return Frame(links, signed_in)


def _error_page(message: str) -> str:
    return page("Not to be shown", [text(message)], Frame([Link("Dashboard", "/")]))


def _reply(content: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(content, status, HEADERS)
