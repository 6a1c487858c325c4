"""Other people's models: trained and sampled as what they are, or refused in one line.

Random models of public architectures, two layers wide enough that their logits are far from uniform. "right" means that
the policy, the sampler after a sync and the exported folder give the same log-probs, after the weights have moved.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import train
from reward import INSTRUCTIONS, format_prompt
from support.batches import start_distributed
from support.checkpoints import save_hf
from support.samplers import HFSampler, end_of_turn, eos_token_ids, fast_products, warn_of_lost_letters

N_IDS, VOCAB = 30, 36  # some ids have no token
WORDS = ["<pad>", "<eos>", "<|im_start|>", "<|im_end|>", "<unk>", "system", "user", "assistant", "ANSWER", "Hi", "\n"]
SHAPE = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=2, max_position_embeddings=128, bos_token_id=None, eos_token_id=1, pad_token_id=0)
MOE = dict(moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
LINEAR = dict(linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16)

RIGHT = {
    "qwen2": {}, "qwen2 tied": dict(tie_word_embeddings=True), "qwen3": dict(head_dim=16), "llama": {}, "mistral": {},
    "gemma": dict(head_dim=16), "gemma3_text": dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=8), "phi3": {},
    "gpt_neox": {}, "gpt_neox tied": dict(tie_word_embeddings=True), "qwen3_moe": dict(head_dim=16, **MOE),
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2), "olmo2": {}, "smollm3": {}, "stablelm": {},
}
REFUSED = {  # by the trainer: logits are not those of the head; by the sampler: the cache
    "gemma2": (dict(head_dim=16, query_pre_attn_scalar=16, final_logit_softcapping=5.0), "logits"),
    "cohere": (dict(logit_scale=0.0625), "logits"), "granite": (dict(logits_scaling=8.0), "logits"),
    "falcon_h1": (dict(mamba_d_ssm=32, mamba_n_heads=2, mamba_d_head=16, mamba_d_state=8, lm_head_multiplier=0.5), "logits"),
    "recurrent_gemma": (dict(head_dim=16, lru_width=32, attention_window_size=32, logits_soft_cap=5.0), "logits"),
    "gpt2": ({}, "no .layers"),
    "qwen3_next": (dict(head_dim=16, shared_expert_intermediate_size=16, layer_types=["linear_attention", "full_attention"],
                        **MOE, **LINEAR), "--sampler hf"),
    "jamba": (dict(use_mamba_kernels=False, mamba_d_state=8, mamba_dt_rank=4, num_experts=2, attn_layer_period=2,
                   attn_layer_offset=1), "--sampler hf"),
}


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    start_distributed()
    yield
    dist.destroy_process_group()


def make_tokenizer(**special):
    ids = {word: i for i, word in enumerate([*WORDS, *(f"t{i}" for i in range(len(WORDS), N_IDS))])}
    words = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", **special)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return tokenizer


def random_model(name: str, options: dict):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name.split()[0], **{**SHAPE, **options})).float()
    for p in model.parameters():
        if p.dim() > 1:
            p.data.mul_(6)
    return model


def saved(folder: Path, name: str, options: dict) -> str:
    random_model(name, options).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


def logprobs_of(model, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1:-1, :N_IDS]
    return logits.float().log_softmax(-1)[range(len(tokens)), tokens]


def agree_after_a_move(path: str, tmp_path: Path):
    """Policy, sampler after a sync, and export: the same log-probs, on prompts of unequal length."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    policy = train.load_policy(train.Config(model=path), tokenizer, torch.device("cpu"))
    sampler = HFSampler(path, tokenizer, device="cpu", dtype=torch.float32)
    torch.manual_seed(1)
    for p in policy.parameters():
        p.data.add_(0.3 * p.data.std() * torch.randn_like(p))
    sampler.load(train.hf_weights(policy, torch.float32))
    assert save_hf(policy, train.hf_weights(policy, torch.float32), tokenizer, tmp_path / "export", torch.float32)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    prompts = [[12, 13, 14, 15, 16, 17], [20]]
    for prompt, group in zip(prompts, sampler.generate(prompts, n=3, max_tokens=12, temperature=1.0, seed=0)):
        for s in group:
            ids, length = torch.tensor([prompt + s.token_ids]), torch.tensor([len(prompt)])
            targets = torch.tensor([s.token_ids])
            ours = policy(ids, length, targets, targets >= 0)[0][0]
            torch.testing.assert_close(torch.tensor(s.logprobs), ours.detach(), atol=2e-4, rtol=0)
            torch.testing.assert_close(logprobs_of(exported, prompt, s.token_ids), ours.detach(), atol=2e-4, rtol=0)
    return policy, exported


# --- architectures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIGHT)
def test_policy_sampler_and_export_are_one_model(name, tmp_path):
    agree_after_a_move(saved(tmp_path / "model", name, RIGHT[name]), tmp_path)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_train_wrongly_is_refused(name, tmp_path):
    options, words = REFUSED[name]
    path = saved(tmp_path / "model", name, options)
    tokenizer = AutoTokenizer.from_pretrained(path)
    with pytest.raises(ValueError, match=words) as error:
        train.load_policy(train.Config(model=path), tokenizer, torch.device("cpu"))
        HFSampler(path, tokenizer, device="cpu", dtype=torch.float32)
    assert path in str(error.value) and "\n" not in str(error.value)


