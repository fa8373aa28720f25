"""The thread behind the service: takes what has come in, serves it in one transaction, replies.

While one batch is computed and written, the next one gathers, so that batches are as large as the
load makes them. Short batches are begun some milliseconds apart: a transaction costs as much as
several requests, so few of them with many requests each answer sooner than many with one each. A
lone request waits for nobody.
"""

import gc
import logging
import queue
import threading
import time
from concurrent.futures import Future
from typing import Any

import sqlalchemy as sa

from .batch import Batch
from .catalog import Catalog
from .database import Database
from .errors import ServiceError, unavailable
from .metrics import Metrics
from .requests import Request, Settle
from .tasks import TaskCache
from .transaction import Transaction

LARGEST_BATCH = 128  # requests of one transaction
PACE_SECONDS = 0.005  # from the beginning of a batch to that of the next, at least
SETTLE_SECONDS = 1.0  # between looks for decisions whose wait is over
log = logging.getLogger("diffprior.service")


class Engine:
    """Serves requests from many threads; the reply is in each request's future.

    Args:
        database: Where the log is.
        max_tasks: Tasks kept in memory.
        metrics: What is counted.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_tasks: int = 20_000,
        metrics: Metrics,
    ) -> None:
        self.database = database
        self.catalog = Catalog(database)
        self.metrics = metrics
        self.task_cache = TaskCache(max_tasks)
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._preparing = threading.Lock()
        self._began = 0.0
        self._clock = 0.0
        self._closed = False
        self.healthy = True

    def start(self) -> None:
        """Compile what is needed, then begin to serve."""
        self.prepare()
        gc.collect()
        gc.freeze()  # what is there now stays; to look through it again takes a tenth of a second
        self._thread.start()

    def prepare(self) -> None:
        """Compile what versions need that are to serve, and let them."""
        with self._preparing:
            for version in self.catalog.pending():
                version.warm_up()
            self.catalog.serve_ready()

    def submit(self, request: Request) -> Future:
        """Serve a request soon; its future holds the reply or a `ServiceError`."""
        if self._closed:
            request.future.set_exception(unavailable("the service is stopping"))
        else:
            self._queue.put(request)
        return request.future

    def close(self) -> None:
        """Serve what has come in, then stop."""
        self._closed = True
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        last_settled = time.monotonic()
        while True:
            requests, stopping = self._gather()
            if time.monotonic() - last_settled > SETTLE_SECONDS and not stopping:
                requests.append(Settle())
                last_settled = time.monotonic()
                self._prepare_soon()
            if requests:
                self._serve(requests)
            if stopping:
                return

    def _prepare_soon(self) -> None:
        """Compile what another process has put, while decisions go on."""
        if self.catalog.pending() and not self._preparing.locked():
            threading.Thread(target=self.prepare, name="prepare", daemon=True).start()

    def _gather(self) -> tuple[list[Request], bool]:
        """What has come in, at least one request unless it is time to settle; whether to stop."""
        try:
            found = [self._queue.get(timeout=SETTLE_SECONDS)]
        except queue.Empty:
            return [], False
        if found[0] is not None:
            time.sleep(max(0.0, self._began + PACE_SECONDS - time.monotonic()))
        self._began = time.monotonic()
        while len(found) < LARGEST_BATCH and found[-1] is not None:
            try:
                found.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return [request for request in found if request is not None], found[-1] is None

    def _serve(self, requests: list[Request]) -> None:
        begin = time.perf_counter()
        try:
            results = self._in_one_transaction(requests)
            self.healthy = True
        except sa.exc.SQLAlchemyError as error:
            self.task_cache.forget()  # the commit may or may not have come through
            self.healthy = False
            reason = type(error.__cause__ or error).__name__
            log.error("database failed: %s", reason)
            results = [(request, unavailable(reason)) for request in requests]
        except Exception:
            self.task_cache.forget()
            if len(requests) > 1:
                for request in requests:
                    self._serve([request])
                return
            log.exception("request failed")
            results = [(requests[0], ServiceError(500, "the request failed; it is in the log"))]
        self.metrics.batch(len(requests), time.perf_counter() - begin)
        for request, result in results:
            self._reply(request, result)

    def _in_one_transaction(self, requests: list[Request]) -> list[tuple[Request, Any]]:
        self._clock = max(self._clock, time.time())
        with self.database.transaction() as connection:
            self.catalog.refresh_if_old(connection)
            about = (connection, self.database, self.catalog, self.task_cache, self._clock)
            batch = Batch(Transaction(*about))
            batch.run(requests)
        batch.commit_cache()
        self.metrics.tasks_in_memory(len(self.task_cache))
        self.metrics.learned(batch.learned)
        return batch.results

    def _reply(self, request: Request, result: Any) -> None:
        self.metrics.served(request, result)
        if request.future.cancelled() or not request.future.set_running_or_notify_cancel():
            return
        if isinstance(result, BaseException):
            request.future.set_exception(result)
        else:
            request.future.set_result(result)
