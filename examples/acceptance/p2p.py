"""Compare training with and without P2P in the same blocks; without it all data use the network.

pytest examples/acceptance/p2p.py --gpus 8
scaleproof accept contract check fabric RUN --accepted THEN
"""

from dataclasses import replace

from harness import Plan, Site, scaling, versus


def beside(site: Site) -> list[Plan]:
    """Return a plan that compares a training with the same one without P2P between devices."""
    usual = site.case("ddp/decoder-350m", "weak")
    alone = replace(usual, environment={**(usual.environment or {}), "NCCL_P2P_DISABLE": "1"})
    return [versus(usual, alone, ["throughput_ratio"])]


@scaling(beside)
def test_p2p_off_beside_on(verdict):
    """Measure the clause ``network_alone`` of the contract ``fabric``.

    ``scaleproof accept contract show fabric`` prints the contract.
    """
