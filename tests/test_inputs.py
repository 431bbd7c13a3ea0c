"""What a run may not be asked for: one line that names the mend, before anything starts, and exit code 2."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from talks import talk

import voicekit as vk
from voicekit import audio, cli, inputs, lesson
from voicekit.clock import run_blocking
from voicekit.experiment import Plan
from voicekit.simulator import Settings
from voicekit.simulator.injection import FAULTS, check_faults

GPT, GEMINI, LIVE = "gpt-realtime", "gemini-3.8-live", "gpt-live-1"
NAN, INFINITE = float("nan"), float("inf")


def refusal(scenario: Any = "quick_lookup", model: Any = GPT, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        Plan.of(scenario, model=model, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Settings


@pytest.mark.parametrize(
    ("options", "mend"),
    [
        ({"noise_db": "abc"}, "noise_db is a number from -90 to 0"),
        ({"noise_db": NAN}, "noise_db is a number from -90 to 0"),
        ({"noise_db": 400}, "noise_db is a number from -90 to 0"),
        ({"echo_db": 3}, "echo_db is a number from -60 to 0"),
        ({"frame_ms": True}, "frame_ms is a whole number from 10 to 200"),
        ({"silence_ms": "long"}, "silence_ms is a whole number from 50 to 5000"),
        ({"silence_ms": 500.5}, "silence_ms is a whole number"),
        ({"max_seconds": INFINITE}, "max_seconds is a number from 1 to 3600"),
        ({"instructions": 5}, "instructions is a text"),
        ({"ledger": 5}, "ledger is the path of a file"),
        ({"ledger": " "}, "ledger is the path of a file"),
        ({"ledger": "/"}, "ledger is the path of a file"),
        ({"earlier": "yesterday"}, "vk.Run.load"),
        ({"tool_seconds": {"check_stok": 1.0}}, "it has check_stock"),
        ({"tool_seconds": True}, "tool_seconds is a number from 0 to 600"),
        ({"tool_seconds": {"check_stock": NAN}}, "tool_seconds is a number from 0 to 600"),
        ({"tool_seconds": INFINITE}, "tool_seconds is a number from 0 to 600"),
        ({"tool_faults": 3}, "tool_faults is a mapping"),
        ({"tool_faults": {"check_stok": "error"}}, "it has check_stock"),
        ({"tool_faults": {"check_stock": 3}}, 'such as "error"'),
        ({"tool_timeout": "abc"}, "tool_timeout is a number of seconds above 0"),
        ({"tool_timeout": NAN}, "tool_timeout is a number of seconds above 0"),
        ({"tool_timeout": True}, "tool_timeout is a number of seconds above 0"),
        ({"revision_key": "day"}, "revision_key is a function"),
        ({"claims": 3}, "claims is a mapping"),
        ({"claims": {"fillers": True}}, "claims is a mapping"),
        ({"language": 5}, "language is one of de, en"),
        ({"language": "xx"}, "there are clips in de, en"),
        ({"seed": "x"}, "seed is a whole number"),
        ({"seed": 1.5}, "seed is a whole number"),
        ({"policy": {"stale": "drop"}}, "policy is a vk.Policy"),
        ({"clock": "sundial"}, 'clock is "virtual" or "real"'),
        ({"tools": 3}, "@vk.tool"),
        ({"scenario": 5}, "voicekit list"),
        ({"scenario": vk.Scenario("mine", tools={"check_stok": 1.0})}, "no tool 'check_stok'"),
        ({"scenario": vk.Scenario("mine", tools={"check_stock": "soon"})}, "0 to 600 seconds"),
        ({"scenario": vk.Scenario("mine", tools=("check_stock",))}, "a mapping of name to seconds"),  # type: ignore
        ({"scenario": vk.Scenario("mine", lines=("stock",))}, "vk.Line"),  # type: ignore[arg-type]
        ({"scenario": vk.Scenario("mine", lines=vk.Line("stock"))}, r"(vk.Line(...),)"),  # type: ignore[arg-type]
        ({"model": LIVE, "backend": 3}, "async def work"),
        ({"model": LIVE, "supervisor": 3}, "supervisor is a function"),
    ],
    ids=str,
)
def test_a_wrong_value_is_one_line_that_names_the_mend(options: dict[str, Any], mend: str) -> None:
    assert mend in refusal(**options)


def test_seconds_do_not_reach_the_readers_own_tools() -> None:
    @vk.tool(effect="read", seconds=0.1)
    async def check_stock(item: str) -> dict[str, Any]:
        """Say how many there are."""
        return vk.ok("Twelve.")

    assert "dataclasses.replace" in refusal(tools=(check_stock,), tool_seconds=2.0)
    assert "dataclasses.replace" in refusal(tools=(check_stock,), tool_faults={"check_stock": "error"})
    assert Plan.of("quick_lookup", model=GPT, tools=(check_stock,)).tools == (check_stock,)


# Faults


@pytest.mark.parametrize(
    ("model", "faults", "mend"),
    [
        (GPT, 3, "faults is a mapping"),
        (GPT, {"close": 3}, '"after_s": 2.5'),
        (GPT, {"close": {"code": 1011}}, '"after_s": 2.5'),
        (GPT, {"close": {"after_s": 1, "code": 99999}}, "1007 to 1014"),
        (GPT, {"close": {"after_s": -1}}, "0 to 3600"),
        (GPT, {"close": {"after_s": 1, "reason": 5}}, "reason is a text"),
        (GPT, {"extra_argument": 3}, '{"gift": true}'),
        (GPT, {"stall_after_s": -2}, "0 to 3600"),
        (GPT, {"stall_after_s": NAN}, "0 to 3600"),
        (GPT, {"short_by_ms": "x"}, "milliseconds"),
        (GPT, {"second_id": False}, "true, or left out"),
        (GPT, {"second_message": 1}, "true or a text"),
        (GPT, {"promise_without_call": "never"}, "'always'"),
        (GPT, {"unspoken": True}, "it has close, duplicate_call"),
        (GPT, {"goaway_after_s": 3}, "it has close, duplicate_call"),
        (GEMINI, {"short_by_ms": 3}, "goaway_after_s"),
        (LIVE, {"second_id": True}, "delegations"),
        (LIVE, {"delegations": {"count": 0, "seconds": 1}}, "1 to 10000"),
        (LIVE, {"delegations": {"count": 3}}, "1 to 10000"),
        (LIVE, {"flood": 1}, "unspoken"),
    ],
    ids=str,
)
def test_a_fault_has_a_possible_value_and_its_provider_imitates_it(model: str, faults: Any, mend: str) -> None:
    assert mend in refusal(model=model, faults=faults)


def test_what_an_append_suffers_needs_the_client_to_append() -> None:
    assert 'delegation="client"' in refusal(model=LIVE, delegation="responses", faults={"unspoken": True})


def test_each_endpoint_acts_on_the_faults_that_are_said_to_be_its() -> None:
    """The table and the code agree, by the names that occur in each."""
    folder = Path(inputs.__file__).parent / "simulator"
    code = {
        "openai-realtime": ("openai_realtime.py", "openai_talk.py"),
        "gpt-live": ("gpt_live.py",),
        "gemini-live": ("gemini_live.py", "gemini_model.py"),
    }
    for provider, files in code.items():
        text = "".join((folder / name).read_text(encoding="utf-8") for name in files)
        for name, (providers, _) in FAULTS.items():
            assert (f'"{name}"' in text) == (provider in providers) or name == "mishear", (provider, name)


def test_the_stand_alone_simulator_knows_all_faults_and_checks_their_values() -> None:
    Settings(faults={"unspoken": True, "goaway_after_s": 3})
    with pytest.raises(ValueError, match="0 to 3600"):
        Settings(faults={"goaway_after_s": "soon"})
    check_faults({"close": {"after_s": 0.5, "code": 4000, "reason": "maintenance"}})


# Clips


@pytest.mark.parametrize("clip", ["stock", "hello"])  # one that is said, and one that the ears only compare with
def test_a_damaged_clip_is_one_line_before_the_run(clip: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = dict(audio.clips())
    whole = known[clip].path.read_bytes()
    (tmp_path / "cut.flac").write_bytes(whole[: len(whole) // 2] + bytes(64))
    known[clip] = audio.Clip(clip, tmp_path / "cut.flac", sha256=known[clip].sha256)
    monkeypatch.setattr(audio, "clips", lambda: known)
    inputs._check_files.cache_clear()
    assert f"clip '{clip}': cut.flac is not the file" in refusal()


# Sweeps and comparisons


@pytest.mark.parametrize(
    ("options", "mend"),
    [
        ({"n": 0}, "a whole number from 1 on"),
        ({"n": 1.5}, "a whole number from 1 on"),
        ({"metrics": ("speed",)}, "known: response_latency"),
        ({"metrics": "talk_over"}, "metrics is a list"),
        ({"policies": [{"stale": "drop"}]}, "vk.Policy"),
        ({"policies": vk.Policy()}, "policies is a list"),
        ({"scenarios": "quick_lookup"}, "scenarios is a list"),
        ({"models": []}, "models is empty"),
        ({"tool_seconds": []}, "tool_seconds is empty"),
    ],
    ids=str,
)
def test_a_sweep_is_checked_before_its_first_run(options: dict[str, Any], mend: str) -> None:
    with pytest.raises(ValueError) as caught:
        vk.sweep(**{"scenarios": ["quick_lookup"], "models": [GPT], "n": 1} | options)
    assert mend in str(caught.value)


def test_a_swept_policy_shows_its_value_in_every_row_whatever_it_is() -> None:
    policies = [vk.Policy(), vk.Policy(stale="speak"), vk.Policy(behavior="non_blocking", delivery=by_hand)]
    varied = {"tool_seconds": [{"check_stock": 0.2}]}
    table = vk.sweep(["quick_lookup"], [GPT], policies, n=1, metrics=["time_to_result"], **varied)
    assert list(table["stale"]) == ["drop", "speak", "drop"]
    assert list(table["delivery"]) == ["when_idle", "when_idle", "by_hand"]
    assert list(table["behavior"]) == ["default", "default", "non_blocking"]
    assert set(table["tool_seconds"]) == {"check_stock=0.2"} and list(table["n"]) == [1, 1, 1]


def by_hand(_result: Any, _moment: Any) -> str:
    return "when_idle"


def test_two_runs_side_by_side_say_what_was_changed() -> None:
    other = talk("quick_lookup", GPT, tool_seconds=2.0, delivery="silent")
    table = vk.compare(talk("quick_lookup", GPT), other)
    assert list(table.columns[:5]) == ["scenario", "model", "tool_seconds", "delivery", "provenance"]
    assert table["tool_seconds"].tolist() == ["check_stock 0.2", "check_stock 2.0"]
    assert list(vk.compare(other, other).columns[:3]) == ["scenario", "model", "provenance"]
    bare = dataclasses.replace(other, meta={key: other.meta[key] for key in ("scenario", "model", "provenance")})
    assert vk.compare(other, bare)["delivery"].tolist() == ["silent", ""]
    assert vk.compare(bare, other)["delivery"].tolist() == ["", "silent"]


def test_what_a_function_of_ones_own_returned_in_vain_is_said_aloud() -> None:
    with pytest.warns(UserWarning, match="delivery: .* returned 'interupt'; it is to return when_idle or interrupt"):
        vk.run("quick_lookup", model=GPT, delivery=lambda result, moment: "interupt")
    with pytest.warns(UserWarning, match="'interupt'"):
        vk.sweep(["quick_lookup"], [GPT], [vk.Policy(delivery=lambda result, moment: "interupt")], n=1)


@pytest.mark.parametrize(
    ("mistake", "mend"),
    [
        (lambda run: vk.Policy(behaviour="blocking"), "no field 'behaviour'; did you mean behavior? known: "),  # type: ignore[call-arg]
        (lambda run: vk.table(run, "talk_over"), "label each"),
        (lambda run: vk.table([("a", run)]), "the metrics you name"),
        (lambda run: vk.tool(print), '@vk.tool(effect="read")'),
        (lambda run: run.save(None), "name of a folder"),
        (lambda run: vk.Run.load(None), "name of a folder"),
        (lambda run: vk.run("order_statu", model=GPT), "unknown scenario 'order_statu'; did you mean order_status"),
        (lambda run: vk.run("quick_lookup", model="gpt-realtim"), "did you mean gpt-realtime"),
        (lambda run: vk.run("quick_lookup", model="claude"), "unknown model 'claude'; known: gpt-4o"),
        (lambda run: vk.run("quick_lookup", model=GPT, tool_second=3), "did you mean tool_seconds"),
        (lambda run: vk.compare(run, None), "not NoneType"),  # type: ignore[arg-type]
    ],
)
def test_a_slip_is_answered_with_one_line_and_the_mend(mistake: Any, mend: str) -> None:
    with pytest.raises(ValueError) as caught:
        mistake(talk("quick_lookup", GPT))
    assert mend in str(caught.value) and "\n" not in str(caught.value)


def test_waits_that_are_no_one_silence_are_not_added_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = lesson.waits([("asks again", talk("order_status_chatty", GPT)), ("waits", talk("quick_lookup", GPT))])
    assert found["asks again"].isna().all() and "asks again: this is not one silence" in capsys.readouterr().out
    assert found["waits"].iloc[:-1].sum() == pytest.approx(found.loc["the silence", "waits"])


def test_a_run_without_a_caller_has_no_silence_to_cut_up(capsys: pytest.CaptureFixture[str]) -> None:
    mute = dataclasses.replace(talk("quick_lookup", GPT), event_rows=[])
    assert lesson.moments(mute).isna().all()
    assert lesson.waits([("mute", mute)])["mute"].isna().all() and "mute: " in capsys.readouterr().out


def test_two_runs_with_one_label_are_both_shown() -> None:
    run, slow = talk("quick_lookup", GPT), talk("quick_lookup", GPT, tool_seconds=2.0, delivery="silent")
    table = vk.table([("fast", run), ("fast", slow), ("fast", run)], "unanswered_calls", "talk_over")
    assert list(table.index) == ["fast", "fast (again)", "fast (again) (again)"]
    assert list(lesson.waits([("fast", run), ("fast", run)]).columns) == ["fast", "fast (again)"]


def test_a_run_on_a_loop_of_ones_own_says_whose_clock_it_had() -> None:
    async def main() -> str:
        return (await vk.arun("quick_lookup", model=GPT)).meta["clock"]

    assert run_blocking(main) == "virtual"
    with pytest.raises(ValueError, match="which is real"):
        asyncio.run(vk.arun("quick_lookup", model=GPT, clock="virtual"))


def test_a_list_of_runs_is_no_run() -> None:
    with pytest.raises(ValueError, match=r"compare\(\*runs\)"):
        vk.compare([])  # type: ignore[arg-type]


# The command line, and saved runs


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize(
    "setting",
    ["faults=3", "faults.close=3", "noise_db=abc", "tool_timeout=abc", "claims=3", "language=5", "ledger=/no/where/x",
     "earlier=yesterday", "tool_seconds=Infinity", "tool_seconds=true", "faults.unspoken=true"],
)  # fmt: skip
def test_bad_usage_is_exit_code_2(say: Callable[..., tuple[int, str, str]], setting: str) -> None:
    code, out, err = say("run", "quick_lookup", "--model", GPT, "--set", setting)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert setting.partition("=")[0].partition(".")[0] in err


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talk("quick_lookup", GPT).save(tmp_path_factory.mktemp("runs") / "good")


DAMAGES = [
    ("run.json", b"{", "run.json is not JSON"),
    ("run.json", b"[]", "scenario, model, provenance"),
    ("run.json", b"{}", "scenario, model, provenance"),
    ("run.json", b"\xff\xfe", "run.json is not JSON"),
    ("metrics.json", b"3", "metrics.json is no object"),
    ("wire.jsonl", b"{}\n", "wire.jsonl, line 1: no object with t, direction"),
    ("wire.jsonl", b"\xff\n", "wire.jsonl is not UTF-8"),
    ("events.jsonl", b"{\n", "events.jsonl, line 1: not JSON"),
    ("calls.jsonl", b'"x"\n', "calls.jsonl, line 1: no object with call_id"),
    ("heard.flac", b"fLaC", "heard.flac cannot be read"),
]


@pytest.mark.parametrize(("name", "content", "mend"), DAMAGES, ids=lambda value: str(value)[:30])
def test_a_damaged_run_names_folder_file_and_mend(
    saved: Path, tmp_path: Path, name: str, content: bytes, mend: str
) -> None:
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(content if file.name == name else file.read_bytes())
    with pytest.raises(ValueError) as caught:
        vk.Run.load(tmp_path)
    text = str(caught.value)
    assert str(tmp_path) in text and mend in text and "hold the conversation again" in text and "\n" not in text


def test_what_an_editor_adds_to_a_file_damages_no_run(saved: Path, tmp_path: Path) -> None:
    for file in saved.iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(b"\xef\xbb\xbf" + content + b"\r\n" if "jsonl" in file.name else content)
    assert vk.Run.load(tmp_path).event_rows == vk.Run.load(saved).event_rows


def test_a_damaged_run_hides_no_good_one(saved: Path, say: Callable[..., tuple[int, str, str]]) -> None:
    bad = saved.parent / "bad"
    bad.mkdir()
    for file in saved.iterdir():
        (bad / file.name).write_bytes(b"{" if file.name == "metrics.json" else file.read_bytes())
    code, out, err = say("report", str(saved.parent), "--json")
    assert code == 1 and [each["run"]["scenario"] for each in json.loads(out)["runs"]] == ["quick_lookup"]
    assert "left out 1 of 2 runs" in err and "metrics.json" in err and err.count("\n") == 1
    code, out, err = say("report", str(bad))
    assert (code, out) == (2, "") and "metrics.json" in err


def test_a_run_that_was_hung_up_on_says_what_nobody_was_told(say: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = say("run", "order_status", "--model", GPT, "--set", 'faults.close={"after_s": 9}')
    assert code == 1 and "1011" in err and err.count("\n") == 1
    assert "unanswered_calls     1" in out and "undelivered: Your order left our warehouse" in out


def test_a_metric_that_does_not_exist_is_answered_with_the_ones_like_it() -> None:
    run = vk.run("quick_lookup", model=GPT)
    for ask in (lambda: run.metrics["dead_air"], lambda: vk.table([("a", run)], "talk_over", "dead_air")):
        with pytest.raises(KeyError, match="no metric 'dead_air'; did you mean dead_air_total or dead_air_longest"):
            ask()
    assert type(run.metrics.dropna()).__name__ == "Series" and run.metrics["unanswered_calls"] == 0
