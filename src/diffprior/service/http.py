"""The service over HTTP: paths, bodies and replies; the engine does the work."""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version as installed_version
from typing import Annotated, Any

import fastapi
import sqlalchemy as sa
import swagger_ui_bundle
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles

from ..files.base import load_bytes
from .bodies import BatchBody, DecisionBody, Id, ModelBody, Name, RewardBody, ShareBody
from .engine import Engine
from .errors import ServiceError, unavailable
from .limits import Limits
from .pages.routes import pages
from .reading import Reader
from .requests import Change, Request, Reward
from .tokens import Token, Tokens

Header = Annotated[str | None, fastapi.Header(include_in_schema=False)]
Path = fastapi.Path
ModelName = Annotated[Name, Path(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
TaskName = Annotated[Name, Path()]
DecisionId = Annotated[Id, Path()]


def make_app(engine: Engine, tokens: Tokens, *, limits: Limits) -> Any:
    """The ASGI application.

    Args:
        engine: Not yet started; it is while the application runs.
        tokens: Who may do what.
        limits: On the size and duration of requests.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: fastapi.FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(engine.start)
        yield
        await asyncio.to_thread(engine.close)

    app = fastapi.FastAPI(
        title="diffprior",
        version=installed_version("diffprior"),
        description="Decisions for many tasks, from a prior over them.",
        lifespan=lifespan,
        docs_url=None,  # these pages fetch their parts from other hosts
        redoc_url=None,
    )
    app.add_exception_handler(ServiceError, _refuse)
    app.add_exception_handler(fastapi.exceptions.RequestValidationError, _refuse_body)
    app.add_exception_handler(sa.exc.SQLAlchemyError, _refuse_for_database)
    app.add_exception_handler(Exception, _fail)
    reader = Reader(engine.database, engine.catalog, engine.task_cache)
    app.include_router(_decisions(engine, tokens, limits))
    app.include_router(_reading(tokens, reader))
    app.include_router(_models(engine, tokens, reader))
    app.include_router(_operations(engine, tokens))
    app.include_router(pages(engine, tokens, reader))
    _add_description(app)
    return limits.wrap(app, engine.metrics)


def _add_description(app: fastapi.FastAPI) -> None:
    """The description of all calls as a page, with nothing fetched from elsewhere."""
    app.mount("/static", StaticFiles(directory=swagger_ui_bundle.swagger_ui_path))

    @app.get("/docs", include_in_schema=False)
    async def page() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="diffprior",
            swagger_js_url="/static/swagger-ui-bundle.js",
            swagger_css_url="/static/swagger-ui.css",
            swagger_favicon_url="/static/favicon-32x32.png",
        )


def _allow(tokens: Tokens, header: str | None, right: str, model: str | None) -> Token:
    """The caller's token, if it has the right."""
    token = tokens.check(header)
    if token is None:
        raise ServiceError(401, "expected a valid token: send `Authorization: Bearer dp_...`")
    if not token.allows(right, model if model is not None else token.model):
        raise ServiceError(403, f"the token lacks the right to {right} here; ask for one that has")
    return token


async def _allow_soon(tokens: Tokens, header: str | None, right: str, model: str | None) -> Token:
    """As `_allow`, without holding up others while the database is asked."""
    if tokens.in_memory(header):
        return _allow(tokens, header, right, model)
    return await asyncio.to_thread(_allow, tokens, header, right, model)


async def _served(engine: Engine, limits: Limits, request: Request) -> Any:
    future = asyncio.wrap_future(engine.submit(request))
    try:
        return await asyncio.wait_for(future, limits.seconds)
    except TimeoutError as error:
        raise ServiceError(503, "the service is too busy; try it again", 1) from error


def _decisions(engine: Engine, tokens: Tokens, limits: Limits) -> fastapi.APIRouter:
    router = fastapi.APIRouter(prefix="/v1", tags=["decisions"])

    @router.post("/models/{model}/tasks/{task}/decisions")
    async def decide(
        model: ModelName, task: TaskName, body: DecisionBody, authorization: Header = None
    ) -> JSONResponse:
        """Choose an action for a task, which comes into being at its first decision."""
        token = await _allow_soon(tokens, authorization, "decide", model)
        request = body.request(model, task, token.id)
        return JSONResponse(await _served(engine, limits, request))

    @router.post("/models/{model}/decisions")
    async def decide_many(
        model: ModelName, body: BatchBody, authorization: Header = None
    ) -> JSONResponse:
        """Choose actions for many tasks; a decision that is refused says so in its place."""
        token = await _allow_soon(tokens, authorization, "decide", model)
        requests = [item.request(model, item.task, token.id) for item in body.decisions]
        served = [_served(engine, limits, request) for request in requests]
        found = await asyncio.gather(*served, return_exceptions=True)
        return JSONResponse({"decisions": [_or_error(reply) for reply in found]})

    @router.post("/decisions/{decision_id}/reward")
    async def reward(
        decision_id: DecisionId, body: RewardBody, authorization: Header = None
    ) -> JSONResponse:
        """Tell what a decision earned. The same call again changes nothing."""
        token = await _allow_soon(tokens, authorization, "reward", None)
        about = (decision_id, body.reward, body.reward_id or "", token.models)
        return JSONResponse(await _served(engine, limits, Reward(*about)))

    @router.post("/decisions/{decision_id}/activate")
    async def activate(decision_id: DecisionId, authorization: Header = None) -> JSONResponse:
        """Begin to wait for the reward of a deferred decision."""
        token = await _allow_soon(tokens, authorization, "reward", None)
        request = Change(decision_id, "active", token.models)
        return JSONResponse(await _served(engine, limits, request))

    @router.post("/decisions/{decision_id}/cancel")
    async def cancel(decision_id: DecisionId, authorization: Header = None) -> JSONResponse:
        """Learn nothing from a decision that was not carried out."""
        token = await _allow_soon(tokens, authorization, "reward", None)
        request = Change(decision_id, "cancelled", token.models)
        return JSONResponse(await _served(engine, limits, request))

    return router


def _reading(tokens: Tokens, reader: Reader) -> fastapi.APIRouter:
    router = fastapi.APIRouter(prefix="/v1", tags=["reading"])

    @router.get("/decisions/{decision_id}")
    def read_decision(decision_id: DecisionId, authorization: Header = None) -> Any:
        """A decision and the rewards that came for it."""
        token = _allow(tokens, authorization, "read", None)
        return reader.decision(decision_id, token.models)

    @router.get("/models")
    def list_models(authorization: Header = None) -> Any:
        """All models that the token may see."""
        token = _allow(tokens, authorization, "read", None)
        seen = [m for m in reader.models() if token.models is None or m["model"] in token.models]
        return {"models": seen}

    @router.get("/models/{model}")
    def read_model(model: ModelName, authorization: Header = None) -> Any:
        """A model and its versions."""
        _allow(tokens, authorization, "read", model)
        return reader.model(model)

    @router.get("/models/{model}/tasks")
    def list_tasks(
        model: ModelName,
        after: Annotated[str, fastapi.Query(pattern=r"^[^\x00-\x1f\x7f]{0,200}$")] = "",
        limit: Annotated[int, fastapi.Query(ge=1, le=1000)] = 100,
        authorization: Header = None,
    ) -> Any:
        """Tasks of a model in the order of their names, from the one after `after` on."""
        _allow(tokens, authorization, "read", model)
        return {"tasks": reader.tasks(model, after, limit)}

    @router.get("/models/{model}/tasks/{task}")
    def read_task(model: ModelName, task: TaskName, authorization: Header = None) -> Any:
        """A task: how much is known of it, its posterior, and the prior beside it."""
        _allow(tokens, authorization, "read", model)
        return reader.task(model, task)

    return router


def _models(engine: Engine, tokens: Tokens, reader: Reader) -> fastapi.APIRouter:
    router = fastapi.APIRouter(prefix="/v1/models/{model}", tags=["models"])
    catalog = engine.catalog

    @router.put("")
    def put_model(model: ModelName, body: ModelBody, authorization: Header = None) -> Any:
        """Add a model, or a version of it that serves a share of the tasks."""
        _allow(tokens, authorization, "admin", model)
        try:
            prior = load_bytes(base64.b64decode(body.prior, validate=True))
            catalog.candidate(model, body.settings, prior).warm_up()
        except (ValueError, binascii.Error) as error:
            raise ServiceError(422, f"`prior`: {error}") from error
        catalog.put(model, body.settings, prior, body.share)
        engine.prepare()
        return reader.model(model)

    @router.put("/versions/{number}")
    def set_share(
        model: ModelName,
        number: Annotated[int, Path(ge=1, le=10**6)],
        body: ShareBody,
        authorization: Header = None,
    ) -> Any:
        """Change the share of the tasks that a version serves."""
        _allow(tokens, authorization, "admin", model)
        catalog.set_share(model, number, body.share)
        engine.prepare()
        return reader.model(model)

    @router.post("/rollback")
    def roll_back(model: ModelName, authorization: Header = None) -> Any:
        """Give all tasks back to the version before the newest one that serves any."""
        _allow(tokens, authorization, "admin", model)
        catalog.roll_back(model)
        engine.prepare()
        return reader.model(model)

    return router


def _operations(engine: Engine, tokens: Tokens) -> fastapi.APIRouter:
    router = fastapi.APIRouter(tags=["operations"])

    @router.get("/health")
    async def health() -> dict[str, str]:
        """The process runs."""
        return {"status": "ok"}

    @router.get("/ready", responses={503: {"description": "the database does not answer"}})
    async def ready() -> JSONResponse:
        """The last transaction went through."""
        return JSONResponse({"ready": engine.healthy}, 200 if engine.healthy else 503)

    @router.get("/metrics")
    async def metrics(authorization: Header = None) -> Response:
        """Metrics in Prometheus' text format."""
        await _allow_soon(tokens, authorization, "read", None)
        return Response(engine.metrics.text(), media_type="text/plain; version=0.0.4")

    return router


def _or_error(reply: Any) -> Any:
    if isinstance(reply, ServiceError):
        return {"error": reply.message, "status": reply.status}
    if isinstance(reply, BaseException):
        raise reply
    return reply


def _refuse(_: fastapi.Request, error: Any) -> JSONResponse:
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else None
    return JSONResponse({"error": error.message}, error.status, headers)


def _refuse_for_database(request: fastapi.Request, error: Any) -> JSONResponse:
    return _refuse(request, unavailable(type(error.__cause__ or error).__name__))


def _fail(_: fastapi.Request, error: Any) -> JSONResponse:
    return JSONResponse({"error": "the request failed; it is in the log"}, 500)


def _refuse_body(_: fastapi.Request, error: Any) -> JSONResponse:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    return JSONResponse({"error": f"`{place or 'body'}`: {first['msg']}"}, 422)
