"""Both samplers draw from the softmax they claim to draw from, before and after load().

The model is random, has more output rows than the tokenizer has ids, and two EOS ids. vLLM changes global
state (it starts torch.distributed), so it runs in a process of its own: `python test_sampler.py vllm FOLDER`.
"""
import functools
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.samplers import HFSampler, Sample, VLLMSampler  # noqa: E402

REAL_IDS, VOCAB, EOS = 20, 32, [1, 2]
PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [3, 4, 5] * 100]    # the last one fills two cache blocks of vLLM
DRAWS = 4000    # of one first token


def make_tokenizer():
    ids = {"<pad>": 0, "<eos>": 1, **{f"t{i}": i for i in range(2, REAL_IDS)}}
    words = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def save_random_model(folder, seed):
    torch.manual_seed(seed)
    config = Qwen2Config(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
                         tie_word_embeddings=True, bos_token_id=None, eos_token_id=1, pad_token_id=0)
    model = Qwen2ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.mul_(12)    # far from uniform
    model.generation_config.eos_token_id = EOS
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def exercise(sampler, new_weights) -> dict:
    """Everything the tests look at, from one sampler, in plain lists."""
    long = dict(max_tokens=16, seed=3)
    result = {
        "greedy": sampler.generate(PROMPTS, n=1, temperature=0, **long),
        "cold": sampler.generate(PROMPTS, n=8, temperature=0.7, **long),
        "hot": sampler.generate(PROMPTS, n=8, temperature=1.5, **long),
        "hot again": sampler.generate(PROMPTS, n=8, temperature=1.5, **long),
        "hot other seed": sampler.generate(PROMPTS, n=8, temperature=1.5, max_tokens=16, seed=4),
        "first tokens": sampler.generate(PROMPTS[:1], n=DRAWS, temperature=1.5, max_tokens=1, seed=5),
        "no prompts": sampler.generate([], n=2, temperature=1.0, **long),
    }
    sampler.load(new_weights)
    result["greedy after load"] = sampler.generate(PROMPTS, n=1, temperature=0, **long)
    result["hot after load"] = sampler.generate(PROMPTS, n=8, temperature=1.5, **long)
    return result


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    save_random_model(root / "old", seed=0)
    save_random_model(root / "new", seed=1)
    return root / "old", root / "new"


@pytest.fixture(scope="module", params=["hf", "vllm"])
def results(request, folders):
    if request.param == "vllm":
        if importlib.util.find_spec("vllm") is None:
            pytest.skip("vllm is not installed")
        output = folders[0].parent / "vllm.json"
        run = subprocess.run([sys.executable, __file__, *map(str, folders), str(output)],
                             capture_output=True, text=True, timeout=1800)
        assert run.returncode == 0, run.stderr[-3000:]
        parsed = json.loads(output.read_text())
        return {name: [[Sample(*s) for s in group] for group in groups] for name, groups in parsed.items()}
    sampler = HFSampler(folders[0], make_tokenizer(), device="cpu", dtype=torch.float32, batch_size=10)
    return exercise(sampler, AutoModelForCausalLM.from_pretrained(folders[1]).state_dict().items())


@functools.cache
def load_float64(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)


def teacher_forced(folder, prompt, response) -> torch.Tensor:
    """float64 logits [T, real ids] of one plain forward pass over prompt + response."""
    with torch.no_grad():
        logits = load_float64(folder)(torch.tensor([prompt + response])).logits[0, len(prompt) - 1:-1]
    return logits[:, :REAL_IDS]


def assert_logprobs(folder, groups, temperature):
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for sample in group:
            logits = teacher_forced(folder, prompt, sample.token_ids)
            logprob = torch.log_softmax(logits / temperature, dim=-1)
            expected = logprob[torch.arange(len(sample.token_ids)), sample.token_ids]
            torch.testing.assert_close(torch.tensor(sample.logprobs, dtype=torch.float64), expected,
                                       atol=1e-4, rtol=0)


def test_logprobs_are_those_of_the_model_at_the_temperature(results, folders):
    assert_logprobs(folders[0], results["cold"], 0.7)
    assert_logprobs(folders[0], results["hot"], 1.5)
    assert_logprobs(folders[0], results["greedy"], 1.0)


def test_load_replaces_weights_and_cached_prefixes(results, folders):
    assert_logprobs(folders[1], results["greedy after load"], 1.0)
    assert_logprobs(folders[1], results["hot after load"], 1.5)
    for prompt, (sample,) in zip(PROMPTS, results["greedy after load"]):
        logits = teacher_forced(folders[1], prompt, sample.token_ids)
        assert sample.token_ids == logits.argmax(dim=-1).tolist()


def test_greedy_equals_generate(results, folders):
    model = AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32)
    phantom = list(range(REAL_IDS, VOCAB))
    for prompt, (sample,) in zip(PROMPTS, results["greedy"]):
        reference = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=16, pad_token_id=0,
                                   suppress_tokens=phantom)[0, len(prompt):].tolist()
        assert sample.token_ids == reference


