"""What the whole run of the tests has in common: the order of the files, and warm kernels for the notebooks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import warm_kernel

# The long files first, so that no worker is left alone with one of them at the end.
LONG = ("test_stale.py", "test_clock.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: a worker waits while its notebook's kernel or a test in real time is at it."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Have the notebooks' kernels be copies of one process, where a process can be copied (not on Windows)."""
    notebooks = [arg for arg in config.args if "notebooks" in arg]
    if not notebooks or not hasattr(os, "fork"):
        return
    if warm_kernel.ADDRESS not in os.environ:  # the workers find it by the environment
        folder = tempfile.TemporaryDirectory(prefix="voicekit-kernels-")
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(warm_kernel.start(Path(folder.name)))
    config.option.nbval_current_env, config.option.nbval_kernel_name = False, warm_kernel.NAME
