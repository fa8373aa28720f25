"""Routes of the dashboard, for tokens that may read, from a header or from a sign-in cookie.

The cookie opens these pages only, and they change nothing; what does asks for a token again.
"""

import base64
import functools
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import parse_qs

import fastapi
import sqlalchemy as sa
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from ...reporting.page import STYLE, templates
from ...reporting.tables import Link, Table
from ..auth import Token, Tokens
from ..engine import Engine
from ..reading import Reader
from ..requests import ServiceError, not_found
from .model_page import ModelPage
from .pages import (
    DEFAULT_RANGE,
    RANGES,
    REFRESH,
    TEMPLATES,
    TOP,
    Address,
    Page,
    Snapshots,
    downloadable,
    model_address,
    sortable,
    task_address,
)
from .task_page import task_page

COOKIE = "diffprior_session"
MAX_FIELDS = 8  # of a form
LONG = ("actions", "items")  # tables of which a page shows the top rows, and files all
log = logging.getLogger("diffprior.service")

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


Model = Annotated[str | None, fastapi.Query(max_length=200)]
Range = Annotated[str, fastapi.Query(pattern=f"^({'|'.join(RANGES)})$")]
Refresh = Annotated[str, fastapi.Query(pattern=f"^({'|'.join(REFRESH)})$")]
Top = Annotated[str, fastapi.Query(pattern=f"^({'|'.join(TOP)})$")]
Sort = Annotated[str, fastapi.Query(pattern=r"^([a-z]{1,20}\.-?\d{1,3})?$")]
File = Annotated[str, fastapi.Query(pattern=r"^([a-z0-9-]{1,100}\.(csv|json))?$")]
Percent = Annotated[float, fastapi.Query(ge=0, le=100)]


async def _form(request: fastapi.Request) -> dict[str, str]:
    """The fields of a form; none if they cannot be read."""
    try:
        found = parse_qs((await request.body()).decode("ascii"), max_num_fields=MAX_FIELDS)
    except ValueError:
        return {}
    return {name: values[0].strip() for name, values in found.items()}


Form = Annotated[dict[str, str], fastapi.Depends(_form)]


def dashboard_router(engine: Engine, tokens: Tokens, reader: Reader) -> fastapi.APIRouter:
    """Create the routes of the dashboard, the pages of tasks and the forms."""
    router, show = fastapi.APIRouter(include_in_schema=False), functools.partial(_show, tokens)
    models = ModelPage(engine.database, engine.catalog, engine.guard)
    snapshots: Snapshots[Page] = Snapshots()

    @router.get("/")
    def home(
        request: fastapi.Request,
        model: Model = None,
        range: Range = DEFAULT_RANGE,
        refresh: Refresh = "off",
        top: Top = "5",
        sort: Sort = "",
        table: File = "",
    ) -> Response:

        def page(token: Token) -> tuple[Page, Address]:
            names = [n for n in engine.catalog.names() if token.allows("read", n)]
            name = models.newest(names) if model is None else model
            if name is None:
                return Page("no_model.html", {"title": "No model yet"}), Address("/")
            healthy = engine.healthy
            key = (name, range, healthy)
            found = snapshots.get(key, lambda: models.content(name, range, healthy))
            chosen = {"model": name, "range": range, "refresh": refresh, "top": top}
            address = Address("/", chosen)
            more = {
                "links": [Link(n, model_address(n, range)()) for n in names],
                "current": model_address(name, range)(),
                "choices": _choices(address, sort),
                "changes": _changes(engine, name),
            }
            return found._replace(context={**found.context, **more}), address

        return show(request, model, page, sort, table)

    @router.get("/tasks/{model}/{task:path}")
    def task(
        request: fastapi.Request, model: str, task: str, sort: Sort = "", table: File = ""
    ) -> Response:

        def page(_: Token) -> tuple[Page, Address]:
            address = task_address(model, task)
            make = lambda: task_page(engine.database, reader, model, task)  # noqa: E731
            return snapshots.get(address.path, make), address

        return show(request, model, page, sort, table)

    @router.get("/tasks")
    def find(model: str, task: str) -> Response:
        """From the form of a model's page to the page of a task."""
        return RedirectResponse(task_address(model, task)(), 303)

    @router.get("/traffic")
    def confirm(request: fastapi.Request, model: str, version: int, share: Percent) -> Response:
        """The page that asks whether a version should serve this share of the tasks."""

        def page(_: Token) -> tuple[Page, Address]:
            return traffic_page(engine, tokens, model, version, share), Address("/traffic")

        return show(request, model, page)

    @router.post("/traffic")
    def change(form: Form) -> Response:
        """Let a version serve a share of the tasks, for a token that may."""
        try:
            model, version = form["model"], int(form["version"])
            share = min(max(float(form["share"]), 0.0), 100.0)
        except (KeyError, ValueError):
            return _error("`share`: expected a version and a number of percent; try again", 422)
        try:
            secret = form.get("token", "")
            token = tokens.check(f"Bearer {secret}" if secret.isascii() and secret else None)
            if token is None or not token.allows("admin", model):
                return _error("This takes a token with the right admin; go back, try another.", 403)
            engine.catalog.set_share(model, version, share / 100)
            engine.prepare()
        except (ServiceError, sa.exc.SQLAlchemyError) as error:
            return _failed(error)
        log.info("%s: version %d serves %g %%, by token %s", model, version, share, token.id)
        snapshots.clear()
        return RedirectResponse(model_address(model)(), 303)

    @router.post("/sign-in")
    def sign_in(request: fastapi.Request, form: Form) -> Response:
        """Store a token in a cookie."""
        secret = form.get("token", "")
        session = tokens.session(secret) if secret.isascii() else None
        if session is None:
            return _sign_in("That token is not valid; try another.", 401)
        reply = RedirectResponse("/", 303)
        secure = request.url.scheme == "https"
        reply.set_cookie(COOKIE, session, httponly=True, samesite="strict", secure=secure)
        return reply

    @router.post("/sign-out")
    def sign_out() -> Response:
        reply = RedirectResponse("/", 303)
        reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return reply

    return router


