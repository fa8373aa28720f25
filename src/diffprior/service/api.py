"""The HTTP API: paths, bodies and status codes; the engine does the work."""

import asyncio
import base64
import binascii
import contextlib
import copy
import functools
import json
import secrets
import unicodedata
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import fastapi
import fastapi_offline
import numpy as np
import pydantic
import sqlalchemy as sa
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from ..encoders import Encoder
from ..files.base import load_bytes
from .auth import Token, Tokens
from .dashboard.views import dashboard_router
from .engine import Engine
from .gate import Gate, Limits
from .models import Catalog
from .reading import Reader
from .requests import Change, ChangeTask, Choose, Decide, Json, Reward, ServiceError, unavailable
from .settings import Settings

MAX_ACTIONS = 1_000
MAX_NUMBERS = 100_000  # features of one decision
MAX_BATCH, MAX_REWARDS = 256, 1_000  # decisions and rewards of one call
MAX_ITEMS = 10_000  # named by one choice
MAX_ECHO = 300  # characters of a caller's text in an error message
REASONS = {  # in place of Pydantic's words
    "missing": "expected a value, got none; add it",
    "dict_type": 'expected names mapped to values, as in {"a": ...}, got something else',
    "model_attributes_type": "expected an object of JSON, got something else; send JSON with the "
    "header content-type: application/json",
}

Name = Annotated[  # without control characters, which neither databases nor logs can hold
    str, pydantic.StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")
]
Id = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,100}$")]
Finite = Annotated[float, pydantic.Field(allow_inf_nan=False, ge=-1e12, le=1e12)]
Vector = Annotated[list[Finite], pydantic.Field(min_length=1, max_length=10_000)]
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
Text = Annotated[str, pydantic.StringConstraints(max_length=1_000)]
Label = Annotated[list[Text], pydantic.Field(max_length=1_000)]
Cell = bool | Annotated[int, pydantic.Field(ge=-(10**12), le=10**12)] | Finite | Text | Label | None
Columns = Annotated[dict[Name, Cell], pydantic.Field(min_length=1, max_length=1_000)]
NUMBERS, COLUMNS = "<numbers>", "<columns>"  # which of two kinds a row is
Row = Annotated[
    Annotated[Vector, pydantic.Tag(NUMBERS)] | Annotated[Columns, pydantic.Tag(COLUMNS)],
    pydantic.Discriminator(lambda row: COLUMNS if isinstance(row, dict) else NUMBERS),
]
Known = Annotated[list[Finite | None], pydantic.Field(min_length=1, max_length=10_000)]
TaskAttributes = Annotated[
    Annotated[Known, pydantic.Tag(NUMBERS)] | Annotated[Columns, pydantic.Tag(COLUMNS)],
    pydantic.Discriminator(lambda row: COLUMNS if isinstance(row, dict) else NUMBERS),
]

