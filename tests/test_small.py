"""--preset small from the settings to the curve, on a random model whose tokenizer is as large as SmolLM2's."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
import train
from reward import load_data, score_batch
from small import make
from test_reward import Tokenizer as Tokens

VOCABULARY = 49_152


def save_random_model(folder: Path):
    """Bytes are tokens; every other token is a box with a small number in it: even a random model is right now and then."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<end>", *letters, *(f"\\boxed{{{i % 6 + 1}}}#{i}" for i in range(VOCABULARY - len(letters) - 1))]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>").save_pretrained(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1,
                                 num_key_value_heads=1, tie_word_embeddings=True, max_position_embeddings=512, bos_token_id=None,
                                 eos_token_id=0, pad_token_id=0)).save_pretrained(folder)


def test_two_steps_of_the_preset(tmp_path):
    save_random_model(tmp_path / "small/base")
    options = ["--loss", "kl_cov", "--max_prompt_tokens", "128", "--max_response_tokens", "6", "--max_steps", "2", "--eval_every", "2"]
    done = subprocess.run([sys.executable, str(ROOT / "train.py"), "--preset", "small", *options], cwd=tmp_path, capture_output=True,
                          text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = [json.loads(line) for line in open(tmp_path / "runs/kl_cov-seed1/metrics.jsonl")]
    assert [row["step"] for row in metrics] == [0, 1, 2]
    assert 0 < metrics[2]["val/small/avg@2"] < 0.5 and metrics[2]["val/small/entropy"] > 5
    for row in metrics[1:]:
        assert 0 < row["reward/acc"] < 0.5 and row["rollout/logprob_diff"] < 1e-3 and row["actor/grad_norm"] > 0
        assert row["cov/selected"] > 0
    config = json.loads((tmp_path / "runs/kl_cov-seed1/config.json").read_text())
    assert config["kl_cov_ratio"] == 0.02 and config["preset"] == "small"


@pytest.mark.parametrize("loss", ("grpo", "kl_cov", "clip_cov", "top_entropy"))
def test_the_preset_makes_four_updates_and_leaves_the_losses_their_own(loss, monkeypatch, tmp_path):
    cfg = train.parse_args(["--preset", "small", "--loss", loss], train.Config, train.PRESETS)
    assert cfg.prompts_per_step // cfg.mini_batch_prompts == 4 and cfg.clip_ratio_high == (0.28 if loss == "top_entropy" else 0.2)
    (tmp_path / "small").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="python small/make.py builds it"):
        train.check(cfg, 1)


def test_the_warm_up_has_right_and_wrong_solutions_whose_steps_are_correct():
    """Of each task; none of its problems is one of validation."""
    rng = random.Random(0)
    problems, vals = load_data(make.PROBLEMS.replace("size=2000", "size=200"), train.PRESETS["small"]["val_data"], Tokens(), 10**6)
    assert not {row["problem"] for row in problems} & {row["problem"] for row in vals["small"]}
    texts = [make.solution(problem, rng) for problem in problems]
    rights = {}
    for problem, text, score in zip(problems, texts, score_batch(texts, problems, timeout=60)):
        assert score.status in ("right", "wrong") and text.endswith(f"\\boxed{{{score.answer}}}."), text
        rights.setdefault(problem["entry"]["name"], []).append(score.reward)
        for step in re.findall(r"(?:-?\d+ (?:[-+*/]|mod) )+-?\d+ = -?\d+", text):
            left, right = step.replace("mod", "%").split(" = ")
            assert eval(left) == int(right), text
    shares = {name: sum(values) / len(values) for name, values in rights.items()}
    assert len(shares) == 4 and all(0.3 < share < 0.8 for share in shares.values()), shares
