"""Optional libraries are asked for by the extra that brings them."""

import pytest

from diffprior.extras import require


def test_what_is_missing_is_named_with_its_extra() -> None:
    require("plot", "json")
    with pytest.raises(
        ImportError, match=r"expected nothere to be.*pip install 'diffprior\[plot]'"
    ):
        require("plot", "json", "nothere")
