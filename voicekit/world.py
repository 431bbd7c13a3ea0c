"""The small world behind the tools: a shop with two orders, two kettles and a diary.

What the tools say is in data/world.csv, so that every sentence also exists as a recording. The diary is the outside: it
has its own table and its own idea of what happened, whatever the ledger believes. Several people take appointments, so
that a booked hour stays free for others, and booking twice really books twice, unless both carry the same key.
"""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from voicekit.faults import Latency
from voicekit.models import data_path
from voicekit.names import unknown
from voicekit.results import Result, no_results, ok
from voicekit.tools import Faults, IdempotencyKey, Tool

Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]

ORDERS: dict[str, dict[str, Any]] = {
    "OD-20260818-001": {
        "state": "shipped",
        "arrives": "friday",
        "history": [["2026-08-18", "placed and paid"], ["2026-08-19", "packed"], ["2026-08-20", "shipped"]],
    },
    "OD-20260818-002": {
        "state": "shipped",
        "arrives": "friday",
        "history": [["2026-08-18", "placed and paid"], ["2026-08-20", "packed"], ["2026-08-23", "shipped"]],
    },
}
STOCK = {"blue kettle": 12, "red kettle": 0}
SHIPPING: dict[str, dict[str, Any]] = {"blue kettle": {"euros": 4.9, "days": 2}}
PLACES = {"brandenburg gate": "Berlin"}
WEATHER: dict[str, dict[str, Any]] = {
    "berlin": {"celsius": 11, "sky": "light rain"},
    "hamburg": {"celsius": 9, "sky": "windy"},
}
FREE = {"thursday": "14:00", "friday": "10:00"}  # the hour that is free on a day
OTHER_NAMES = {"blauer wasserkocher": "blue kettle", "roter wasserkocher": "red kettle"}
OTHER_NAMES |= {"brandenburger tor": "brandenburg gate"}

# How long each tool takes unless `World.tools` is told otherwise, seconds.
SECONDS = {
    "get_order_status": 6.0, "check_stock": 0.2, "get_shipping": 0.2, "find_place": 0.5, "get_weather": 0.5,
    "find_appointment": 1.0, "book_appointment": 1.0, "cancel_appointment": 1.0,
}  # fmt: skip

