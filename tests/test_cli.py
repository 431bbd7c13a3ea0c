"""The commands: what they print, their exit codes, and one clear line for everything that is wrong."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import voicekit as vk
from voicekit import audio, cli, doctor, serve
from voicekit.cli import main, parse_settings
from voicekit.simulator import Settings

QUICK = ("run", "quick_lookup", "--model", "gpt-realtime")
VARIABLES = ("OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL")


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Run a command in this process; returns exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(list(arguments))
        return code, *capfd.readouterr()

    return run


def refused(say: Say, *arguments: str, code: int = 2) -> str:
    """The one line that a wrong command is answered with; nothing else is printed, nothing is written."""
    before = sorted(Path().rglob("*"))
    found = say(*arguments)
    assert found[:2] == (code, ""), found
    assert re.fullmatch(r"voicekit: [^\n]+\n", found[2]), found[2]
    assert sorted(Path().rglob("*")) == before
    return found[2]


# What goes well


def test_a_run_as_json_is_one_object_and_nothing_else(say: Say) -> None:
    code, out, err = say(*QUICK, "--set", "tool_seconds=2", "--seed", "3", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    found = json.loads(out)
    assert set(found) == {"run", "metrics", "calls"}
    assert found["run"]["provenance"] == "simulated" and found["run"]["seed"] == 3
    assert {"dead_air_longest", "time_to_result", "talk_over", "unanswered_calls"} <= set(found["metrics"])
    (call,) = found["calls"]
    assert call["tool"] == "check_stock" and call["state"] == "done"
    assert call["finished"] - call["started"] == pytest.approx(2.0)


def test_a_run_is_saved_whole_and_reported(say: Say) -> None:
    code, out, _ = say(*QUICK, "--out", "runs/a")
    assert code == 0 and "(simulated)" in out and f"saved in {Path('runs/a')}" in out
    assert Path("runs/a/timeline.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in Path("runs").iterdir()] == ["a"]
    assert say(*QUICK, "--out", "runs/a")[0] == 0  # again: it is replaced
    code, out, err = say("report", "runs", "--json")
    assert (code, err) == (0, "") and [each["run"]["scenario"] for each in json.loads(out)["runs"]] == ["quick_lookup"]
    assert "simulated" in say("report", "runs")[1]


def test_the_demo_shows_the_core_experiments(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "CORE", cli.CORE[:1])
    code, out, err = say("demo", "--out", "demo")
    assert (code, err) == (0, "") and "simulated" in out and "gemini-3.1-flash-live-preview" in out
    folder = Path("demo/order_status--gemini-3.1-flash-live-preview")
    assert {"run.json", "heard.flac", "timeline.png"} <= {path.name for path in folder.iterdir()}
    assert "dead_air_longest" in Path("demo/table.csv").read_text()
    code, out, err = say("demo", "--out", "demo", "--json")
    assert (code, err) == (0, "") and len(json.loads(out)["runs"]) == 1


def test_list_names_scenarios_models_and_clips(say: Say) -> None:
    code, out, _ = say("list")
    assert code == 0 and all(name in out for name in ("order_status_chatty", "gemini-3.8-live", "Do you have the blue"))


def test_probe_finds_out_who_waits(say: Say) -> None:
    assert "said nothing" in say("probe", "gpt-4o-realtime-preview")[1]
    assert "documented default: non_blocking (not tried" in say("probe", "gemini-3.8-live")[1]


def test_help_and_no_command(say: Say) -> None:
    assert say("--help")[0] == 0
    assert "demo" in say("--help")[1] and "--model" in say("run", "--help")[1]
    assert "COMMAND" in refused(say)


def test_settings_are_json_where_they_parse() -> None:
    pairs = ["tool_seconds.check_stock=2.5", "tool_seconds.get_shipping=1", "delivery=silent", "noise_db=-40"]
    assert parse_settings([*pairs, "behavior=None", "without_asking=a,b"]) == {
        "tool_seconds": {"check_stock": 2.5, "get_shipping": 1},
        "delivery": "silent",
        "noise_db": -40,
        "behavior": None,
        "without_asking": frozenset({"a", "b"}),
    }


# What is wrong


@pytest.mark.parametrize(
    ("arguments", "mend"),
    [
        (("fly",), "choose from"),
        (("run", "quick_lookup"), "--model"),
        (("run", "nothing", "--model", "gpt-realtime"), "quick_lookup"),
        (("run", "quick_lookup", "--model", "gpt-9"), "gpt-realtime-2.1"),
        (("probe", "gpt-9"), "gpt-realtime-2.1"),
        ((*QUICK, "--target", "moon"), '"simulator", "live" or "replay"'),
        ((*QUICK, "--clock", "sundial"), "virtual"),
        ((*QUICK, "--seed", "x"), "--seed"),
        ((*QUICK, "--set", "tool_seconds"), "NAME=VALUE"),
        ((*QUICK, "--set", ".x=1"), "NAME=VALUE"),
        ((*QUICK, "--set", "tool_second=2"), "tool_seconds"),
        ((*QUICK, "--set", "tool_seconds=soon"), "0 to 600"),
        ((*QUICK, "--set", "tool_seconds=1", "--set", "tool_seconds.check_stock=2"), "the one or the other"),
        ((*QUICK, "--set", "model=gpt-realtime"), "option of its own"),
        ((*QUICK, "--set", "policy=x"), "vk.run"),
        ((*QUICK, "--set", "delivery=later"), "when_idle"),
        ((*QUICK, "--set", "tool_timeout=soon"), "seconds above 0"),
        ((*QUICK, "--set", "keep_clear=-1"), "from 0 to 1"),
        ((*QUICK, "--set", "claims=yes"), "--set claims.NAME=VALUE"),
        ((*QUICK, "--set", "claims.fillers=perhaps"), "stated"),
        ((*QUICK, "--set", "faults.flood=1"), "garbage_after_s"),
        ((*QUICK, "--set", "language=fr"), "thanks_emma_fr"),
        ((*QUICK, "--set", "behavior=blocking"), "gpt-realtime has no blocking calls"),
        (("run", "stock", "--model", "gemini-3.8-live"), "two_lookups"),
        (("run", "barge_in", "--model", "gemini-3.1-flash-live-preview", "--set", "delivery=interrupt"), "when_idle"),
        ((*QUICK, "--target", "live"), "OPENAI_API_KEY"),
        (("run", "quick_lookup", "--model", "gemini-3.8-live", "--target", "live"), "GEMINI_API_KEY"),
        (("run", "quick_lookup", "--model", "gpt-live-1", "--target", "live"), "OPENAI_API_KEY"),
        ((*QUICK, "--target", "live", "--clock", "virtual"), "real"),
        (("report", "nowhere"), "voicekit run"),
        (("simulator", "--port", "70000"), "65535"),
        (("simulator", "--port", "0", "--tls-port", "-1"), "--tls-port"),
        (("simulator", "--port", "0", "--set", "color=red"), "claims.NAME"),
        (("simulator", "--port", "0", "--set", "claims.fillers=perhaps"), "stated"),
        (("simulator", "--port", "0", "--set", "faults.flood=1"), "garbage_after_s"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_one_line_says_what_is_wrong_and_what_is_right(say: Say, arguments: tuple[str, ...], mend: str) -> None:
    assert mend in refused(say, *arguments)


@pytest.mark.parametrize(
    ("model", "variable", "address"),
    [
        ("gpt-realtime", "OPENAI_BASE_URL", "http://127.0.0.1:8765/v1"),
        ("gpt-live-1", "OPENAI_BASE_URL", "https://openai.com.example.org/v1"),
        ("gemini-3.8-live", "GOOGLE_GEMINI_BASE_URL", "https://127.0.0.1:8765"),
    ],
)
def test_live_is_live(say: Say, monkeypatch: pytest.MonkeyPatch, model: str, variable: str, address: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "simulated-key")
    monkeypatch.setenv("GEMINI_API_KEY", "simulated-key")
    monkeypatch.setenv(variable, address)
    assert f"unset {variable}" in refused(say, "run", "quick_lookup", "--model", model, "--target", "live")


def test_the_vendors_own_address_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from voicekit.application import live_endpoint

    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://eu.api.openai.com/v1")
    assert live_endpoint("gpt-realtime").api_key == "k"


@pytest.mark.parametrize("model", ["gpt-realtime", "gemini-3.8-live", "gpt-live-1"])
def test_a_simulated_run_goes_where_it_should_whatever_the_environment(
    say: Say, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody answers there
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "https://127.0.0.1:9")
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    code, out, err = say("run", "quick_lookup", "--model", model, "--json")
    assert (code, err) == (0, "") and json.loads(out)["metrics"]["tool_calls"] == 1


def test_a_provider_that_hangs_up_fails_the_run_which_is_saved_all_the_same(say: Say) -> None:
    code, out, err = say(*QUICK, "--set", 'faults.close={"after_s": 2.5, "code": 1011}', "--json", "--out", "broken")
    assert code == 1 and json.loads(out)["metrics"]["unanswered_calls"] == 0
    assert re.fullmatch(r"voicekit: the run failed: [^\n]*1011[^\n]*\n", err)
    assert vk.Run.load("broken").problem in err


def test_an_unexpected_error_is_one_line_too(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise LookupError("no\nsuch thing")

    monkeypatch.setattr("voicekit.experiment.run_plan", broken)
    assert "LookupError: no such thing (voicekit --debug run" in refused(say, *QUICK, code=1)
    with pytest.raises(LookupError):
        main(["--debug", *QUICK])


def test_an_interrupt_is_one_line(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("voicekit.experiment.run_plan", interrupted)
    assert refused(say, *QUICK, code=1) == "voicekit: interrupted\n"


# Clips


def broken_clips(folder: Path, name: str, damage: Callable[[Path], object]) -> dict[str, audio.Clip]:
    """The kit's clips, one of them in a copy that has been damaged."""
    clips = dict(audio.clips())
    copy = folder / "damaged" / clips[name].path.name
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(clips[name].path, copy)
    damage(copy)
    clips[name] = dataclasses.replace(clips[name], path=copy)
    return clips


