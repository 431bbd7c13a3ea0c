"""Imported by the process that child processes are copied from: it has made the shop's tools, so they need not."""

from __future__ import annotations

from voicekit.lessons import crash as crash
from voicekit.world import World

World().tools()