ItemOf = Annotated[str, Field(description="name of the item, such as blue kettle")]
DayOf = Annotated[Day, Field(description="day of the week, English, lower case")]
TimeOf = Annotated[str, Field(description="24-hour time, such as 14:00", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]


@cache
def sentences(language: str) -> dict[tuple[str, str], str]:
    """What is said, by (tool, case); tool "*" is for all of them. `language` is "en" or "de"."""
    if language not in ("en", "de"):
        raise ValueError(f'language is "en" or "de", not {language!r}')
    with data_path("world.csv").open(newline="", encoding="utf-8") as file:
        return {(row["tool"], row["case"]): row[language] for row in csv.DictReader(file)}


class World:
    """One shop. `bookings` are (day, time) pairs in the diary from the start.

    `path` keeps the diary in a sqlite file, so that it outlives the process, as an outside system would.
    """

    def __init__(
        self, language: str = "en", bookings: Iterable[tuple[str, str]] = (), path: str | Path = ":memory:"
    ) -> None:
        self._sentences = sentences(language)
        self._diary = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
        self._diary.executescript(
            "CREATE TABLE IF NOT EXISTS bookings (id INTEGER PRIMARY KEY, day TEXT, time TEXT, booked_by TEXT,"
            " cancelled_by TEXT UNIQUE);"
            "CREATE UNIQUE INDEX IF NOT EXISTS one_per_key ON bookings (booked_by) WHERE cancelled_by IS NULL;"
        )
        for number, (day, time) in enumerate(bookings):
            self._enter(day, time, f"preset {number}")

    @property
    def bookings(self) -> list[tuple[str, str]]:
        """The appointments in the diary as (day, time), oldest first; one that was booked twice is there twice."""
        return self._diary.execute("SELECT day, time FROM bookings WHERE cancelled_by IS NULL ORDER BY id").fetchall()

    def close(self) -> None:
        """Close the diary's file. What was written stays."""
        self._diary.close()

    def tools(
        self,
        seconds: float | Latency | Mapping[str, float | Latency] | None = None,
        faults: Mapping[str, Faults] | None = None,
    ) -> list[Tool]:
        """The world's tools. `seconds` and `faults` by tool name; a single `seconds` is for all of them.

        Raises ValueError for a name that is none of the tools.
        """
        takes: dict[str, float | Latency] = dict(SECONDS)
        if seconds is not None:
            takes |= seconds if isinstance(seconds, Mapping) else dict.fromkeys(SECONDS, seconds)
        breaks = dict(faults or {})
        if strange := sorted({*takes, *breaks} - set(SECONDS)):
            raise ValueError(unknown("unknown tool", strange[0], SECONDS))
        said = {case: self._sentences["*", case] for case in ("error", "time_out", "cancelled")}

        def make(function: Any, effect: Literal["read", "write", "irreversible"] = "read", **options: Any) -> Tool:
            name = function.__name__
            return Tool.of(
                function, effect=effect, seconds=takes[name], faults=breaks.get(name), sentences=said, **options
            )

        book = {"compensation": "cancel_appointment", "find_effect": self.find_booking}
        return [
            make(self.get_order_status),
            make(self.check_stock),
            make(self.get_shipping),
            make(self.find_place),
            make(self.get_weather),
            make(self.find_appointment, wish="appointment"),
            make(self.book_appointment, "write", **book),
            make(self.cancel_appointment, "irreversible", cancellable=False, find_effect=self.find_cancellation),
        ]

    # --- reading -----------------------------------------------------------------------------------------------------

    async def get_order_status(
        self,
        order_id: Annotated[str, Field(description="number such as OD-20260818-001", pattern=r"^OD-\d{8}-\d{3}$")],
        details: Annotated[bool, Field(description="also give every step so far")] = False,
    ) -> Result:
        """Look up where an order is. Never creates, changes or cancels an order."""
        order = ORDERS.get(order_id)
        if order is None:
            summary = self._say("get_order_status", "unknown")
            hint = "Ask the caller for the number; do not try others."
            return no_results(summary, retryable=False, reason="no_such_order", hint=hint, order_id=order_id)
        shown = order if details else {name: value for name, value in order.items() if name != "history"}
        return ok(self._say("get_order_status", order_id), order_id=order_id, **shown)

    async def check_stock(self, item: ItemOf) -> Result:
        """Look up how many pieces of an item are in stock. Does not reserve anything."""
        name = _plain(item)
        if name not in STOCK:
            return self._nothing("no_such_item", item=item, known=list(STOCK))
        return ok(self._say("check_stock", name), item=name, pieces=STOCK[name])

    async def get_shipping(self, item: ItemOf) -> Result:
        """Look up what shipping an item costs and how long it takes. Does not order anything."""
        name = _plain(item)
        if name not in SHIPPING:
            return self._nothing("not_shipped" if name in STOCK else "no_such_item", item=item, known=list(SHIPPING))
        return ok(self._say("get_shipping", name), item=name, **SHIPPING[name])

    async def find_place(self, landmark: Annotated[str, Field(description="name of a sight or building")]) -> Result:
        """Find the city a landmark is in. Needed before the weather at a landmark."""
        name = _plain(landmark)
        if name not in PLACES:
            return self._nothing("no_such_landmark", landmark=landmark)
        return ok(self._say("find_place", name), hint="get_weather takes this place.", place=PLACES[name])

    async def get_weather(self, place: Annotated[str, Field(description="name of a city")]) -> Result:
        """Look up the weather in a city. Takes cities only: find the place of a landmark first."""
        name = _plain(place)
        if name not in WEATHER:
            return self._nothing("no_such_place", place=place)
        return ok(self._say("get_weather", name), place=name.capitalize(), **WEATHER[name])

    async def find_appointment(self, day: DayOf, time: TimeOf | None = None) -> Result:
        """Look for a free appointment on a day. Books nothing."""
        free = FREE.get(day)
        if free is None:
            known = ("find_appointment", day) in self._sentences
            summary = self._say("find_appointment", day) if known else self._say("*", "nothing")
            return no_results(summary, retryable=False, reason="day_is_full", hint="Offer another day.", day=day)
        if time not in (None, free):
            hint = "Look once more without a time."
            return no_results(self._say("*", "nothing"), retryable=True, reason="time_not_free", hint=hint, day=day)
        return ok(self._say("find_appointment", day), day=day, time=free)

    # --- writing -----------------------------------------------------------------------------------------------------

    async def book_appointment(self, day: DayOf, time: TimeOf, key: IdempotencyKey) -> Result:
        """Book an appointment for the caller. Only for a day and time that were found free.

        Confirm with the caller before booking.
        """
        if FREE.get(day) != time:
            return self._nothing("not_free", day=day, time=time)
        if self.find_booking(key) is None:
            self._enter(day, time, key)
        return self._booked(day, time)

    async def cancel_appointment(self, day: DayOf, time: TimeOf, key: IdempotencyKey) -> Result:
        """Cancel the caller's appointment. It can not be taken back: the hour goes to somebody else.

        Confirm with the caller before cancelling.
        """
        if self.find_cancellation(key) is None:
            changed = self._diary.execute(
                "UPDATE bookings SET cancelled_by = ? WHERE id ="
                " (SELECT max(id) FROM bookings WHERE day = ? AND time = ? AND cancelled_by IS NULL)",
                (key, day, time),
            ).rowcount
            if not changed:
                return self._nothing("no_such_appointment", day=day, time=time)
        return ok(self._say("cancel_appointment", day), day=day, time=time)

    def find_booking(self, key: str, arguments: Mapping[str, Any] | None = None) -> Result | None:
        """What `book_appointment` answered to this key, if the booking is in the diary."""
        row = self._diary.execute(
            "SELECT day, time FROM bookings WHERE booked_by = ? AND cancelled_by IS NULL", (key,)
        ).fetchone()
        return self._booked(*row) if row else None

    def find_cancellation(self, key: str, arguments: Mapping[str, Any] | None = None) -> Result | None:
        """What `cancel_appointment` answered to this key, if it did cancel one."""
        row = self._diary.execute("SELECT day, time FROM bookings WHERE cancelled_by = ?", (key,)).fetchone()
        return ok(self._say("cancel_appointment", row[0]), day=row[0], time=row[1]) if row else None

    def _enter(self, day: str, time: str, key: str) -> None:
        self._diary.execute("INSERT INTO bookings (day, time, booked_by) VALUES (?, ?, ?)", (day, time, key))

    def _booked(self, day: str, time: str) -> Result:
        return ok(self._say("book_appointment", day), day=day, time=time)

    def _nothing(self, reason: str, **data: Any) -> Result:
        hint = "Tell the caller; the same search finds nothing again."
        return no_results(self._say("*", "nothing"), retryable=False, reason=reason, hint=hint, **data)

    def _say(self, tool: str, case: str) -> str:
        return self._sentences[tool, case]


def _plain(name: str) -> str:
    plain = " ".join(name.lower().split()).removeprefix("the ")
    return OTHER_NAMES.get(plain, plain)
