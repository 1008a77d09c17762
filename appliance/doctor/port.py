"""Can the api listen?"""

from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "port"


def check(settings: Settings, facts: Facts) -> Finding:
    """The port is free, or our own box has it."""
    host, port = settings.options.host, settings.options.port
    if facts.own_box:
        return Finding(check=NAME, sentence=f"the box of this home runs with port {port}")
    if not facts.port_holder:
        return Finding(check=NAME, sentence=f"port {port} on {host} is free")
    return Finding(
        check=NAME,
        level="bad",
        sentence=f"port {port} on {host} is taken by {facts.port_holder}",
        command=f"ninfer-appliance up --port {port + 1 if port < 65535 else 8080}",
    )
