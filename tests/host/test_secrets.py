"""Secrets are recognised by names and formats; usual arguments of training scripts are not."""

from __future__ import annotations

import shlex

import pytest

from harness.base.errors import SpecError
from harness.cases.script import parse
from harness.host import secrets

WORD = "h4Xx81kkQz93"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SCALEPROOF_PASSWD", "x"), ("TORCH_HUB_CREDENTIALS", "x"), ("NCCL_AUTH", "x"),
        ("CUDA_PIN", "1234"), ("MKL_LICENSE", "x"), ("SCALEPROOF_TOKEN", "7"),
        ("TORCH_API_KEY", "x"), ("GLOO_PWD", "x"), ("NCCL_PASS", "x"), ("torch_bearer", "xy"),
        ("GLOO_RENDEZVOUS", "https://me:hunter2@host/x"), ("TORCH_HOME", "hf_" + 10 * "aB3"),
    ],
)  # fmt: skip
def test_secret_variables_are_not_recorded(name: str, value: str) -> None:
    assert secrets.kept({name: value}) == {}


#: Prefixes of tokens of services.
PREFIXES = (
    "nvapi-", "dop_v1_", "doo_v1_", "shpat_", "sq0atp-", "rk_live_", "sk_test_", "SG.", "lin_api_",
    "glsa_", "dckr_pat_", "hvs.", "pplx-", "r8_", "figd_", "PMAK-", "tskey-", "ATATT", "xai-", "gsk_",
    "rpa_", "glpat-", "AKIA", "eyJ", "glrt-", "GOCSPX-", "1//0", "whsec_", "wandb_v1_", "dapi",
    "ntn_", "dp.pt.", "tgp_v1_", "lsv2_", "glc_", "sntrys_", "AGE-SECRET-KEY-", "HRKU-", "AKCp",
    "nfp_", "vercel_", "sbp_", "pscale_tkn_", "xoxd-",
)  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
def test_tokens_of_services_are_masked_wherever_they_stand(prefix: str) -> None:
    token = prefix + 12 * "aB3"
    assert secrets.kept({"TORCH_HOME": token}) == {}
    masked = " ".join(secrets.masked_words(["python", "train.py", "--note", f"a {token} b"]))
    assert 6 * "aB3" not in masked


@pytest.mark.parametrize(
    "text", ["machine api.wandb.ai login user password {}", "client-key-data: {}"]
)
def test_passwords_of_files_that_programs_print_are_masked(text: str) -> None:
    masked = " ".join(secrets.masked_words(["python", "--note", text.format(WORD)]))
    assert WORD not in masked


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_NUM_THREADS", "4"), ("NCCL_NET_PLUGIN", "x"), ("NCCL_IB_HCA", "mlx5_0:1,mlx5_1:1"),
        ("CUDA_VISIBLE_DEVICES", "GPU-5fa1-22"), ("TORCH_HOME", "/a/b"), ("NCCL_COMM_ID", "h:1"),
        ("GLOO_SOCKET_IFNAME", "eth0"), ("OMP_PLACES", "pinned"), ("TORCH_URL", "http://h:80/a@b"),
    ],
)  # fmt: skip
def test_other_variables_are_recorded(name: str, value: str) -> None:
    assert secrets.kept({name: value}) == {name: value}


