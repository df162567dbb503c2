"""Which environment variables change speed: one owner, and all who ask agree."""

from __future__ import annotations

import pytest

from harness.host import environment


@pytest.mark.parametrize(
    ("variable", "changes"),
    [
        ("NCCL_P2P_DIRECT_DISABLE", True),
        ("NCCL_TOPO_FILE", True),
        ("NCCL_GRAPH_FILE", True),
        ("NCCL_ALGO", True),
        ("GLOO_SOCKET_IFNAME", True),
        ("OMP_NUM_THREADS", True),
        ("NCCL_DEBUG", False),
        ("NCCL_DEBUG_FILE", False),
        ("TORCH_HOME", False),
        ("CUDA_VISIBLE_DEVICES", False),
        ("SCALEPROOF_ANYTHING", False),
    ],
)
def test_case_and_fingerprint_agree_on_what_changes_speed(
    monkeypatch: pytest.MonkeyPatch, variable: str, changes: bool
) -> None:
    monkeypatch.setenv(variable, "7")
    assert environment.changes_speed(variable) is changes
    backend = variable.startswith(("NCCL", "GLOO"))
    assert (variable in environment.of_backends()) is (changes and backend)
    assert environment.recorded()[variable] == "7"


def test_a_secret_is_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEPROOF_TOKEN", "7")
    monkeypatch.setenv("PATH_TO_ELSEWHERE", "7")
    monkeypatch.setenv("GLOO_AUTH", "7")
    monkeypatch.setenv("GLOO_RENDEZVOUS", "http://me:hunter2@host/x")
    secret = {"SCALEPROOF_TOKEN", "PATH_TO_ELSEWHERE", "GLOO_AUTH", "GLOO_RENDEZVOUS"}
    assert not secret & environment.recorded().keys()
    assert not secret & environment.of_backends().keys(), "a case is named by these"
