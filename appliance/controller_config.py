"""What `up` hands to the controller: one JSON file in the run folder."""

import msgspec

from appliance.policy import Policy
from appliance.settings import Settings, from_text
from engine.options import Source


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resolved settings, launch variables, and where the run folder is."""

    values: dict[str, str]
    sources: dict[str, Source]
    run: str
    policy: Policy = Policy()
    variables: dict[str, str] = {}

    def settings(self) -> Settings:
        return from_text(self.values, self.sources, self.variables)
