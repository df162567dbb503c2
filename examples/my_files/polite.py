"""An engine of my own: one machine, whose ranks let everybody else go first."""

from harness import Capabilities, Command, Deployment, InheritingJob, agent_command

ENGINE = dict(multi_node=False)


class Polite:
    """The agent of one node below ``nice``; its ranks inherit that."""

    def probe(self) -> Capabilities:
        return Capabilities(available=True)

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        polite = ("nice", "-n", "5")
        return (agent_command(deployment.python, 0, {"GLOO_SOCKET_IFNAME": "lo"}, polite),)

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> InheritingJob:
        return InheritingJob(commands)


def build() -> Polite:
    return Polite()