@pytest.mark.parametrize("name", ["stock", "returns"])  # one that is said, and one that only the model must know
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"hum")], ids=["missing", "damaged"])
def test_a_missing_or_damaged_clip_is_named(
    say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    clips = broken_clips(tmp_path, name, damage)
    monkeypatch.setattr("voicekit.audio.clips", lambda: clips)
    monkeypatch.setattr("voicekit.application.Settings", lambda **options: Settings(clips=clips, **options))
    assert f"{name}.flac" in refused(say, *QUICK, "--out", "run")
    code, out, _ = say("doctor", "--out", str(tmp_path))
    assert code == 1 and re.search(rf"MEND audio .*{name}\.flac.* -> restore data/audio", out)


# Folders


def test_a_file_is_no_folder(say: Say, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    assert "is a file" in refused(say, *QUICK, "--out", "taken")
    assert "is a file" in refused(say, "demo", "--out", "taken/below")


def test_a_folder_with_other_things_in_it_is_left_alone(say: Say, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    assert "choose a new folder" in refused(say, *QUICK, "--out", "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that even an administrator cannot write")
@pytest.mark.parametrize("command", [(*QUICK, "--out", "/proc/run"), ("demo", "--out", "/proc/voicekit-out")])
def test_a_read_only_folder_is_found_out_before_the_run(say: Say, command: tuple[str, ...]) -> None:
    assert "cannot write" in refused(say, *command)
    assert "MEND writing" in say("doctor", "--out", "/proc/x")[1]


# The simulator


def test_a_busy_port_is_one_line(say: Say) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert f"port {port} cannot be opened" in refused(say, "simulator", "--port", port)
        assert "with --tls-port" in refused(say, "simulator", "--port", "0", "--tls-port", port)


def test_what_a_stock_client_is_told() -> None:
    found = serve.environment(8765, Path("/tmp/some where/simulator.pem"), 8766)
    assert found["OPENAI_BASE_URL"] == "http://127.0.0.1:8765/v1"
    assert found["GOOGLE_GEMINI_BASE_URL"] == "https://127.0.0.1:8766"
    assert found["SSL_CERT_FILE"] == found["NODE_EXTRA_CA_CERTS"] == "/tmp/some where/simulator.pem"
    assert {"OPENAI_API_KEY", "GEMINI_API_KEY", "NO_PROXY"} < set(found)


# Doctor


def test_doctor_never_shows_a_key(say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org:3128")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8765/v1")
    _, out, err = say("doctor", "--out", str(tmp_path / "out"))
    assert "secret" not in out + err and "OPENAI_API_KEY         set (not shown)" in out
    assert "NO_PROXY=127.0.0.1" in out and "OPENAI_BASE_URL" in out
    assert re.search(r"ok   audio +\d+ clips readable", out) and "can be written" in out
    assert list(tmp_path.iterdir()) == []


def test_doctor_names_versions_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = doctor.importlib.metadata.version
    fake = {"openai": "2.9.0", "google-genai": "4.0"}
    monkeypatch.setattr("importlib.metadata.version", lambda name: fake.get(name) or real(name))
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["openai<4,>=3.57", "google-genai>=3.6,<4"])
    found = {name: mend for name, mend, _ in doctor.checks(tmp_path)}
    assert found["openai"] and found["google-genai"] and not found["python"]


# The console script


def test_the_console_script_itself(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("voicekit")
    command = [str(script)] if script.is_file() else [sys.executable, "-m", "voicekit.cli"]
    result = subprocess.run([*command, *QUICK, "--json"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["metrics"]["unanswered_calls"] == 0
    wrong = subprocess.run([*command, "list", "nothing"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
