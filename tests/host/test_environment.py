"""One function decides which environment variables change speed, and all users of it agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.compare import differing
from harness.host import environment
from harness.record import RunRecord


@pytest.mark.parametrize(
    ("variable", "changes"),
    [
        ("NCCL_P2P_DIRECT_DISABLE", True),
        ("NCCL_TOPO_FILE", True),
        ("NCCL_GRAPH_FILE", True),
        ("NCCL_ALGO", True),
        ("GLOO_SOCKET_IFNAME", True),
        ("OMP_NUM_THREADS", True),
        ("ATEN_CPU_CAPABILITY", True),
        ("DNNL_MAX_CPU_ISA", True),
        ("KMP_AFFINITY", True),
        ("LD_PRELOAD", True),
        ("GLIBC_TUNABLES", True),
        ("UCX_TLS", True),
        ("FI_PROVIDER", True),
        ("RCCL_MSCCL_ENABLE", True),
        ("HSA_ENABLE_SDMA", True),
        ("NCCL_DEBUG", False),
        ("NCCL_DEBUG_FILE", False),
        ("TORCH_HOME", False),
        ("CUDA_VISIBLE_DEVICES", False),
        ("SCALEPROOF_ANYTHING", False),
        ("TORCHELASTIC_RUN_ID", False),
        ("TORCH_NCCL_USE_COMM_NONBLOCKING", True),
        ("OMPI_COMM_WORLD_RANK", False),
        ("OMPI_MCA_orte_hnp_uri", False),
        ("OMPI_MCA_btl", True),
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
    monkeypatch.setenv("GLOO_AUTH", "7")
    monkeypatch.setenv("GLOO_RENDEZVOUS", "http://me:hunter2@host/x")
    secret = {"SCALEPROOF_TOKEN", "GLOO_AUTH", "GLOO_RENDEZVOUS"}
    assert not secret & environment.recorded().keys()
    assert not secret & environment.of_backends().keys(), "a case is named by these"


def test_what_no_library_is_known_to_read_is_kept_as_a_digest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two runs can be distinguished by variables of plugins that this package does not know."""
    monkeypatch.setenv("FASTLANE_MODE", "turbo")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 22")
    first = environment.recorded()
    monkeypatch.setenv("FASTLANE_MODE", "slow")
    second = environment.recorded()
    assert environment.is_digest(first["FASTLANE_MODE"])
    assert "turbo" not in str(first) and "SSH_CONNECTION" not in first
    assert first["FASTLANE_MODE"] != second["FASTLANE_MODE"]
    assert not environment.changes_speed("FASTLANE_MODE"), "a reference holds in spite of it"


def test_compare_names_variables_whose_digests_differ(sample_run: RunRecord) -> None:
    a = replace(sample_run, environment={"FASTLANE_MODE": "sha256 1", "SAME": "sha256 1"})
    b = replace(sample_run, environment={"FASTLANE_MODE": "sha256 2", "SAME": "sha256 1"})
    assert differing(a, b) == ("environment: FASTLANE_MODE differ",)
