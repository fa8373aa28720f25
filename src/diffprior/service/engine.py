"""The thread behind the service: collects requests, serves them in one transaction, replies.

While one batch is computed and written, the next one collects, so batches grow with the load.
Batches begin at least some milliseconds apart: a transaction costs as much as several requests, so
under load few large transactions answer sooner than many small ones. A lone request does not wait.
"""

import gc
import logging
import queue
import threading
import time
from concurrent.futures import Future

import sqlalchemy as sa

from .batch import Batch
from .guard import Guard
from .metrics import Metrics
from .models import REFRESH_SECONDS, Catalog
from .panels import Panels
from .requests import Request, ServiceError, Settle, unavailable
from .store import Database
from .tasks import TaskCache

MAX_BATCH = 128  # requests per transaction
MAX_QUEUED = 2048  # requests that wait; later ones are asked to try again
PACE_SECONDS = 0.005  # at least, from the start of a batch to the start of the next
SETTLE_SECONDS = 1.0  # between searches for decisions that have expired
JUMP_SECONDS, DOUBT_SECONDS = 5.0, 60.0  # of a clock, and how long it is not believed
log = logging.getLogger("diffprior.service")


class Clock:
    """The wall clock, which never goes back by little, and is doubted for a minute if it jumps."""

    def __init__(self) -> None:
        self._now, self._steady = time.time(), time.monotonic()
        self._doubted: float | None = None

    def now(self) -> float:
        """Seconds since 1970."""
        wall, steady = time.time(), time.monotonic()
        expected = self._now + steady - self._steady
        jumped = abs(wall - expected) > JUMP_SECONDS
        self._doubted = (steady if self._doubted is None else self._doubted) if jumped else None
        believed = self._doubted is None or steady - self._doubted > DOUBT_SECONDS
        if believed:
            expected, self._doubted = wall if jumped else max(wall, self._now), None
        self._now, self._steady = expected, steady
        return expected


