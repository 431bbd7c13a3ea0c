"""The mind of a simulated model: the kit's rules (voicekit.rules), which know nothing of protocol and timing."""

from __future__ import annotations

from voicekit.rules import (
    SWEEP_LIMIT as SWEEP_LIMIT,
)
from voicekit.rules import (
    CallTool as CallTool,
)
from voicekit.rules import (
    Mind as Mind,
)
from voicekit.rules import (
    Request as Request,
)
from voicekit.rules import (
    Speak as Speak,
)
from voicekit.rules import (
    Step as Step,
)
from voicekit.rules import (
    default_preamble as default_preamble,
)
from voicekit.rules import (
    is_empty as is_empty,
)
from voicekit.rules import (
    parse_output as parse_output,
)
from voicekit.rules import (
    read_preambles as read_preambles,
)
from voicekit.rules import (
    vary as vary,
)
from voicekit.understanding import sentences as sentences