def test_seeds(results):
    assert results["hot"] == results["hot again"]
    assert results["hot"] != results["hot other seed"]
    assert len({tuple(sample.token_ids) for sample in results["hot"][0]}) > 1
    assert results["no prompts"] == []


def test_responses_end_at_their_first_eos(results):
    samples = [s for name in ("cold", "hot", "hot other seed") for group in results[name] for s in group]
    for sample in samples:
        assert len(sample.token_ids) == len(sample.logprobs) <= 16
        assert not set(sample.token_ids[:-1]) & set(EOS)
        if sample.finish_reason == "stop":
            assert sample.token_ids[-1] in EOS
        else:
            assert sample.finish_reason == "length" and len(sample.token_ids) == 16
            assert sample.token_ids[-1] not in EOS
    assert {sample.finish_reason for sample in samples} == {"stop", "length"}
    assert {sample.token_ids[-1] for sample in samples if sample.finish_reason == "stop"} == set(EOS)


def test_ids_beyond_the_tokenizer_are_never_drawn(results, folders):
    drawn = {token for name in results for group in results[name] for s in group for token in s.token_ids}
    assert max(drawn) < REAL_IDS
    model = AutoModelForCausalLM.from_pretrained(folders[0])
    with torch.no_grad():
        p = torch.softmax(model(torch.tensor(PROMPTS[:1])).logits[0, -1].float() / 1.5, dim=-1)
    assert p[REAL_IDS:].sum() > 0.05    # unmasked, 4000 draws would have hit them


def test_frequencies_match_the_softmax(results, folders):
    counts = torch.zeros(REAL_IDS, dtype=torch.float64)
    for sample in results["first tokens"][0]:
        counts[sample.token_ids[0]] += 1
    expected = DRAWS * torch.softmax(teacher_forced(folders[0], PROMPTS[0], [0])[0] / 1.5, dim=-1)
    chi2 = ((counts - expected) ** 2 / expected).sum()
    freedom = REAL_IDS - 1
    assert chi2 < freedom + 5 * (2 * freedom) ** 0.5


def test_hf_greedy_does_not_depend_on_the_neighbours(folders):
    alone = HFSampler(folders[0], make_tokenizer(), device="cpu", dtype=torch.float32, batch_size=1)
    batch = HFSampler(folders[0], make_tokenizer(), device="cpu", dtype=torch.float32, batch_size=8)
    settings = dict(n=1, max_tokens=16, temperature=0, seed=0)
    for (a,), (b,) in zip(alone.generate(PROMPTS, **settings), batch.generate(PROMPTS, **settings)):
        assert a.token_ids == b.token_ids
        torch.testing.assert_close(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-5, rtol=0)


def test_hf_two_temperatures(folders):
    sampler = HFSampler(folders[0], make_tokenizer(), device="cpu", dtype=torch.float32)
    threshold = 1.5
    sampler.fork = (threshold, 2.0)
    groups = sampler.generate(PROMPTS, n=8, max_tokens=16, temperature=0.5, seed=0)
    hot_tokens = 0
    for prompt, group in zip(PROMPTS, groups):
        for sample in group:
            logits = teacher_forced(folders[0], prompt, sample.token_ids)
            p = torch.softmax(logits, dim=-1)
            hot = -(p * p.log()).sum(dim=-1, keepdim=True) > threshold
            logprob = torch.log_softmax(logits / torch.where(hot, 2.0, 0.5), dim=-1)
            expected = logprob[torch.arange(len(sample.token_ids)), sample.token_ids].float()
            torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)
            hot_tokens += int(hot.sum())
    assert 0 < hot_tokens < sum(len(s.token_ids) for group in groups for s in group)


def test_hf_load_names_what_is_missing(folders):
    sampler = HFSampler(folders[0], make_tokenizer(), device="cpu", dtype=torch.float32)
    weights = dict(sampler.model.state_dict())
    weights.pop("model.norm.weight")
    with pytest.raises(ValueError, match="model.norm.weight"):
        sampler.load(weights.items())


def test_hf_load_takes_persistent_buffers_too(folders):
    sampler = HFSampler(folders[0], make_tokenizer(), device="cpu", dtype=torch.float32)
    sampler.model.model.register_buffer("scale", torch.zeros(3))
    weights = dict(sampler.model.state_dict()) | {"model.scale": torch.ones(3)}
    sampler.load(weights.items())
    assert sampler.model.model.scale.tolist() == [1, 1, 1]


if __name__ == "__main__":
    old, new, output = sys.argv[1:]
    vllm_sampler = VLLMSampler(old, make_tokenizer(), dtype=torch.float32, max_model_len=512)
    weights_of_new = AutoModelForCausalLM.from_pretrained(new).state_dict().items()
    Path(output).write_text(json.dumps(exercise(vllm_sampler, weights_of_new)))
