"""No text that is written holds a secret, and ordinary texts stay as they are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.texts import holds_secret, masked, masked_json

SECRET = "s3cr3t-Va1ue"


@pytest.mark.parametrize("name", [
    "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "DB_PASS", "X_CREDENTIALS", "PROXY_AUTH",
    "api_key", "NCCL_API_KEY"])
def test_a_name_shows_that_there_is_a_secret(name: str) -> None:
    assert holds_secret(name, "0x1")
    assert masked(f"no route to {SECRET}!", {name: SECRET}) == "no route to ***!"


def test_partition_keys_are_none() -> None:
    assert not holds_secret("NCCL_IB_PKEY", "0x7fff")
    assert not holds_secret("UCX_IB_PKEY", "8001")
    assert holds_secret("NCCL_IB_PKEY", SECRET)


@pytest.mark.parametrize(("text", "expected"), [
    (f"http://me:{SECRET}@proxy:8080/x", "http://***@proxy:8080/x"),
    (f"http://me:{SECRET}@p@ss@proxy:8080/x", "http://***@proxy:8080/x"),
    (f"http://me:{SECRET}/p@proxy:8080", "http://***@proxy:8080"),
    (f"https://{SECRET}@git.example/x", "https://***@git.example/x"),
    (f"https://a.example/x?api_key={SECRET}&y=1", "https://a.example/x?api_key=***&y=1"),
    (f'token="{SECRET}"', 'token="***"'),
    (f'{{"hf_token": "{SECRET}", "n": 1}}', '{"hf_token": "***", "n": 1}'),
    (f"password: {SECRET}", "password: ***"),
    (f"run --db-password {SECRET} --fast", "run --db-password *** --fast"),
    (f"Authorization: Bearer {SECRET}", "Authorization: Bearer ***"),
    (f"Authorization: token {SECRET}", "Authorization: token ***"),
    (f"X-Api-Key: {SECRET}", "X-Api-Key: ***"),
    (f"run --api-key {SECRET} --fast", "run --api-key *** --fast"),
    (f"https://a.example/x?sv=1&sig={SECRET}&y=1", "https://a.example/x?sv=1&sig=***&y=1"),
    (f'password="two {SECRET} words", y=1', 'password="***", y=1'),
    (rf'{{\"token\": \"{SECRET}\"}}', r'{\"token\": \"***\"}'),
    (rf"password=a\{SECRET} y", "password=*** y"),
    (f"export DB_PASS={SECRET} NCCL_IB_PKEY=0x7fff", "export DB_PASS=*** NCCL_IB_PKEY=0x7fff"),
    (f'{{"SSH_KEY": "{SECRET}"}}', '{"SSH_KEY": "***"}'),
    ("pushed by ghp_" + 36 * "a", "pushed by ***"),
])
def test_texts_like_secrets_are_masked(text: str, expected: str) -> None:
    assert masked(text, {}) == expected


@pytest.mark.parametrize("text", [
    "KeyError: 'rank'", "sorted(items, key=len)", "http://host:80/path", "tokens: 5, passed: 3",
    "tcp://10.0.0.1:29500", "tokens_per_s=12.5", "author: me", "Connection closed by peer [::1]:80",
    "NCCL INFO Channel 00/08 : 0[0] -> 1[1] via P2P/CUMEM",
    "MAX_TOKENS=4096 seed_key=7 hf_text", "basic case; bearer of news", "a?b=1&sigma=2"])
def test_ordinary_text_stays(text: str) -> None:
    assert masked(text, {"X_KEY": "1", "Y_AUTH": "true", "Z_TOKEN": ""}) == text


def test_every_form_of_a_value() -> None:
    environ = {"MY_KEY": "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\n-----END KEY-----\n",
               "DB_PASS": "p@ss/word ä", "LONG_TOKEN": SECRET + SECRET, "SHORT_TOKEN": SECRET}
    texts = ["got MIIEvQIBADANBgkq there", "http%3A p%40ss%2Fword%20%C3%A4", repr("p@ss/word ä"),
             repr(environ["MY_KEY"]), SECRET + SECRET]
    joined = masked("\n".join(texts), environ)
    assert not any(part in joined for part in ("MIIE", "p%40ss", "p@ss", SECRET, "Va1ue"))


def test_a_secret_within_a_value_is_known_where_it_stands_alone() -> None:
    environ = {"UCX_PROXY": f"http://ops:{SECRET}@proxy:80", "A_MODE": "token=auto",
               "PYTEST_CURRENT_TEST": "tests/test_secrets.py::test_of_it",
               "B_MODE": "the password: alphabet",
               "NCCL_X": "user=ops;password=0ther-one"}
    assert masked(f"{SECRET} 0ther-one ops auto alphabet test_of_it secrets.py:f", environ) == (
        "*** *** ops auto alphabet test_of_it secrets.py:f")


@given(st.text(min_size=6, alphabet="abcXYZ019-_.!$%()+ /"), st.text(), st.text())
def test_the_value_of_a_secret_variable_is_never_left(value: str, before: str, after: str) -> None:
    text = masked(f"{before}{value}{after}", {"MY_TOKEN": value})
    stripped = value.strip()
    assert len(stripped) < 4 or stripped not in text.replace("***", "\0")


def test_a_secret_that_was_cut_off() -> None:
    environ = {"A_TOKEN": SECRET}
    assert masked(f"no route to {SECRET[:9]}", environ) == "no route to ***"
    assert masked(f"{SECRET[-9:]} is no name", environ) == "*** is no name"
    assert masked(f"no route to {SECRET[:4]}", environ) == f"no route to {SECRET[:4]}"


def test_json_values_keep_their_shape() -> None:
    value = {"a": [1, None, {"b": f"x {SECRET}"}], "c": True, SECRET: 1.5}
    found = masked_json(value, {"A_TOKEN": SECRET})
    assert found == {"a": [1, None, {"b": "x ***"}], "c": True, SECRET: 1.5}
    json.dumps(found)
