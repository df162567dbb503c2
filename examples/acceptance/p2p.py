"""Compare a training run with and without NCCL's P2P transport, in the same blocks.

pytest examples/acceptance/p2p.py --gpus 8
scaleproof accept contract check fabric RUN --accepted THEN
"""

from dataclasses import replace

from harness import Plan, Site, scaling, versus


def beside(site: Site) -> list[Plan]:
    """Return a plan of the usual training run and one without P2P, which uses only the network."""
    usual = site.case("ddp/decoder-350m", "weak")
    alone = replace(usual, environment={**(usual.environment or {}), "NCCL_P2P_DISABLE": "1"})
    return [versus(usual, alone, ["throughput_ratio"])]


@scaling(beside)
def test_p2p_off_beside_on(verdict):
    """The clause ``network_alone`` of ``scaleproof accept contract show fabric`` judges this."""