@pytest.mark.parametrize(
    ("words", "secret"),
    [
        ([f"--api-key={WORD}"], WORD), (["--api_key", "xyzw"], "xyzw"), (["--password", "hunter"], "hunter"),
        (["--hf-token", WORD], WORD), ([f"--wandb.key={WORD}"], WORD), ([f"wandb.api_key={WORD}"], WORD),
        ([f"+logger.api_key={WORD}"], WORD), (["--data", "s3://me:pw1@host/b"], "pw1"),
        (["sk-" + 12 * "a1"], 12 * "a1"), (["--x", "ghp_" + 18 * "b7"], 18 * "b7"),
        ([f"--auth-token={WORD}"], WORD), (["--client-secret", "xyzw"], "xyzw"),
        (["--db=postgres://u:pwd7@h/d"], "pwd7"), (["--passwords", "abcd", "efgh"], "efgh"),
        (["--config", '{"lr":0.1,"api_key":"q1w2e3r4t5"}'], "q1w2e3r4t5"),
        (["--header", f"Authorization: Bearer {WORD}"], WORD), ([f"--hfToken={WORD}"], WORD),
        (["--set=wandb.api_key=aaa111bbb222"], "aaa111bbb222"), (["--jwt", "abcdef"], "abcdef"),
        (["--data", "https://a.blob.core.windows.net/c?sv=1&sig=aB3%2Fq9Zx7"], "aB3%2Fq9Zx7"),
        (["--ssh", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz"], "b3BlbnNz"),
        (["--wandb-key=0123456789abcdef0123456789abcdef01234567"], "0123456789abcdef"),
    ],
)  # fmt: skip
def test_a_command_with_a_secret_is_refused_and_masked(words: list[str], secret: str) -> None:
    with pytest.raises(SpecError, match="is a secret") as refused:
        parse(["train.py", *words])
    assert secret not in str(refused.value) and "{env:" in refused.value.fix
    assert secret not in " ".join(secrets.masked_words(["train.py", *words]))


@pytest.mark.parametrize(
    "text",
    [
        f"//registry.npmjs.org/:_authToken={WORD}", f"PGPASSWORD={WORD}", f"DB_PASS={WORD}",
        f"password1: {WORD}", f"API_KEY_PROD={WORD}", f"HF_TOKEN_READ={WORD}",
        f'{{"identitytoken": "{WORD}"}}', f"Client(api_key='{WORD}', retries=3)",
        f"password = 'correct horse {WORD}'", f"Authorization: token {WORD}",
        f'Authorization: Digest username="me", response={WORD}', f"Cookie: a=1; session={WORD}",
        f"default login me password {WORD}", f"machine h login me account x password {WORD}",
        f"curl -s -u me:{WORD} https://host/", f"sshpass -p {WORD} ssh host",
        f"db_password={WORD}", f"AWS_SECRET_ACCESS_KEY={WORD}", f"redis://:{WORD}@host:6379/0",
    ],
)  # fmt: skip
def test_secrets_in_what_a_rank_prints_are_masked(text: str) -> None:
    assert WORD not in secrets.masked(f"before {text} after\nnext line")
    assert secrets.masked(f"{text}\nnext line").endswith("\nnext line")


@pytest.mark.parametrize(
    "token",
    [
        "ghp_" + 12 * "aB3", "AKIA" + 4 * "Q3EG", "123456789:AA" + 11 * "aB3",
        "M" + 8 * "aB3" + ".abC1_3." + 9 * "xY7", 7 * "aB" + ".atlasv1." + 20 * "aB3",
    ],
)  # fmt: skip
def test_a_coloured_token_is_masked(token: str) -> None:
    assert secrets.masked(f"\x1b[31m{token}\x1b[0m") == "***"
    assert secrets.masked(f"token: \x1b[1;32m{token}\x1b[0m!").startswith("token: ***")
    assert secrets.masked("\x1b[31mred\x1b[0m") == "\x1b[31mred\x1b[0m"


def test_the_value_of_a_secret_variable_is_masked_in_any_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "correct horse")
    monkeypatch.setenv("PWD", "/home/folder")
    monkeypatch.setenv("USER", "somebody")
    text = "cannot log in with <correct horse> at /home/folder as somebody"
    assert secrets.masked(text) == "cannot log in with <***> at /home/folder as somebody"


@pytest.mark.parametrize(
    "words", [["sshpass", "-p", WORD, "ssh", "host"], ["curl", "-u", f"me:{WORD}", "host"]]
)
def test_secrets_of_a_launcher_are_masked(words: list[str]) -> None:
    assert WORD not in " ".join(secrets.masked_words(words))


def test_the_advised_command_is_accepted_and_equivalent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The advised command replaces every secret, also within an argument."""
    words = ["train.py", "--api-key", WORD, "--repo=https://u:p1@h/x", "--password", "hunter2"]
    with pytest.raises(SpecError) as refused:
        parse(words)
    _, _, command = refused.value.fix.partition(" -- ")
    advised = shlex.split(command)
    assert not {WORD, "hunter2"} & set(advised)
    parse(advised)
    for name, value in (("API_KEY", WORD), ("SECRET", "p1"), ("PASSWORD", "hunter2")):
        monkeypatch.setenv(name, value)
    assert secrets.filled(advised) == words


@pytest.mark.parametrize(
    "words",
    [
        ["--max-tokens", "100000"], ["--num-key-value-heads", "8"], ["--tokenizer=gpt2"],
        ["--pad-token", "<pad>"], ["--key", "dim"], ["--eos_token", "</s>"], ["--keys", "a", "b"],
        ["--pass", "forward"], ["--checkpoint", "/data/token1/last.pt"], ["--lr", "3e-4"],
        ["--url", "http://host:8080/path"], ["--tokens=1e9"], ["--use_auth_token=True"],
        ["--api-key", "{env:API_KEY}"], ["--api-key={env:API_KEY}"], ["--private"],
        ["--seed", "12345678"], ["--image-key", "image_256x256"], ["--special-token", "extra_id_0"],
        ["--model", "sk-learn-resnet50-baseline-v1"], ["--tok", "hf_tokenizer_llama3_8b_v2"],
        ["--api-key-file", "/run/secrets/key"], ["--private-key-path", "/home/me/.ssh/id"],
        ["--commit", "0123456789abcdef0123456789abcdef01234567"], ["--token-dataset", "fineweb10B"],
    ],
)  # fmt: skip
def test_usual_arguments_are_no_secrets(words: list[str]) -> None:
    assert parse(["train.py", *words]).args == tuple(words)
    assert secrets.masked_words(words) == tuple(words)


def test_a_missing_variable_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("API_KEY", raising=False)
    with pytest.raises(SpecError, match="no such variable") as missing:
        secrets.filled(["--api-key", "{env:API_KEY}"])
    assert missing.value.fix == "export API_KEY=..."


@pytest.mark.parametrize("cut", ["\n", "\r\n", "\u200b", "x\b", "\x1b]8;;http://a\x1b\\"])
def test_a_value_of_a_secret_variable_is_masked_if_something_stands_in_it(
    cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "correct horse")
    assert secrets.masked(f"before correc{cut}t horse after") == "before *** after"


def test_a_private_key_hides_only_itself() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----"
    assert secrets.masked(f"{key}\nTraceback") == "***\nTraceback"


def test_a_password_may_contain_an_ampersand() -> None:
    assert secrets.masked("password=Tr0ub4dor&3x!") == "password=***"
    assert secrets.masked("?password=Tr0ub4dor&size=3") == "?password=***&size=3"
