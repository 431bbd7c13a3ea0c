"""A control panel for notebooks: choose scenario, model and policy, run, look at the picture and the numbers."""

from __future__ import annotations

from typing import Any

import ipywidgets as ipw
from IPython.display import display

from voicekit import models
from voicekit.experiment import run, scenarios
from voicekit.policy import CHOICES

KNOBS = ("delivery", "preamble", "stale", "on_barge_in")
SHOWN = ("response_latency", "dead_air_longest", "time_to_result", "talk_over", "stale_spoken", "unanswered_calls")


def panel(**fixed: Any) -> ipw.VBox:
    """A panel with the knobs of `Policy` and a button; `fixed` settings are passed to every run.

    Whatever is impossible for a model is said in the panel, in one line, before anything runs.
    """
    scenario = ipw.Dropdown(options=list(scenarios()), description="scenario")
    model = ipw.Dropdown(options=models.models(), description="model")
    seconds = ipw.FloatSlider(value=6.0, min=0.0, max=12.0, step=0.5, description="tool, s")
    knobs = {name: ipw.Dropdown(options=list(CHOICES[name]), description=name) for name in KNOBS}
    button = ipw.Button(description="Run", button_style="primary")
    output = ipw.Output()

    def clicked(_button: Any) -> None:
        output.clear_output(wait=True)
        with output:
            chosen = {name: knob.value for name, knob in knobs.items()}
            try:
                result = run(scenario.value, model=model.value, tool_seconds=seconds.value, **{**chosen, **fixed})
            except ValueError as error:
                print(error)
                return
            display(result.timeline(), result.metrics[list(SHOWN)].to_frame(), result.transcript(), result.listen())

    button.on_click(clicked)
    return ipw.VBox([ipw.HBox([scenario, model, seconds]), ipw.HBox(list(knobs.values())), button, output])
