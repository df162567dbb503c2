"""One launch over agents, without any: what they say is checked before it counts."""

from __future__ import annotations

import socket
from pathlib import Path

from harness.channel import Channel
from harness.codec import to_doc
from harness.launch import failure
from harness.launch.link import Link
from harness.launch.running import Running
from harness.protocol import LaunchSpec, RankEnd, Share
from harness.record import Purpose
from harness.site import Site
from harness.spec import Device


def end(rank: int) -> RankEnd:
    return RankEnd(
        rank=rank, pid=1, exit_code=0, signal=None, killed=False, finished=True, phase="done",
        step=1, silent_s=0.0, order=rank,
    )  # fmt: skip


def test_nodes_that_were_never_asked_to_start_ranks_are_not_waited_for(tmp_path: Path) -> None:
    """Rank 0's agent dies before anybody knows where its store is."""
    pairs = [socket.socketpair() for _ in range(3)]
    links = [Link(node=i, channel=Channel(ours, dialed=False)) for i, (ours, _) in enumerate(pairs)]
    case = Site(device=Device.CPU, backend="gloo", nodes=(1, 1, 1)).case("ddp/mlp-nano")
    spec = LaunchSpec(
        launch="x", purpose=Purpose.TIMED, case=case, twin=case, steps=1, cut=0,
        out=str(tmp_path), files={}, draw=0,
    )  # fmt: skip
    shares = [Share(node=i, first=i, count=1, node_first=i, node_count=1) for i in range(3)]
    running = Running(spec, list(zip(links, shares, strict=True)))
    links[0].lose("its agent is gone")
    running.watch()
    running.end()
    running.watch()
    assert running.over
    assert [link.lost for link in links[1:]] == ["", ""], "they go on"
    cause = failure.attribute(running.ends())
    assert cause is not None and (cause.kind, cause.rank, cause.sure) == ("node", 0, True)
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_an_agent_that_leaves_out_a_rank_is_not_believed(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    link = Link(node=0, channel=Channel(ours, dialed=False))
    case = Site(device=Device.CPU, backend="gloo", nodes=(2,)).case("ddp/mlp-nano")
    spec = LaunchSpec(
        launch="x", purpose=Purpose.TIMED, case=case, twin=case, steps=1, cut=0,
        out=str(tmp_path), files={}, draw=0,
    )  # fmt: skip
    share = Share(node=0, first=0, count=2, node_first=0, node_count=2)
    with theirs:
        running = Running(spec, [(link, share)])
        running.hear(link, {"ended": [to_doc(end(0))]}, b"")
        assert not running.over
        running.watch()
    assert running.over and running.failing
    cause = failure.attribute(running.ends())
    assert cause is not None and cause.kind == "node"
    assert "tells of 1 ranks, 2 were asked for" in cause.message
