"""Messages of agents about a launch are checked before they count. The test has no real agents."""

from __future__ import annotations

import socket
from pathlib import Path

from harness.base.documents import to_doc
from harness.cases import Device, Site
from harness.launch import causes
from harness.launch.agents import AgentLink
from harness.launch.running import Running
from harness.launch.wire.channel import Channel
from harness.launch.wire.messages import LaunchSpec, RankEnd, Share, Timed


def end(rank: int) -> RankEnd:
    return RankEnd(
        rank=rank, pid=1, exit_code=0, signal=None, killed=False, finished=True, phase="done",
        step=1, silent_s=0.0, order=rank,
    )  # fmt: skip


def spec(folder: Path, *nodes: int) -> LaunchSpec:
    case = Site(device=Device.CPU, backend="gloo", nodes=nodes).case("ddp/mlp-nano")
    return LaunchSpec(
        launch="x", case=case, task=Timed(steps=1, cut=0, draw=1),
        out=str(folder), files={},
    )  # fmt: skip


def share(node: int, count: int) -> Share:
    return Share(node=node, first=node, count=count, node_first=node, node_count=count)


def test_nodes_that_were_not_asked_to_start_ranks_are_not_awaited(tmp_path: Path) -> None:
    """Rank 0's agent dies before the address of its store is known."""
    pairs = [socket.socketpair() for _ in range(3)]
    links = [
        AgentLink(node=i, channel=Channel(ours, dialed=False)) for i, (ours, _) in enumerate(pairs)
    ]
    shares = [share(node=i, count=1) for i in range(3)]
    running = Running(spec(tmp_path, 1, 1, 1), list(zip(links, shares, strict=True)))
    links[0].lose("its agent is gone")
    running.watch()
    running.end()
    running.watch()
    assert running.over
    assert [link.lost for link in links[1:]] == ["", ""], "they go on"
    cause = causes.attribute(running.ends())
    assert cause is not None and (cause.kind, cause.rank, cause.sure) == ("node", 0, True)
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_an_agent_that_leaves_out_a_rank_is_not_believed(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    link = AgentLink(node=0, channel=Channel(ours, dialed=False))
    with theirs:
        running = Running(spec(tmp_path, 2), [(link, share(node=0, count=2))])
        running.hear(link, {"ended": [to_doc(end(0))], "of": "x"}, b"")
        assert not running.over
        running.watch()
    assert running.over and running.failing
    cause = causes.attribute(running.ends())
    assert cause is not None and cause.kind == "node"
    assert "reported 1 ranks, expected 2" in cause.message


def test_a_file_in_several_pieces_replaces_an_older_one(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    link = AgentLink(node=0, channel=Channel(ours, dialed=False))
    running = Running(spec(tmp_path, 1), [(link, share(node=0, count=1))])
    (tmp_path / "rank0.json").write_text("from an earlier launch")
    for begins, piece in ((True, b"ab"), (False, b"cd")):
        running.hear(link, {"file": "../rank0.json", "begins": begins, "of": "x"}, piece)
    assert (tmp_path / "rank0.json").read_bytes() == b"abcd"
    ours.close()
    theirs.close()
