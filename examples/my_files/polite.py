"""A user's engine: one machine whose ranks have a lower priority than other processes."""

from harness import Capabilities, Command, Deployment, InheritingJob, agent_command

ENGINE = dict(multi_node=False)


class Polite:
    """An engine that starts the agent of one node with ``nice``; ranks inherit the priority."""

    def probe(self) -> Capabilities:
        return Capabilities(available=True)

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        polite = ("nice", "-n", "5")
        return (agent_command(deployment.python, 0, {"GLOO_SOCKET_IFNAME": "lo"}, polite),)

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> InheritingJob:
        return InheritingJob(commands)


def build() -> Polite:
    return Polite()
