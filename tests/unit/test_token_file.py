"""Files of tokens: what gen-data writes, and what is read of files that others made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbench.errors import FileError
from hpcbench.operations.token_file import open_tokens, sidecar


def gen_data(*words: str, limit_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    code = "import resource, signal, sys\n" + (
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))\n"
        if limit_bytes else "") + "from hpcbench.__main__ import main\nmain()"
    return subprocess.run([sys.executable, "-c", code, "gen-data", *words], text=True,
                          capture_output=True, timeout=60, check=False)


def refusal(path: Path, vocab: int = 100) -> str:
    with pytest.raises(FileError) as caught:
        open_tokens(path, vocab)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


@pytest.mark.parametrize(("words", "dtype", "vocab"), [
    (("--vocab", "65536"), "uint16", 65536), (("--vocab", "65537"), "uint32", 65537),
    (("--model", "llama3-8b"), "uint32", 128256)])
def test_what_is_written_is_read(
    tmp_path: Path, words: tuple[str, ...], dtype: str, vocab: int,
) -> None:
    path = tmp_path / "corpus.bin"
    done = gen_data(str(path), "--tokens", "5000", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"5,000 tokens of a vocabulary of {vocab:,}, {dtype}, " in done.stdout
    assert path.stat().st_size == 5000 * (2 if dtype == "uint16" else 4)
    assert json.loads(sidecar(path).read_text()) == {
        "dtype": dtype, "tokens": 5000, "vocab": vocab, "seed": 0}
    found = open_tokens(path, vocab)
    assert found.vocab == vocab
    assert vocab // 2 < found.tokens.max() < vocab
    assert len(np.unique(found.tokens)) > 4000
    assert sorted(found.name for found in tmp_path.iterdir()) == ["corpus.bin", "corpus.bin.json"]


def test_the_seed_gives_the_tokens_and_nothing_is_written_over(tmp_path: Path) -> None:
    first, again = tmp_path / "a.bin", tmp_path / "b.bin"
    for path, seed in ((first, "7"), (again, "7")):
        gen_data(str(path), "--tokens", "999", "--vocab", "50257", "--seed", seed)
    assert first.read_bytes() == again.read_bytes()
    done = gen_data(str(first), "--tokens", "5", "--vocab", "9")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "there already; --force writes over it" in done.stderr
    assert first.read_bytes() == again.read_bytes()
    assert gen_data(str(first), "--tokens", "5", "--vocab", "9", "--force").returncode == 0
    assert len(open_tokens(first, 9).tokens) == 5


@pytest.mark.parametrize(("words", "told"), [
    (("--vocab", "9", "--model", "gpt2"), "give --vocab or --model"),
    ((), "give --vocab or --model"), (("--model", "gpt3"), 'did you mean "gpt2"?'),
    (("--model", "resnet50"), "--model: resnet50"), (("--model", "no/a.json"), "--model: no/a")])
def test_a_vocabulary_is_needed_once(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = gen_data(str(tmp_path / "a.bin"), "--tokens", "5", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert told in done.stderr
    assert not [*tmp_path.iterdir()]


def test_a_model_is_known_by_its_name_on_the_hub_and_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({
        "model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "n_positions": 8,
        "vocab_size": 77}))
    for name, vocab in (("meta-llama/Llama-3.1-8B", 128256), (str(file), 77)):
        done = gen_data(str(tmp_path / "a.bin"), "--tokens", "5", "--model", name, "--force")
        assert (done.returncode, json.loads(sidecar(tmp_path / "a.bin").read_text())["vocab"]) == (
            0, vocab)


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    nowhere = gen_data(str(tmp_path / "no" / "a.bin"), "--tokens", "5", "--vocab", "9")
    full = gen_data(str(tmp_path / "a.bin"), "--tokens", "50000", "--vocab", "9",
                    limit_bytes=4096)
    folder = gen_data(str(tmp_path), "--tokens", "5", "--vocab", "9", "--force")
    for done, why in ((nowhere, "No such file or directory"), (full, "File too large"),
                      (folder, "is a folder")):
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert why in done.stderr
    assert not [*tmp_path.iterdir()]


def test_files_of_nanogpt_and_llm_c_and_others_are_read(tmp_path: Path) -> None:
    path, tokens = tmp_path / "train.bin", np.arange(600) % 90
    tokens.astype("<u2").tofile(path)
    assert np.array_equal(open_tokens(path, 90).tokens, tokens)
    for magic, version, dtype in ((20240520, 1, "<u2"), (20240801, 7, "<u4")):
        header = np.zeros(256, "<i4")
        header[:3] = magic, version, len(tokens)
        path.write_bytes(header.tobytes() + tokens.astype(dtype).tobytes())
        assert np.array_equal(open_tokens(path, 200_000).tokens, tokens)
        path.write_bytes(path.read_bytes()[:-8])
        assert "are not 600 tokens of uint" in refusal(path)
    tokens.astype("<i4").tofile(path)
    sidecar(path).write_text('{"dtype": "int32"}')
    assert np.array_equal(open_tokens(path, 90).tokens, tokens)


def test_what_cannot_be_meant_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    assert "cannot be read: No such file or directory" in refusal(path)
    path.mkdir()
    assert "is not a regular file" in refusal(path)
    path = tmp_path / "other.bin"
    path.write_bytes(b"")
    assert "holds no token" in refusal(path)
    path.write_bytes(b"123")
    assert "has 3 bytes, which are not uint16" in refusal(path)
    np.array([1, 2, 100, 5], "<u2").tofile(path)
    assert "token 2 is 100, outside of the model's vocabulary of 100" in refusal(path)
    assert open_tokens(path, 101).vocab is None
    assert 'write {"dtype": "uint32"} into' in refusal(path, 128256)


@pytest.mark.parametrize(("told", "words"), [
    ({"vocab": 101}, "a vocabulary of 101, more than the model's 100"),
    ({"tokens": 3}, "has 8 bytes, which are not 3 tokens of uint16"),
    ({"dtype": "int64"}, 'dtype "int64" is not known; allowed: uint16, uint32, int32'),
    ({"vocab": "many"}, 'vocab must be a whole number from 1, not "many"'),
    ([1], "must be a mapping of keys"), ("{", "is not JSON")])
def test_what_the_sidecar_states_is_checked(tmp_path: Path, told: Any, words: str) -> None:
    path = tmp_path / "other.bin"
    np.array([1, 2, 3, 4], "<u2").tofile(path)
    sidecar(path).write_text(told if isinstance(told, str) else json.dumps(told))
    assert words in refusal(path)
