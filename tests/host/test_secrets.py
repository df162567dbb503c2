"""Secrets are told by their names and by how they look; a training's own words are none."""

from __future__ import annotations

import shlex

import pytest

from harness.base.errors import SpecError
from harness.host import secrets
from harness.spec.script import parse

WORD = "h4Xx81kkQz93"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SCALEPROOF_PASSWD", "x"), ("TORCH_HUB_CREDENTIALS", "x"), ("NCCL_AUTH", "x"),
        ("CUDA_PIN", "1234"), ("MKL_LICENSE", "x"), ("SCALEPROOF_TOKEN", "7"),
        ("TORCH_API_KEY", "x"), ("GLOO_PWD", "x"), ("NCCL_PASS", "x"), ("torch_bearer", "x"),
        ("GLOO_RENDEZVOUS", "https://me:hunter2@host/x"), ("TORCH_HOME", "hf_" + 20 * "a"),
    ],
)  # fmt: skip
def test_secret_variables(name: str, value: str) -> None:
    assert secrets.kept({name: value}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_NUM_THREADS", "4"), ("NCCL_NET_PLUGIN", "x"), ("NCCL_IB_HCA", "mlx5_0:1,mlx5_1:1"),
        ("CUDA_VISIBLE_DEVICES", "GPU-5fa1-22"), ("TORCH_HOME", "/a/b"), ("NCCL_COMM_ID", "h:1"),
        ("GLOO_SOCKET_IFNAME", "eth0"), ("OMP_PLACES", "pinned"), ("TORCH_URL", "http://h:80/a@b"),
    ],
)  # fmt: skip
def test_other_variables(name: str, value: str) -> None:
    assert secrets.kept({name: value}) == {name: value}


@pytest.mark.parametrize(
    "words",
    [
        [f"--api-key={WORD}"], ["--api_key", "x"], ["--password", "x"], ["--hf-token", WORD],
        [f"--wandb.key={WORD}"], [f"wandb.api_key={WORD}"], [f"+logger.api_key={WORD}"],
        ["--data", "s3://me:pw@host/b"], ["sk-" + 24 * "a1"], ["--x", "ghp_" + 30 * "b"],
        [f"--auth-token={WORD}"], ["--client-secret", "x"], ["--db=postgres://u:p@h/d"],
    ],
)  # fmt: skip
def test_a_command_with_a_secret_is_refused_and_masked(words: list[str]) -> None:
    with pytest.raises(SpecError, match="is a secret") as refused:
        parse(["train.py", *words])
    secret = words[-1].rpartition("=")[2] if "=" in words[-1] else words[-1]
    said = shlex.split(refused.value.fix)
    assert "$" in said[-1] and not any(word in (secret, words[-1]) for word in said)
    assert len(secret) == 1 or secret not in str(refused.value)
    assert not {secret, words[-1]} & {*secrets.masked_words(["train.py", *words])}


@pytest.mark.parametrize(
    "words",
    [
        ["--max-tokens", "100000"], ["--num-key-value-heads", "8"], ["--tokenizer=gpt2"],
        ["--pad-token", "<pad>"], ["--key", "dim"], ["--eos_token", "</s>"], ["--keys", "a", "b"],
        ["--pass", "forward"], ["--checkpoint", "/data/token1/last.pt"], ["--lr", "3e-4"],
        ["--url", "http://host:8080/path"], ["--tokens=1e9"], ["--signature", "v2"],
        ["--api-key", "$API_KEY"], ["--api-key=${API_KEY}"], ["--private"], ["--seed", "12345678"],
    ],
)  # fmt: skip
def test_a_training_s_own_words_are_none(words: list[str]) -> None:
    assert parse(["train.py", *words]).args == tuple(words)
    assert secrets.masked_words(words) == tuple(words)


def test_a_secret_that_is_named_is_put_in_where_the_rank_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_KEY", WORD)
    words = ["--api-key", "$API_KEY", "--auth-token=${API_KEY}", "--name", "$API_KEY"]
    assert secrets.filled(words) == [
        "--api-key", WORD, f"--auth-token={WORD}", "--name", "$API_KEY",
    ]  # fmt: skip
    monkeypatch.delenv("API_KEY")
    with pytest.raises(SpecError, match="no variable API_KEY"):
        secrets.filled(words)
