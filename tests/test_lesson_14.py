"""Notebook 14: what changes when a run goes live, what it costs, that the key stays out of it, and what a run shows."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any, get_args

import pytest
from openai.types.realtime import RealtimeServerEvent
from talks import talk

import voicekit as vk
from voicekit.lessons import calibrate
from voicekit.lessons.check_14 import MADE_UP, made_up
from voicekit.models import Claim
from voicekit.runs import Run
from voicekit.simulator.server import Connection

MODEL, WAITS, GEMINI = "gpt-realtime", "gpt-4o-realtime-preview", "gemini-3.1-flash-live-preview"
SCENARIO = "order_status_chatty"
KEY = "sk-made-up-0000000000000000"


def verdicts(run: Run, model: str | None = None) -> dict[tuple[str, str], str]:
    rows = calibrate.beside_claims(run, model)
    return {(row.property, row.claimed): row.verdict for row in rows.itertuples()}


def seen(run: Run, name: str, model: str | None = None) -> str:
    rows = calibrate.beside_claims(run, model)
    return str(rows[rows["property"] == name]["seen"].iloc[0])


# Where a run goes


@pytest.mark.parametrize("model", [MODEL, "gemini-3.8-live", "gpt-live-1"])
def test_live_is_another_address_key_and_certificate(model: str) -> None:
    with calibrate.environment(OPENAI_API_KEY=KEY, GEMINI_API_KEY=KEY):
        here, there = (calibrate.endpoint(model, target) for target in ("simulator", "live"))
    assert "127.0.0.1" in here["base_url"] and there["base_url"] == "the SDK's own"
    assert all(here[name] != there[name] for name in ("base_url", "key", "certificate"))
    assert KEY not in repr((here, there))


def test_without_a_key_live_ends_in_one_line_and_ones_own_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "my own")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere.example")
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    with calibrate.environment(GEMINI_API_KEY=KEY):
        with pytest.raises(ValueError, match=r"^gpt-realtime live needs a key: set OPENAI_API_KEY in the environment$"):
            vk.run(SCENARIO, model=MODEL, target="live")
        assert os.environ["GEMINI_API_KEY"] == KEY
    assert os.environ["OPENAI_API_KEY"] == "my own" and os.environ["OPENAI_BASE_URL"] == "http://elsewhere.example"
    assert "GEMINI_API_KEY" not in os.environ


def test_a_live_run_takes_nothing_that_only_a_simulator_has() -> None:
    for wrong in ({"clock": "virtual"}, {"faults": {"stall_after_s": 2.0}}, {"claims": {"obeys_text": "yes"}}):
        with pytest.raises(ValueError, match="live"):
            vk.run(SCENARIO, model=MODEL, target="live", **wrong)  # type: ignore[arg-type]


def test_the_key_is_carried_and_kept_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[str] = []
    handshake = Connection._handshake

    def listening(connection: Connection, request: Any) -> None:
        handshake(connection, request)
        received.append(connection.headers.get("authorization", ""))

    monkeypatch.setattr(Connection, "_handshake", listening)
    run = calibrate.run_with_key(KEY, SCENARIO, model=MODEL, max_seconds=8.0, budget={"tokens": 200})
    assert received == [f"Bearer {KEY}"]  # so the search below has something to miss
    files = {file.name: file.read_bytes() for file in run.save(tmp_path / "run").iterdir()}
    assert [name for name, text in files.items() if KEY.encode() in text] == []
    assert b"OD-20260818-001" in files["wire.jsonl"]
    # The two limits: what exceeds the tokens is not run, the seconds end it all.
    assert "8 s" in run.problem and "limit is 200" in run.queue["why"][0]
    assert run.calls["state"].tolist() == ["rejected"]


def test_a_key_that_the_service_quotes_is_not_kept_either() -> None:
    close = {"after_s": 0.5, "code": 1008, "reason": f"bad key {KEY}"}
    run = calibrate.run_with_key(KEY, "order_status", model=MODEL, faults={"close": close})
    assert "bad key <key>" in run.problem
    assert KEY not in repr((run.meta, run.event_rows, run.wire_rows, run.call_rows))


# What it costs


@pytest.mark.parametrize("model", [MODEL, GEMINI])
def test_tokens_add_up_to_what_the_service_said(model: str) -> None:
    run = talk(SCENARIO, model)
    reports = [event["detail"] for event in run.event_rows if event["kind"] == "usage"]
    totals = [each.get("total_tokens") or each["total_token_count"] for each in reports]
    assert len(totals) > 1
    assert calibrate.tokens(run).drop(columns="t").sum(axis="columns").tolist() == totals


def test_a_late_answer_takes_more_than_an_early_one() -> None:
    together = calibrate.tokens(talk(SCENARIO, MODEL)).drop(columns="t").sum(axis="columns")
    assert together.is_monotonic_increasing


def test_a_voice_that_is_charged_by_the_second_has_no_tokens() -> None:
    assert calibrate.tokens(talk(SCENARIO, "gpt-live-1")).empty


# What varies


def test_a_seed_changes_the_latencies_and_nothing_the_application_does() -> None:
    runs = [talk(SCENARIO, MODEL), talk(SCENARIO, MODEL, seed=1)]
    assert len({run.calls["started"][0] for run in runs}) == 2
    assert len({str([e["kind"] for e in run.event_rows if e["lane"] in ("tool", "decision")]) for run in runs}) == 1


def test_only_the_callers_transcript_changes_its_place_among_the_frames() -> None:
    def frames(run: Run, without: str) -> list[str]:
        types = [row["type"] for row in run.wire_rows if "bytes of audio" not in str(row)]
        return [each for each in types if without not in each]

    first, second = talk(SCENARIO, MODEL), talk(SCENARIO, MODEL, seed=1)
    assert frames(first, "(nothing)") != frames(second, "(nothing)")
    assert frames(first, "input_audio_transcription") == frames(second, "input_audio_transcription")


def test_the_types_of_frames_are_those_the_sdk_lists() -> None:
    kinds = get_args(get_args(RealtimeServerEvent)[0])
    known = {get_args(kind.model_fields["type"].annotation)[0] for kind in kinds}
    received = {row["type"] for row in talk(SCENARIO, MODEL).wire_rows if row["direction"] == "received"}
    assert len(received) > 20 and received - {"close"} <= known


# Beside the claims


def test_a_simulated_run_agrees_with_what_it_was_made_from() -> None:
    for model in (MODEL, WAITS, GEMINI):
        rows = calibrate.beside_claims(talk(SCENARIO, model))
        assert set(rows[rows["use"] == "default"]["verdict"]) == {"agrees", ""}


def test_a_model_that_stands_still_contradicts_one_that_goes_on_talking() -> None:
    found = verdicts(talk(SCENARIO, WAITS), MODEL)
    assert [name for name, verdict in found.items() if verdict == "differs"] == [("waits_for_result", "no")]
    assert found["call_latency", "0.70"] == found["speech_latency", "1.04"] == "agrees"


def test_a_call_in_which_nobody_asks_anything_does_not_show_who_waits() -> None:
    assert seen(talk("order_status", MODEL), "waits_for_result").startswith("not shown")


@pytest.mark.parametrize(
    ("latency", "verdict"), [(0.70, "agrees"), (0.86, "agrees"), (0.88, "differs"), (0.5, "differs")]
)
def test_a_known_latency_is_read_and_judged(latency: float, verdict: str) -> None:
    run = made_up(latency)
    assert calibrate.seconds(run, "call_latency") == [latency]
    assert verdicts(run)["call_latency", "0.70"] == verdict  # three times a spread of 8 %


def test_latencies_are_those_the_simulator_drew() -> None:
    run = talk(SCENARIO, MODEL)
    assert calibrate.seconds(run, "call_latency") == [0.675]
    assert len(calibrate.seconds(run, "speech_latency")) == 3
    assert all(1.04 * 0.75 < each < 1.04 * 1.25 for each in calibrate.seconds(run, "speech_latency"))
    assert calibrate.seconds(made_up(None), "call_latency") == []


def test_what_gemini_hides_is_not_read() -> None:
    run = talk(SCENARIO, GEMINI)
    with pytest.raises(ValueError, match="does not say when it notices"):
        calibrate.seconds(run, "call_latency")
    assert "with the detection of the end it is" in seen(run, "call_latency")
    assert calibrate.seconds(run, "speech_latency") and verdicts(run)["default_behavior", "blocking"] == "agrees"
    newer = calibrate.beside_claims(talk(SCENARIO, "gemini-3.8-live"))
    assert set(newer[newer["property"] == "default_behavior"]["verdict"]) == {""}  # each tool is declared


def test_a_blocking_call_that_is_called_off_is_seen() -> None:
    run = talk(SCENARIO, "gemini-3.8-live", behavior="blocking")
    assert verdicts(run)["input_during_blocking_call", "cancels"] == "agrees"
    assert seen(run, "default_behavior").startswith("not shown")


def test_announcements_are_read_only_where_the_instructions_leave_them_to_the_model() -> None:
    told = talk("order_status", "gpt-realtime-2.1")
    free = talk("order_status", "gpt-realtime-2.1", instructions="You answer the telephone of a small shop.")
    assert seen(told, "preambles") == "not shown: the instructions say what to announce"
    assert seen(free, "preambles") == "yes (100% of the calls)" and verdicts(free)["preambles", "yes"] == "agrees"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no latency 'latency'"):
        calibrate.seconds(made_up(0.7), "latency")
    with pytest.raises(ValueError, match="unknown model"):
        calibrate.beside_claims(made_up(0.7), "gpt-nobody")


# From a number to a row


def row(runs: list[Run], evidence: str = "", least: int = 5, kinds: int = 1, problems: bool = False) -> dict[str, Any]:
    values = sorted(each for run in runs for each in calibrate.seconds(run, "call_latency"))
    found = {(run.meta["model"], run.meta["provenance"]) for run in runs}
    if len(values) < least or len(found) > kinds or (any(run.problem for run in runs) and not problems):
        raise ValueError("not from these")
    honest = "measured" if {run.meta["provenance"] for run in runs} == {"live"} else "simulated"
    middle, day = values[len(values) // 2], runs[0].meta["started"][:10]
    return {"value": middle, "low": values[0], "high": values[-1], "n": len(values)} | {
        "evidence": evidence or honest,
        "date": day,
    }


def test_the_check_is_content_with_an_honest_row() -> None:
    assert vk.check.measured_row(row)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda runs: row(runs, evidence="measured"), "five simulated runs, and the row says 'measured'"),
        (lambda runs: row(runs, least=1), "four runs; five are the least"),
        (lambda runs: row(runs, kinds=2), "runs of two models in one row"),
        (lambda runs: row(runs, kinds=2), "live and simulated runs in one row"),
        (lambda runs: row(runs, problems=True), "a run that ended with a problem"),
        (lambda runs: row(runs) | {"n": len(runs)}, "in one of six runs no call was made"),
        (lambda runs: row(runs) | {"value": sum(MADE_UP) / 5}, "value 0.7 (the median)"),
        (lambda runs: row(runs) | {"date": "2026-12-01"}, "the day of the runs"),
        (lambda runs: {"value": 0.7}, "a dict with low, high, n, evidence, date"),
        (lambda runs: None, "a dict with value"),
        (lambda runs: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_the_check_says_what_is_missing(wrong: Any, said: str) -> None:
    findings = vk.check.measured_row(wrong)
    assert not findings and said in repr(findings)


def test_only_what_was_measured_becomes_a_line_of_claims() -> None:
    with pytest.raises(ValueError, match="simulated, not measured"):
        calibrate.claim_line(
            MODEL, "call_latency", row([made_up(each, provenance="simulated") for each in MADE_UP]), "x"
        )
    line = calibrate.claim_line(MODEL, "call_latency", row([made_up(each) for each in MADE_UP]), "data/runs")
    claim = Claim(*next(csv.reader([line])))
    assert (claim.value, claim.use, claim.evidence, claim.date) == ("0.70", "alternative", "measured", "2001-01-01")
    assert claim.claim == "Median of 5 runs, 0.61 to 0.95 s"


def test_a_saved_run_comes_back_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = talk(SCENARIO, WAITS)
    run.save(tmp_path / f"{SCENARIO}--{WAITS}")
    monkeypatch.setenv("VOICEKIT_RUNS", str(tmp_path))
    again = vk.run(SCENARIO, model=WAITS, target="replay")
    assert again.wire_rows == run.wire_rows and again.values == run.values and again.meta == run.meta
    assert calibrate.beside_claims(again).equals(calibrate.beside_claims(run))
