"""Can the api listen?"""

from appliance.doctor.finding import Finding, Surroundings
from appliance.settings import Settings


def check(settings: Settings, world: Surroundings) -> Finding:
    """The port is free, or our own box has it."""
    host, port = settings.options.host, settings.options.port
    if world.own_box_runs():
        return Finding(check="port", good=True, sentence=f"the box of this home runs with port {port}")
    if world.can_listen(host, port):
        return Finding(check="port", good=True, sentence=f"port {port} on {host} is free")
    return Finding(
        check="port",
        good=False,
        sentence=f"port {port} on {host} is taken by {world.port_owner(port)}",
        command=f"ninfer-appliance up --port {port + 1 if port < 65535 else 8080}",
    )
