"""One machine: an agent with torch in memory forks fresh ranks; a launch costs 0.1 s."""

from harness.launch.dialers import InheritingJob, agent_command
from harness.launch.engine import Capabilities, Command, Deployment

ENGINE = dict(multi_node=False, faults=("agent",))


class Local:
    """One agent, on an inherited socket: nothing listens."""

    def probe(self) -> Capabilities:
        return Capabilities(available=True)

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        return (agent_command(deployment.python, 0, {"GLOO_SOCKET_IFNAME": "lo"}),)

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> InheritingJob:
        """Start it from the calling (main) thread."""
        return InheritingJob(commands)


def build() -> Local:
    return Local()