class Engine:
    """Serves requests from many threads; the reply is in each request's future."""

    def __init__(self, database: Database, *, cache_bytes: int = 2**28, metrics: Metrics) -> None:
        self.database = database
        self.catalog = Catalog(database)
        self.metrics = metrics
        self.task_cache = TaskCache(cache_bytes)
        self.panels = Panels(database, self.catalog, self.task_cache)
        self.guard = Guard(database, self.catalog, metrics)
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._preparing = threading.Lock()
        self._began = self._draw_again = 0.0
        self.clock = Clock()
        self.max_queued = MAX_QUEUED
        self._closed = False
        self.healthy = True  # whether the last transaction succeeded
        self.prepared = False  # whether the models that there were at the start can serve

    @property
    def problem(self) -> str | None:
        """Why requests cannot be served now; None if they can."""
        if not self.prepared:
            return "its models are being compiled"
        if not self._thread.is_alive():
            return "the engine has stopped"
        return None if self.healthy else "the database does not answer"

    def start(self) -> None:
        """Start serving; what decisions need is compiled in the background."""
        self._thread.start()
        self._prepare_in_background()

    def prepare(self) -> None:
        """Compile versions that are not ready, and let them serve as soon as they can decide."""
        with self._preparing:
            found = self.catalog.pending()
            for version in found:
                try:
                    version.warm_up()
                except Exception as error:
                    self.catalog.mark_broken(version, error)
            self.panels.build_used()
            self.catalog.serve_ready()
            if not self.prepared:
                _freeze()
                self.prepared = True
                log.info("ready")
        for version in found:
            if version.ready:
                version.warm_up_bounds()

    def prepare_items(self, model: str) -> None:
        """Draw for the items of a model that chooses for the first time."""
        if self.panels.build(model):
            _freeze()

    def submit(self, request: Request) -> Future[object]:
        """Queue a request; its future holds the reply or a `ServiceError`."""
        if self._closed:
            request.future.set_exception(unavailable("the service is stopping"))
        elif self._queue.qsize() >= self.max_queued:
            request.future.set_exception(ServiceError(503, "the service is too busy; try again", 1))
        else:
            self._queue.put(request)
        return request.future

    def close(self) -> None:
        """Serve the requests in the queue, then stop."""
        self._closed = True
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        last_settled, busy = time.monotonic(), False
        while True:
            requests, stopping = self._collect(0.0 if busy else SETTLE_SECONDS)
            if requests:
                self._serve(requests)
            busy = self._draw_items()
            if time.monotonic() - last_settled > SETTLE_SECONDS and not stopping:
                settle = Settle()
                self._serve([settle])  # alone, because it skips tasks that others have locked
                full = not settle.future.exception() and settle.future.result() == settle.limit
                last_settled = time.monotonic() - full * SETTLE_SECONDS
                self._prepare_in_background()
                self.guard.check_in_background()
            if stopping:
                return

    def _draw_items(self) -> bool:
        """Draw anew for items whose evidence has changed; whether there are more of them.

        If that fails, choices go on with the draws that there are, and it is tried again later.
        """
        if time.monotonic() < self._draw_again:
            return False
        try:
            return self.panels.work(self.clock.now(), not self._queue.empty())
        except Exception as error:
            _failure(error)
        self._draw_again = time.monotonic() + SETTLE_SECONDS
        return False

    def _prepare_in_background(self) -> None:
        """Compile versions that another process has added, while decisions continue."""
        if self.catalog.pending() and not self._preparing.locked():
            threading.Thread(target=self.prepare, name="prepare", daemon=True).start()

    def _collect(self, seconds: float) -> tuple[list[Request], bool]:
        """Requests in the queue, none if none comes in so many seconds; and whether to stop."""
        try:
            found = [self._queue.get(timeout=seconds)]
        except queue.Empty:
            return [], False
        if found[0] is not None:
            time.sleep(max(0.0, self._began + PACE_SECONDS - time.monotonic()))
        self._began = time.monotonic()
        while len(found) < MAX_BATCH and found[-1] is not None:
            try:
                found.append(self._queue.get_nowait())
            except queue.Empty:
                break
        waiting = [r for r in found if r is not None and r.future.set_running_or_notify_cancel()]
        return waiting, found[-1] is None  # without those whose callers have stopped to wait

    def _serve(self, requests: list[Request], *, again: bool = True) -> None:
        begin = time.perf_counter()
        try:
            results = self._in_one_transaction(requests)
            self.healthy = True
        except Exception as error:
            self.task_cache.clear()  # it is unknown whether the commit succeeded
            known = isinstance(error, sa.exc.SQLAlchemyError)
            conflict = isinstance(error, sa.exc.IntegrityError)  # of another process's new id
            if (conflict and again) or (len(requests) > 1 and not known):
                for request in requests:
                    self._serve([request], again=False)
                return
            self.healthy &= conflict or not known
            results = [(request, _failure(error)) for request in requests]
        self.metrics.batch_size.observe(len(requests))
        self.metrics.batch_seconds.observe(time.perf_counter() - begin)
        for request, result in results:
            self._reply(request, result)

    def _in_one_transaction(self, requests: list[Request]) -> list[tuple[Request, object]]:
        now = self.clock.now()
        batch = None
        try:
            with self.database.transaction() as connection:
                self.catalog.refresh_in(connection, REFRESH_SECONDS)
                about = (self.catalog, self.task_cache, self.panels)
                batch = Batch(connection, self.database, *about, now)
                batch.run(requests)
        except Exception:
            self.panels.drop([] if batch is None else batch.created)
            raise
        batch.commit_cache()
        self.metrics.tasks_in_memory.set(len(self.task_cache))
        self.metrics.learned(batch.learned)
        self.catalog.log_bytes += batch.stored
        return batch.results

    def _reply(self, request: Request, result: object) -> None:
        self.metrics.served(request, result)
        if isinstance(result, BaseException):
            request.future.set_exception(result)
        else:
            request.future.set_result(result)


def _failure(error: Exception) -> ServiceError:
    """What callers are told of an error, which is logged."""
    if isinstance(error, sa.exc.SQLAlchemyError):
        reason = type(error.__cause__ or error).__name__
        log.error("database failed: %s", reason)
        return unavailable(reason)
    log.exception("request failed", exc_info=error)
    return ServiceError(500, "the request failed; see the service's log")


def _freeze() -> None:
    """Let later garbage collections skip what exists now, which would take them long."""
    gc.collect()
    gc.freeze()
