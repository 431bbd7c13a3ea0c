"""The long files first, so that no worker is left alone with one of them at the end."""

from __future__ import annotations

import pytest

LONG = ("test_stale.py", "test_clock.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)
