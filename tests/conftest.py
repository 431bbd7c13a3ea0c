"""What the whole run of the tests has in common: the order of the files, and processes that start warm."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import pytest
import warm

# The files that take ten seconds and more come first, so that no worker is left alone with one of them at the end.
LONG = {"stale", "clock", "delegation", "barge_in", "writes", "untrusted", "conversations", "lesson_03", "cli", "ears"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONG)


def pytest_collection_finish() -> None:
    gc.freeze()  # the SDKs and the tests themselves stay: a tenth of a second each time they are looked through
    gc.set_threshold(warm.YOUNG)


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: a worker waits while its notebook's kernel or a test in real time is at it."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Have workers and notebooks' kernels be copies of one process, where a process can be copied (not on Windows)."""
    notebooks = any("notebooks" in arg for arg in config.args)
    workers = config.getoption("tx", None) or []
    if not hasattr(os, "fork") or not (notebooks or workers):
        return
    if warm.ADDRESS not in os.environ:  # the workers find it by the environment
        folder = tempfile.TemporaryDirectory(prefix="voicekit-warm-")
        config.add_cleanup(folder.cleanup)
        try:
            config.add_cleanup(warm.start(Path(folder.name)))
        except OSError:
            return  # everything starts cold
        config.option.tx = [f"{spec}//python={warm.WORKER}" if spec == "popen" else spec for spec in workers]
    if notebooks:
        config.option.nbval_current_env, config.option.nbval_kernel_name = False, warm.NAME