ModelName = Annotated[Name, fastapi.Path(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
OneForm = pydantic.AfterValidator(functools.partial(unicodedata.normalize, "NFC"))
TaskName = Annotated[Name, OneForm, fastapi.Path()]  # which looks the same only if it is
Item = Annotated[Name, OneForm]
DecisionId = Annotated[Id, fastapi.Path()]


DOCS_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>diffprior: HTTP API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/static/swagger-ui.css"><link rel="icon" href="/static/favicon.png">
<style>html.dark-mode { color-scheme: dark; }</style>
</head>
<body><div id="docs"></div>
<script src="/static/swagger-ui-bundle.js"></script><script src="/docs/start.js"></script></body>
</html>
"""
DOCS_SCRIPT = """const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();
SwaggerUIBundle({
  url: "/openapi.json", dom_id: "#docs", deepLinking: true, tryItOutEnabled: true,
  validatorUrl: null, presets: [SwaggerUIBundle.presets.apis],
});
"""
DOCS_HEADERS = {  # Swagger UI styles its elements one by one, and draws its icons from data
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class StrictRequest(fastapi.Request):
    """A request whose JSON has each key once."""

    async def json(self) -> object:
        return json.loads(await self.body(), object_pairs_hook=_unique)


class StrictRoute(fastapi.routing.APIRoute):
    """A route with a `StrictRequest`."""

    def get_route_handler(self) -> Callable[[fastapi.Request], Coroutine[object, object, Response]]:
        handle = super().get_route_handler()

        async def strict(request: fastapi.Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise json.JSONDecodeError("expected each key once", "", 0)
    return found


class Body(pydantic.BaseModel, extra="forbid", strict=True):
    """A body; unknown fields are rejected, and so are texts and booleans for numbers."""


class OfferBody(Body):
    """What decisions among actions and choices among items have in common."""

    top_k: Annotated[int, pydantic.Field(ge=1, le=MAX_ACTIONS)] | None = pydantic.Field(
        None, description="rank this many instead of choosing one"
    )
    decision_id: Id | None = pydantic.Field(
        None, description="your own id: a repeated call gets the same reply"
    )
    deferred: bool = pydantic.Field(
        False, description="wait for a reward only once the decision is activated"
    )

    def _shared(self, token: Token) -> dict[str, Any]:
        name = self.decision_id or secrets.token_hex(16)
        return {
            "top_k": self.top_k,
            "decision_id": name,
            "deferred": self.deferred,
            "token": token.id,
        }


class DecisionBody(OfferBody):
    """Actions to choose from: `features`, one row for each, or named `actions` with theirs.

    A row is a list of numbers, or the raw columns that the model was learned from by name; `GET
    /v1/models/{model}` lists them.
    """

    features: Annotated[list[Row], pydantic.Field(max_length=MAX_ACTIONS)] | None = None
    actions: Annotated[dict[Name, Row], pydantic.Field(max_length=MAX_ACTIONS)] | None = None
    mask: Annotated[list[bool], pydantic.Field(max_length=MAX_ACTIONS)] | None = pydantic.Field(
        None, description="true where an action is allowed"
    )
    action_taken: Name | int | None = pydantic.Field(
        None, description="shadow mode: your action is logged as taken, ours as recommended"
    )
    attributes: TaskAttributes | None = pydantic.Field(
        None, description="what is known of the task, as in PUT /v1/models/{model}/tasks/{task}"
    )

    @pydantic.model_validator(mode="after")
    def _check(self) -> "DecisionBody":
        if (self.features is None) == (self.actions is None):
            raise ValueError("expected either `features` or `actions`; pass one of them")
        rows = self._rows()
        if not rows:
            raise ValueError("expected at least one action; pass its features")
        if len({isinstance(row, dict) for row in rows}) != 1:
            raise ValueError("expected numbers for all actions, or columns for all; pass one kind")
        if not self._raw() and len({len(row) for row in rows}) != 1:
            raise ValueError("expected equally many features for each action; pad the rows")
        if len(rows) * len(rows[0]) > MAX_NUMBERS:
            raise ValueError(f"expected at most {MAX_NUMBERS} features in all; send fewer actions")
        return self

    def _rows(self) -> list[list[float] | Json]:
        return list(self.actions.values()) if self.actions is not None else self.features or []

    def _raw(self) -> list[Json]:
        return [row for row in self._rows() if isinstance(row, dict)]

    def request(self, model: str, task: str, token: Token) -> Decide:
        names = None if self.actions is None else list(self.actions)
        taken = self.action_taken
        if taken is not None and not (isinstance(taken, int) and names is None):
            taken = names.index(str(taken)) if names and str(taken) in names else -1
        return Decide(
            model,
            task,
            np.empty((0, 0)) if self._raw() else np.asarray(self._rows(), np.float64),
            names=names,
            mask=None if self.mask is None else np.asarray(self.mask, bool),
            taken=None if taken is None else int(taken),
            attributes=self.attributes,
            raw=self._raw() or None,
            **self._shared(token),
        )


class TaskDecisionBody(DecisionBody):
    """One decision of a batch, with its task."""

    task: Annotated[Name, OneForm]


class ChoiceBody(OfferBody):
    """A visitor to choose an item for; items are tasks, each with parameters of its own.

    The context is a list of numbers, or the raw columns that the model was learned from by name.
    """

    context: Row
    items: Annotated[list[Item], pydantic.Field(max_length=MAX_ITEMS)] | None = pydantic.Field(
        None, description="choose among these; among all that are not retired if left out"
    )
    exclude: Annotated[list[Item], pydantic.Field(max_length=MAX_ITEMS)] = pydantic.Field(
        default_factory=list, description="items not to choose, such as those already seen"
    )
    item_taken: Item | None = pydantic.Field(
        None, description="shadow mode: your item is logged as taken, ours as recommended"
    )

    @pydantic.model_validator(mode="after")
    def _check(self) -> "ChoiceBody":
        if self.items is not None and len(set(self.items)) < len(self.items):
            raise ValueError("expected each of `items` once; drop the others")
        return self

    def request(self, model: str, token: Token) -> Choose:
        raw = [self.context] if isinstance(self.context, dict) else None
        return Choose(
            model,
            np.empty((1, 0)) if raw else np.asarray([self.context], np.float64),
            items=self.items,
            exclude=self.exclude,
            taken=self.item_taken,
            raw=raw,
            **self._shared(token),
        )


class BatchBody(Body):
    """Decisions for many tasks."""

    decisions: Annotated[list[TaskDecisionBody], pydantic.Field(min_length=1, max_length=MAX_BATCH)]


class TaskBody(Body):
    """Attributes of a task; without attributes, those known before stay."""

    attributes: TaskAttributes | None = pydantic.Field(
        None, description="raw columns by name, or numbers, null where one is not known"
    )


class RewardBody(Body):
    """A reward. Each further reward of the same decision has its own `reward_id`."""

    reward: Finite
    reward_id: Id | None = None


class DecisionRewardBody(RewardBody):
    """One reward of many, with the id of its decision."""

    decision_id: Id


class RewardsBody(Body):
    """Rewards of many decisions."""

    rewards: Annotated[
        list[DecisionRewardBody], pydantic.Field(min_length=1, max_length=MAX_REWARDS)
    ]


class ModelBody(Body):
    """A version of a model: its settings, and the file of its model or prior in base64."""

    prior: Annotated[str, pydantic.StringConstraints(max_length=64 * 2**20)]
    settings: Settings = pydantic.Field(default_factory=lambda: Settings.model_validate({}))
    share: Share = 1.0


class ShareBody(Body):
    """The share of the tasks that a version serves."""

    share: Share


def make_app(
    engine: Engine, tokens: Tokens, *, limits: Limits, hosts: frozenset[str] = frozenset()
) -> ASGIApp:
    """Build the ASGI application."""

    @contextlib.asynccontextmanager
    async def lifespan(_: fastapi.FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(engine.start)
        yield
        await asyncio.to_thread(engine.close)

    app = fastapi.FastAPI(
        title="diffprior",
        version=installed_version("diffprior"),
        description=(
            "Decisions for many tasks, from a prior over them. Request a decision, carry it out, "
            "and report its reward; the [dashboard](/) shows how it goes."
        ),
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages load scripts from other hosts
        redoc_url=None,
    )
    invalid = fastapi.exceptions.RequestValidationError
    for kind in (ServiceError, invalid, sa.exc.SQLAlchemyError, HTTPException, Exception):
        app.add_exception_handler(kind, _reply_to_error)
    reader = Reader(engine.database, engine.catalog, engine.task_cache)
    app.include_router(_decisions(engine, tokens, limits))
    app.include_router(_reading(tokens, reader))
    app.include_router(_models(engine, tokens, reader))
    app.include_router(_operations(engine, tokens))
    app.include_router(dashboard_router(engine, tokens, reader))
    _add_docs(app)
    named = tokens.check(None) is not None  # names of models are for those who may read them
    _describe(app, engine.catalog if named else None)
    return Gate(app, tokens, limits, engine.metrics, hosts)


def _add_docs(app: fastapi.FastAPI) -> None:
    """Serve Swagger UI at /docs from this host."""
    app.mount("/static", StaticFiles(directory=Path(fastapi_offline.__file__).parent / "static"))

    @app.get("/docs", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(DOCS_PAGE, headers=DOCS_HEADERS)

    @app.get("/docs/start.js", include_in_schema=False)
    async def start() -> Response:
        return Response(DOCS_SCRIPT, media_type="text/javascript")


def _describe(app: fastapi.FastAPI, catalog: Catalog | None) -> None:
    """Let the list of calls say what they do, and name the columns of every model."""
    bare = app.openapi

    def described() -> dict[str, Any]:
        found = copy.deepcopy(bare())
        for call in [call for path in found["paths"].values() for call in path.values()]:
            call["summary"] = call["description"].partition(".")[0]
        newest = {} if catalog is None else {n: catalog.versions_of(n)[0] for n in catalog.names()}
        for name, version in newest.items():
            row = _example(version.encoder) or [1.0] * version.num_features
            bodies: dict[tuple[str, str], object] = {
                ("tasks/{task}/decisions", "post"): {"actions": {"a": row, "b": row}},
                ("choices", "post"): {"context": row},
            }
            if attributes := _example(version.attribute_encoder):
                bodies["tasks/{task}", "put"] = {"attributes": attributes}
            for (path, method), body in bodies.items():
                about = found["paths"][f"/v1/models/{{model}}/{path}"][method]["requestBody"]
                content = about["content"]["application/json"]
                content.setdefault("examples", {})[name] = {"value": body}
        return found

    app.openapi = described  # type: ignore[method-assign]


def _example(encoder: Encoder | None) -> Json:
    """A row of the columns of an encoder."""
    row: Json = {}
    for column in () if encoder is None else encoder.columns:
        levels = list(column.levels)
        one: Json = {
            "number": round(column.center, 2),
            "boolean": True,
            "category": levels[-1] if levels else "a",
            "labels": levels[-2:],
        }
        row[column.name] = one[column.kind]
    return row


def _right(tokens: Tokens, right: str) -> Any:
    """Dependency of routes for tokens with this right, for the model in the path if any."""

    async def token(
        request: fastapi.Request,
        authorization: Annotated[str | None, fastapi.Header(include_in_schema=False)] = None,
    ) -> Token:
        return await tokens.authorize(authorization, right, request.path_params.get("model"))

    return fastapi.Depends(token)


def _decisions(engine: Engine, tokens: Tokens, limits: Limits) -> fastapi.APIRouter:

    async def prepared() -> None:
        if not engine.prepared:
            raise ServiceError(503, f"{engine.problem}; try again", 1)

    wait = fastapi.Depends(prepared)
    router = fastapi.APIRouter(
        prefix="/v1", tags=["decisions"], dependencies=[wait], route_class=StrictRoute
    )

    async def serve(request: Decide | Choose | ChangeTask | Reward | Change) -> object:
        future = asyncio.wrap_future(engine.submit(request))
        try:
            return await asyncio.wait_for(future, limits.seconds)
        except TimeoutError as error:
            raise ServiceError(503, "the service is too busy; try again", 1) from error

    may_decide, may_reward = _right(tokens, "decide"), _right(tokens, "reward")

    @router.post("/models/{model}/tasks/{task:path}/decisions")
    async def decide(
        model: ModelName, task: TaskName, body: DecisionBody, token: Annotated[Token, may_decide]
    ) -> JSONResponse:
        """Choose an action for a task, which is created on its first decision."""
        return JSONResponse(await serve(body.request(model, task, token)))

    @router.post("/models/{model}/decisions")
    async def decide_many(
        model: ModelName, body: BatchBody, token: Annotated[Token, may_decide]
    ) -> JSONResponse:
        """Choose actions for many tasks; a rejected decision is an error in its place."""
        requests = [item.request(model, item.task, token) for item in body.decisions]
        replies = await asyncio.gather(*map(serve, requests), return_exceptions=True)
        return JSONResponse({"decisions": [_reply_or_error(reply) for reply in replies]})

    @router.post("/models/{model}/choices")
    async def choose(
        model: ModelName, body: ChoiceBody, token: Annotated[Token, may_decide]
    ) -> JSONResponse:
        """Choose among items, which are the model's tasks; its reward is that of a decision."""
        if engine.panels.missing(model):  # drawn for without keeping others waiting
            drawn = asyncio.to_thread(engine.prepare_items, model)
            with contextlib.suppress(TimeoutError):  # then it is asked to try again
                await asyncio.wait_for(drawn, limits.draw_seconds)
        return JSONResponse(await serve(body.request(model, token)))

    @router.put("/models/{model}/tasks/{task:path}")
    async def put_task(
        model: ModelName, task: TaskName, body: TaskBody, token: Annotated[Token, may_decide]
    ) -> JSONResponse:
        """Create a task, tell what is known of it, or use it again after it was retired."""
        request = ChangeTask(model, task, body.attributes, token=token.id)
        return JSONResponse(await serve(request))

    @router.delete("/models/{model}/tasks/{task:path}")
    async def retire_task(
        model: ModelName, task: TaskName, token: Annotated[Token, may_decide]
    ) -> JSONResponse:
        """Retire a task: it gets no more decisions; its evidence stays, rewards still count."""
        return JSONResponse(await serve(ChangeTask(model, task, retire=True, token=token.id)))

    @router.post("/decisions/{decision_id}/reward")
    async def reward(
        decision_id: DecisionId, body: RewardBody, token: Annotated[Token, may_reward]
    ) -> JSONResponse:
        """Report the reward of a decision. Repeating the call changes nothing."""
        request = Reward(decision_id, body.reward, body.reward_id or "", token.models)
        return JSONResponse(await serve(request))

    @router.post("/rewards")
    async def reward_many(body: RewardsBody, token: Annotated[Token, may_reward]) -> JSONResponse:
        """Report rewards of many decisions; a rejected reward is an error in its place."""
        replies: list[object] = []
        for start in range(0, len(body.rewards), MAX_BATCH):  # so that others are served between
            requests = [
                Reward(each.decision_id, each.reward, each.reward_id or "", token.models)
                for each in body.rewards[start : start + MAX_BATCH]
            ]
            replies += await asyncio.gather(*map(serve, requests), return_exceptions=True)
        return JSONResponse({"rewards": [_reply_or_error(reply) for reply in replies]})

    @router.post("/decisions/{decision_id}/activate")
    async def activate(
        decision_id: DecisionId, token: Annotated[Token, may_reward]
    ) -> JSONResponse:
        """Start waiting for the reward of a deferred decision."""
        return JSONResponse(await serve(Change(decision_id, "active", token.models)))

    @router.post("/decisions/{decision_id}/cancel")
    async def cancel(decision_id: DecisionId, token: Annotated[Token, may_reward]) -> JSONResponse:
        """Learn nothing from a decision that was not carried out."""
        return JSONResponse(await serve(Change(decision_id, "cancelled", token.models)))

    return router


def _reply_or_error(reply: object) -> object:
    if isinstance(reply, ServiceError):
        return {"error": reply.message, "status": reply.status}
    if isinstance(reply, BaseException):
        raise reply
    return reply


def _reading(tokens: Tokens, reader: Reader) -> fastapi.APIRouter:
    may_read = _right(tokens, "read")
    router = fastapi.APIRouter(prefix="/v1", tags=["reading"], dependencies=[may_read])

    @router.get("/decisions/{decision_id}")
    def read_decision(decision_id: DecisionId, token: Annotated[Token, may_read]) -> JSONResponse:
        """A decision and its rewards."""
        return JSONResponse(reader.decision(decision_id, token.models))

    @router.get("/models")
    def list_models(token: Annotated[Token, may_read]) -> JSONResponse:
        """All models that the token may see."""
        return JSONResponse({"models": reader.models(token.models)})

    @router.get("/models/{model}")
    def read_model(model: ModelName) -> JSONResponse:
        """A model and its versions."""
        return JSONResponse(reader.model(model))

    @router.get("/models/{model}/tasks")
    def list_tasks(
        model: ModelName,
        after: Annotated[str, fastapi.Query(pattern=r"^[^\x00-\x1f\x7f]{0,200}$")] = "",
        limit: Annotated[int, fastapi.Query(ge=1, le=1000)] = 100,
    ) -> JSONResponse:
        """Tasks of a model ordered by name, starting after the name `after`."""
        return JSONResponse({"tasks": reader.tasks(model, after, limit)})

    @router.get("/models/{model}/tasks/{task:path}")
    def read_task(model: ModelName, task: TaskName) -> JSONResponse:
        """Counts, posterior and prior of a task."""
        return JSONResponse(reader.task(model, task))

    return router


def _models(engine: Engine, tokens: Tokens, reader: Reader) -> fastapi.APIRouter:
    admin = _right(tokens, "admin")
    router = fastapi.APIRouter(prefix="/v1/models/{model}", tags=["models"], dependencies=[admin])
    catalog = engine.catalog

    def prepared(model: str) -> JSONResponse:
        engine.prepare()
        return JSONResponse(reader.model(model))

    @router.put("")
    def put_model(model: ModelName, body: ModelBody) -> JSONResponse:
        """Add a model, or a version of it that serves a share of the tasks."""
        try:
            saved = load_bytes(base64.b64decode(body.prior, validate=True))
            catalog.candidate(model, body.settings, saved).warm_up()
        except (ValueError, binascii.Error) as error:
            raise ServiceError(422, f"`prior`: {error}") from error
        catalog.put(model, body.settings, saved, body.share)
        return prepared(model)

    @router.put("/versions/{number}")
    def set_share(
        model: ModelName, number: Annotated[int, fastapi.Path(ge=1, le=10**6)], body: ShareBody
    ) -> JSONResponse:
        """Change the share of the tasks that a version serves."""
        catalog.set_share(model, number, body.share)
        return prepared(model)

    @router.post("/rollback")
    def roll_back(model: ModelName) -> JSONResponse:
        """Return all tasks to the version before the newest one that serves any."""
        catalog.roll_back(model)
        return prepared(model)

    return router


def _operations(engine: Engine, tokens: Tokens) -> fastapi.APIRouter:
    router = fastapi.APIRouter(tags=["operations"])

    @router.get("/health")
    async def health() -> dict[str, str]:
        """The process is running."""
        return {"status": "ok"}

    @router.get("/ready", responses={503: {"description": "not ready; `problem` says why"}})
    async def ready() -> JSONResponse:
        """The models are compiled, and the last transaction succeeded; `broken` are versions that
        cannot serve, in whose place others do.
        """
        if engine.problem is not None:
            return JSONResponse({"ready": False, "problem": engine.problem}, 503)
        broken = sorted(engine.catalog.broken.values())
        return JSONResponse({"ready": True} | ({"broken": broken} if broken else {}))

    @router.get("/metrics")
    async def metrics(token: Annotated[Token, _right(tokens, "read")]) -> Response:
        """Metrics in the text format of Prometheus, of all models together."""
        if token.model is not None:
            raise ServiceError(403, "`token`: expected one for all models, as metrics are of all")
        return Response(engine.metrics.text(), media_type="text/plain; version=0.0.4")

    return router


def _reply_to_error(request: fastapi.Request, error: Exception) -> JSONResponse:
    """The reply to a call that failed; it names no internals."""
    headers: Mapping[str, str] = {}
    if isinstance(error, sa.exc.SQLAlchemyError):
        error = unavailable(type(error.__cause__ or error).__name__)
    elif isinstance(error, HTTPException):
        headers, error = error.headers or {}, ServiceError(error.status_code, str(error.detail))
    elif isinstance(error, fastapi.exceptions.RequestValidationError):
        error = _invalid_body(error)
    elif not isinstance(error, ServiceError):
        error = ServiceError(500, "the request failed; see the service's log")
    if error.retry_after:
        headers = {"Retry-After": str(error.retry_after)}
    message = error.message.encode(errors="replace").decode()  # a key may be half a character
    return JSONResponse({"error": message}, error.status, headers)


def _invalid_body(error: fastapi.exceptions.RequestValidationError) -> ServiceError:
    first = error.errors()[0]
    parts = [part for part in first["loc"] if part not in ("body", NUMBERS, COLUMNS)]
    place = ".".join(map(str, parts))
    reason = REASONS.get(first["type"], str(first["msg"]).removeprefix("Value error, "))
    if first["type"] == "json_invalid":
        place = "body"
        reason = f"expected JSON, got a mistake at character {parts[0]} ({first['ctx']['error']})"
    message = f"`{place[:MAX_ECHO] or 'body'}`: {reason:.{MAX_ECHO}}"
    return ServiceError(422, message)