def test_fast_products_round_nothing_to_bf16():
    was, torch.backends.mkldnn.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision, "ieee"
    try:
        fast_products(SimpleNamespace(config=SimpleNamespace(hidden_size=255)))
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee", "a loss for a model that is tiny"
        fast_products(SimpleNamespace(config=SimpleNamespace(hidden_size=256)))
        torch.manual_seed(0)
        x, w = torch.randn(64, 512), torch.randn(256, 512)
        torch.testing.assert_close(torch.nn.functional.linear(x, w).double(), x.double() @ w.double().T, atol=2e-4, rtol=0)
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = was


def test_two_output_matrices_stay_two_whatever_the_config_says(tmp_path):
    path = saved(tmp_path / "model", "qwen2", {})
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    policy, exported = agree_after_a_move(path, tmp_path)
    assert not torch.equal(exported.lm_head.weight, exported.model.embed_tokens.weight)
    assert not exported.config.tie_word_embeddings


@pytest.mark.parametrize("name", ("phi3", "stablelm", "xglm"))
def test_dropout_is_off_with_gradient_checkpointing(name, tmp_path):
    """In its parts, by leaving these in eval mode. XGLM's layer itself has one: refused."""
    dropout = {"phi3": dict(resid_pdrop=0.5, attention_dropout=0.5), "stablelm": dict(hidden_dropout=0.5, attention_dropout=0.5),
               "xglm": dict(dropout=0.5, d_model=32, num_layers=2, attention_heads=2, ffn_dim=48)}[name]
    path = saved(tmp_path / "model", name, dropout)
    tokenizer, ids = AutoTokenizer.from_pretrained(path), torch.randint(5, N_IDS, (2, 9))
    load = lambda on: train.load_policy(train.Config(model=path, grad_checkpointing=on), tokenizer, torch.device("cpu"))
    if name == "xglm":
        with pytest.raises(ValueError, match="dropout"):
            load(True)
        return
    once, recomputed = ([], [])
    for on, found in ((False, once), (True, recomputed)):
        policy = load(on)
        logprobs, _ = policy(ids, torch.tensor([2, 3]), ids[:, 3:], torch.ones(2, 6, dtype=torch.bool))
        logprobs.sum().backward()
        found += [logprobs.detach(), *(p.grad for p in policy.parameters())]
    for a, b in zip(once, recomputed):
        torch.testing.assert_close(a, b)


def test_a_generation_config_that_cannot_be_saved_costs_no_export(tmp_path):
    """Greedy with a temperature: transformers loads it, and refuses to write it."""
    path = saved(tmp_path / "model", "qwen2", {})
    (tmp_path / "model/generation_config.json").write_text(json.dumps({"do_sample": False, "temperature": 0.6, "eos_token_id": [1, 3]}))
    _, exported = agree_after_a_move(path, tmp_path)
    assert exported.generation_config.eos_token_id == [1, 3] and exported.generation_config.temperature == 0.6


# --- tokens and templates ---------------------------------------------------------------------------------

CHATML = ("{% for m in messages %}<|im_start|> {{ m['role'] }} \n {{ m['content'] }} <|im_end|> \n {% endfor %}"
          "{% if add_generation_prompt %}<|im_start|> assistant \n {% endif %}")
NO_SYSTEM = CHATML.replace("{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}")
OPEN_END = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
RAISES = "{% for m in messages %}{% if m['role'] != 'user' %}{{ raise_exception('users only') }}{% endif %}{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize("template, expected", ((CHATML, 3), (OPEN_END, None), (RAISES, None), (None, None)))
def test_the_token_after_an_assistant_s_turn_ends_a_response(template, expected, tmp_path):
    path = saved(tmp_path / "model", "qwen2", {})
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    assert end_of_turn(tokenizer) == expected
    assert eos_token_ids(path, tokenizer) == ([1] if expected is None else [1, expected])


class Characters:
    """A tokenizer that is the text; it can end each with EOS."""
    eos_token_id = "E"

    def __init__(self, template=None, eos=""):
        self.chat_template, self.eos = template, eos

    def apply_chat_template(self, messages, **options):
        tokenizer = make_tokenizer()
        tokenizer.chat_template = self.chat_template
        return tokenizer.apply_chat_template(messages, **options)

    def __call__(self, text, add_special_tokens=True):
        return SimpleNamespace(input_ids=[*text, *(self.eos if add_special_tokens else "")])

    def decode(self, ids, **_):
        return "".join(i for i in ids if not i.isalpha() or self.eos)


@pytest.mark.parametrize("template", (CHATML, NO_SYSTEM, RAISES))
def test_the_instruction_is_in_the_prompt_whatever_the_template_makes_of_a_system_turn(template):
    text = "".join(format_prompt({"problem": "1+1?", "task": "math"}, Characters(template)))
    assert text.count(INSTRUCTIONS["math"]) == 1 and text.count("1+1?") == 1
    assert ("system" in text) == (template == CHATML)


def test_a_plain_prompt_does_not_end_with_eos():
    for eos in ("", "E"):
        assert "".join(format_prompt({"problem": "1,2:3\n", "task": "countdown"}, Characters(eos=eos))) == "1,2:3\n"


def test_letters_that_a_tokenizer_drops_are_named_once(capsys):
    rows = [{"problem": "1,2:3"}, {"problem": "Tom has 3 bags"}, {"problem": "Ann has 7"}]
    warn_of_lost_letters(Characters(), rows)
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "'Tom has 3 bags' as '  3 '" in said
    warn_of_lost_letters(Characters(eos="E"), rows)
    assert capsys.readouterr().err == ""
