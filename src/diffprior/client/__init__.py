"""The decision service, called from Python: `Client`, and `AsyncClient` with the same methods.

`pip install 'diffprior[client]'` brings what they need.
"""

from ..extras import require

require("client", "httpx")

from .asynchronous import AsyncClient  # noqa: E402
from .calls import DecisionRequest  # noqa: E402
from .replies import CallError, Decision  # noqa: E402
from .synchronous import Client  # noqa: E402

__all__ = ["AsyncClient", "CallError", "Client", "Decision", "DecisionRequest"]
