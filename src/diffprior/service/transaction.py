"""What every part of one transaction works with."""

from typing import NamedTuple

import sqlalchemy as sa

from .catalog import Catalog
from .database import Database
from .tasks import TaskCache


class Transaction(NamedTuple):
    """An open transaction, what is known outside it, and the time, which never runs backwards."""

    connection: sa.Connection
    database: Database
    catalog: Catalog
    cache: TaskCache
    now: float