def _choices(address: Address, sort: str) -> dict[str, list[tuple[Link, bool]]]:
    """Links to other ranges of time and other times between reloads, and which one is current."""
    options = {"Range": ("range", RANGES), "Arms": ("top", TOP), "Refresh": ("refresh", REFRESH)}
    return {
        label: [
            (Link(text, address(**{name: value}, sort=sort)), address.query[name] == value)
            for value, text in texts.items()
        ]
        for label, (name, texts) in options.items()
    }


def _changes(engine: Engine, model: str) -> list[Link]:
    """Links to pages that ask before they change the traffic of versions."""
    versions = engine.catalog.versions_of(model)
    address = Address("/traffic", {"model": model})
    newest, before = versions[0], engine.catalog.before(model)
    links = [Link("Change traffic…", address(version=str(newest.version), share="50"))]
    if before is not None:
        to = address(version=str(before.version), share="100")
        links.append(Link(f"Roll back to version {before.version}…", to))
    return links if len(versions) > 1 else []


def traffic_page(engine: Engine, tokens: Tokens, model: str, version: int, percent: float) -> Page:
    """The page that shows what a share of traffic changes, and asks for a token."""
    versions = engine.catalog.versions_of(model)
    after = engine.catalog.shares_after(model, version, percent / 100)
    rows = [
        (str(v.version), f"{v.share:.0%}", f"{after.get(v.version, v.share):.0%}") for v in versions
    ]
    context = {
        "title": f"Change traffic of {model}",
        "links": [Link(f"Model {model}", model_address(model)())],
        "back": model_address(model)(),
        "model": model,
        "version": version,
        "numbers": [v.version for v in versions],
        "percent": f"{percent:g}",
        "needs_token": tokens.required,
        "preview": Table(("version", "serves now", "would serve"), rows, "Share of the tasks"),
    }
    return Page("traffic.html", context)


def _show(
    tokens: Tokens,
    request: fastapi.Request,
    model: str | None,
    page: Callable[[Token], tuple[Page, Address]],
    sort: str = "",
    file: str = "",
) -> Response:
    """Respond with a page about a model (None: any), or one of its tables, to who may see it."""
    header, cookie = request.headers.get("authorization"), request.cookies.get(COOKIE)
    try:
        found = tokens.check(header) if header or cookie is None else tokens.check_session(cookie)
        if found is None:
            return _sign_in("This service requires a token.", 401)
        if not found.allows("read", found.model if model is None else model):
            return _sign_in("That token may not read this; use another.", 403)
        (template, context, tables), address = page(found)
        if file:
            return _file(tables, file)
    except (ServiceError, sa.exc.SQLAlchemyError) as error:
        return _failed(error)
    # Metrics are only for those who need no token, because browsers send them none.
    links = [Link("API", "/docs"), *([] if found.id else [Link("Metrics", "/metrics")])]
    context = {**context, "links": [*context.get("links", ()), *links]}
    most, shown = int(address.query.get("top", "5")), {}
    for name, table in tables.items():
        ordered = sortable(table, name, address, sort)
        rows = ordered.rows[:most] if name in LONG else ordered.rows
        shown[name] = downloadable(replace(ordered, rows=rows), name, address)
    reply = _page(template, 200, **context, tables=shown, sign_out=cookie is not None)
    if (seconds := address.query.get("refresh", "off")) != "off":
        reply.headers["Refresh"] = seconds
    return reply


def _file(tables: Mapping[str, Table], file: str) -> Response:
    """A table as CSV or JSON."""
    name, _, kind = file.rpartition(".")
    if name not in tables:
        raise not_found("table", name)
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="{file}"'}
    if kind == "csv":
        return Response(tables[name].to_csv(), headers=headers, media_type="text/csv")
    content = json.dumps(tables[name].records(), ensure_ascii=False)
    return Response(content, headers=headers, media_type="application/json")


def _sign_in(message: str, status: int) -> HTMLResponse:
    return _page("sign_in.html", status, title="Sign in", message=message)


def _failed(error: ServiceError | sa.exc.SQLAlchemyError) -> HTMLResponse:
    if isinstance(error, ServiceError):
        return _error(error.message, error.status)
    return _error("The database does not answer; try again.", 503)


def _error(message: str, status: int) -> HTMLResponse:
    links = [Link("Dashboard", "/")]
    return _page("layout.html", status, title="Cannot show this page", message=message, links=links)


def _page(template: str, status: int, **context: Any) -> HTMLResponse:
    """Render a template of the dashboard."""
    content = templates(TEMPLATES).get_template(template).render(context)
    return HTMLResponse(content, status, HEADERS)
