"""Engine for one machine: an agent that has imported torch forks fresh ranks in about 0.1 s."""

from harness.launch.dialers import InheritingJob, agent_command
from harness.launch.engine import Capabilities, Command, Deployment

ENGINE = dict(multi_node=False, faults=("agent",))


class Local:
    """The engine. Its only agent inherits a socket, so no port is opened."""

    def probe(self) -> Capabilities:
        """Return that the engine can always be used."""
        return Capabilities(available=True)

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """Return the command of the agent."""
        return (agent_command(deployment.python, 0, {"GLOO_SOCKET_IFNAME": "lo"}),)

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> InheritingJob:
        """Start the agent, which ends when the calling thread (the main thread) ends."""
        return InheritingJob(commands)


def build() -> Local:
    """Return the engine."""
    return Local()
