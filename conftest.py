"""Names that examples in docstrings use without an import."""

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _example_names(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        from thulawa.testing import preview  # noqa: PLC0415 other tests do not need it

        doctest_namespace["preview"] = preview
