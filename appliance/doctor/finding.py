"""What a check says."""

from collections.abc import Callable
from dataclasses import dataclass

from appliance.doctor.facts import Facts
from appliance.settings import Settings
from engine.state_file import Finding as Told
from engine.state_file import Level


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One answer: a sentence, the command to type unless all is well, and the repair we can do ourselves.

    A warning is something to know: the box works, but slower or for less long.
    """

    check: str
    level: Level = "ok"
    sentence: str
    command: str = ""
    repair: Callable[[], None] | None = None

    @property
    def good(self) -> bool:
        """Whether the box can work with this."""
        return self.level != "bad"

    def line(self) -> str:
        """For a person."""
        mark = {"ok": "ok", "warning": "note", "bad": "BAD"}[self.level]
        advice = f"; type: {self.command}" if self.command and self.level != "ok" else ""
        own = " (--fix does it)" if self.repair is not None else ""
        return f"{mark:<5}{self.check:<13}{self.sentence}{advice}{own}"

    def told(self) -> Told:
        """As plain data."""
        return Told(
            check=self.check,
            level=self.level,
            sentence=self.sentence,
            command=self.command,
            fixable=self.repair is not None,
        )


Check = Callable[[Settings, Facts], Finding]
