"""Two samplers with the same methods (generate, load, sleep, wake): vLLM, and a plain Hugging Face loop."""

import contextlib
import os
import random
import sys
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from jinja2 import TemplateError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache, GenerationConfig
from transformers.utils import logging

from support.checkpoints import last_line
from support.options import gpu_memory

logging.disable_progress_bar()  # a bar a weight file says nothing of the run


class Sample(NamedTuple):
    token_ids: list[int]    # the response, with the EOS token if it ended by itself; no padding
    logprobs: list[float]   # nats, of these tokens under the sampling distribution (temperature 1 if greedy)
    finish_reason: str      # "stop" | "length"


def entropy_of(logits) -> torch.Tensor:
    """[..., V] -> [...], nats; a logit of -inf counts nothing."""
    logprob = torch.log_softmax(logits.float(), dim=-1)
    return -torch.where(logprob == -torch.inf, 0.0, logprob.exp() * logprob).sum(dim=-1)


def eos_token_ids(model, tokenizer, trust_remote_code=False) -> list[int]:
    """Every id that ends a response: generation_config's (there may be several), the tokenizer's, the chat template's."""
    try:
        ids = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:   # the folder has no generation_config.json
        ids = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code).eos_token_id
    ids = ids if isinstance(ids, list) else [ids]
    return sorted({i for i in [*ids, tokenizer.eos_token_id, end_of_turn(tokenizer)] if i is not None})


def end_of_turn(tokenizer) -> int | None:
    """The token that the chat template writes after an assistant's turn (<|im_end|>): base models seldom name it as EOS."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "ANSWER"}]
    with contextlib.suppress(TemplateError):
        after = tokenizer.apply_chat_template(turns, tokenize=False).partition("ANSWER")[2].lstrip()
        ids = tokenizer(after, add_special_tokens=False).input_ids
        return ids[0] if ids and ids[0] in tokenizer.get_added_vocab().values() else None


def warn_of_lost_letters(tokenizer, problems: list[dict]):
    """Once, naming a row: a tokenizer without letters reads "Tom has 3 bags of 7 apples" as "37"."""
    letters = lambda text: sum(map(str.isalnum, text))
    for problem in problems if os.environ.get("RANK", "0") == "0" else []:
        text = problem["problem"]
        read = tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True)
        if letters(read) < letters(text):
            print(f"warning: the tokenizer loses letters: it reads {text[:80]!r} as {read[:80]!r}", file=sys.stderr)
            return


def decode(tokenizer, token_ids, prompt_ids):
    """Text of a response with <think> and </think>, special tokens or not, and begun by the <think> that the
    prompt ended in; without the other special tokens."""
    dropped = {i for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items()
               if token.special and token.content not in ("<think>", "</think>")}
    text = tokenizer.decode([i for i in token_ids if i not in dropped], skip_special_tokens=False)
    before = tokenizer.decode(list(prompt_ids)[-32:], skip_special_tokens=False)
    return "<think>" * (before.rfind("<think>") > before.rfind("</think>")) + text


def load_tokenizer(cfg, vllm: bool):
    """The model's tokenizer. ValueError, one line, for a model that cannot be read or would train wrongly."""
    model, n_tokens = cfg.model, cfg.max_prompt_tokens + cfg.max_response_tokens
    options = dict(trust_remote_code=cfg.trust_remote_code)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, **options)
        config = AutoConfig.from_pretrained(model, **options).get_text_config()
    except Exception as error:  # each kind of missing or broken file raises its own
        raise ValueError(f"--model {model}: {error}") from None
    limit = getattr(config, "max_position_embeddings", None)
    reason = None
    if not tokenizer("1").input_ids:  # transformers makes an empty one where the files are missing
        reason = "its tokenizer is empty; is tokenizer.json there?"
    elif len(tokenizer) > config.vocab_size:
        reason = f"the tokenizer has {len(tokenizer)} ids, the model only {config.vocab_size}"
    elif not eos_token_ids(model, tokenizer, cfg.trust_remote_code):
        reason = "neither the tokenizer nor generation_config.json name an EOS token; no response would end"
    elif vllm and config.vocab_size - len(tokenizer) > 1024:
        reason = (f"{config.vocab_size - len(tokenizer)} ids are past the tokenizer's {len(tokenizer)}, and vLLM can "
                  "exclude 1,024: take --sampler hf, or cut the embedding")
    elif limit and n_tokens > limit:
        reason = f"{limit} positions, but --max_prompt_tokens + --max_response_tokens are {n_tokens}"
    elif torch.cuda.is_available():
        with torch.device("meta"):
            n_params = sum(p.numel() for p in AutoModelForCausalLM.from_config(config, **options).parameters())
        size, world_size = torch.cuda.get_device_properties(0).total_memory / 1e9, int(os.environ.get("WORLD_SIZE", 1))
        need = gpu_memory(cfg, config, n_params, world_size, size, vllm)
        reason = need > size and f"{need:.0f} GB on each of {world_size} GPUs by a rough count, which have {size:.0f}"
    if reason:
        raise ValueError(f"--model {model}: {reason}")
    return tokenizer


@torch.no_grad()
def check_logits(policy, name: str):
    """ValueError, one line, if the policy's logits are not the model's own: a soft cap, a multiplier, dropout."""
    model, n_vocab = policy.model, policy.n_vocab
    ids = torch.linspace(0, n_vocab - 1, 8).long()[None]                                       # [1, 8]
    try:
        own = model(input_ids=ids, use_cache=False).logits[0, :, :n_vocab].float()             # [8, V]
    except Exception as error:  # each kind of broken model raises its own
        raise ValueError(f"--model {name}: {last_line(error)}") from None
    ours = policy(ids, torch.tensor([1]), ids, ids >= 0, logits_only=True) * policy.temperature
    if not (ours - own).abs().max() <= 4 * torch.finfo(model.dtype).eps * own.abs().max():
        raise ValueError(f"--model {name}: this architecture is not supported: its logits are not those of its head "
                         f"(a soft cap, a multiplier, dropout); they differ by {(ours - own).abs().max():.2g}")


def make_sampler(cfg, tokenizer, device, dtype, vllm: bool):
    if vllm:
        return VLLMSampler(cfg.model, tokenizer, dtype=dtype, tensor_parallel_size=cfg.tensor_parallel, seed=cfg.seed,
                           max_model_len=cfg.max_prompt_tokens + cfg.max_response_tokens,
                           gpu_memory_utilization=cfg.gpu_memory_utilization, trust_remote_code=cfg.trust_remote_code)
    return HFSampler(cfg.model, tokenizer, device=device, dtype=dtype, trust_remote_code=cfg.trust_remote_code)


def fast_products(model):
    """fp32 matrix products by oneDNN: on an AMD processor twice as fast as by MKL; below width 256 they gain nothing.

    Only for CPUs on which this setting rounds nothing to bf16 in spite of its name: those with AMX would.
    """
    has = torch.cpu.get_capabilities()
    if model.config.hidden_size >= 256 and has.get("avx512_bf16") and not has.get("amx_tile"):
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"


class HFSampler:
    """Plain sampling loop over a Hugging Face model with its KV cache; runs anywhere.

    Each rank holds its own full copy of the model. model: path or hub name. Responses depend on the whole
    call (one random generator for all of them), so the same call with the same seed repeats exactly.
    """

    def __init__(self, model, tokenizer, *, device, dtype, batch_size=512, trust_remote_code=False):
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, trust_remote_code=trust_remote_code)
        self.model.to(device).eval()
        if torch.device(device).type == "cpu":
            fast_products(self.model)
        self.tokenizer, self.device, self.batch_size = tokenizer, torch.device(device), batch_size
        self.fork = None    # (threshold in nats, temperature of tokens whose entropy is above it)
        self.eos_ids = torch.tensor(eos_token_ids(model, tokenizer, trust_remote_code), device=device)
        self.dp_rank = dist.get_rank() if dist.is_initialized() else 0
        self.dp_size = dist.get_world_size() if dist.is_initialized() else 1
        self.check(model)

    @torch.inference_mode()
    def check(self, name):
        """ValueError, one line, for a cache that cannot be reordered (states of hybrids) or a model that reads padding."""
        ids, total, count = torch.linspace(0, len(self.tokenizer) - 1, 9).long().tolist(), 0.0, 0
        try:
            prompts = [ids[:3], ids]
            for prompt, group in zip(prompts, self.generate(prompts, n=2, max_tokens=10, temperature=1.0, seed=0)):
                for s in group:
                    whole = torch.tensor([prompt + s.token_ids], device=self.device)
                    logits = self.model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1:-1, :len(self.tokenizer)]
                    logprob = logits.float().log_softmax(-1)[range(len(s.token_ids)), s.token_ids]    # [T]
                    total, count = total + (logprob.cpu() - torch.tensor(s.logprobs)).abs().sum().item(), count + len(logprob)
            reason = "" if total / count < (1e-3 if self.model.dtype == torch.float32 else 0.1) else \
                f"log-probs with its cache differ from those of one pass by {total / count:.2g} nats a token"
        except Exception as error:  # each kind of cache raises its own
            reason = f"{type(error).__name__}: {error}"
        if reason:
            raise ValueError(f"--model {name}: --sampler hf cannot sample from this architecture ({reason})")

    def generate(self, prompts, *, n, max_tokens, temperature, seed) -> list[list[Sample]]:
        """n responses to each of P tokenized prompts -> [P][n]. temperature 0 is greedy."""
        generator = torch.Generator(self.device).manual_seed(seed)
        by_length = sorted(range(len(prompts) * n), key=lambda i: len(prompts[i // n]))
        samples = [None] * len(by_length)
        for start in range(0, len(by_length), self.batch_size):
            rows = by_length[start:start + self.batch_size]
            batch = [prompts[i // n] for i in rows]
            for i, sample in zip(rows, self._generate_batch(batch, max_tokens, temperature, generator)):
                samples[i] = sample
        return [samples[p * n:(p + 1) * n] for p in range(len(prompts))]

    @torch.inference_mode()
    def _generate_batch(self, prompts, max_tokens, temperature, generator) -> list[Sample]:
        place = {}    # a prompt is read once, however many responses it has: its row among the U different ones
        copies = torch.tensor([place.setdefault(tuple(p), len(place)) for p in prompts], device=self.device)    # [B]
        B, L = len(prompts), max(map(len, prompts))
        input_ids = torch.tensor([[0] * (L - len(p)) + [*p] for p in place], device=self.device)    # [U, L]
        mask = torch.tensor([[0] * (L - len(p)) + [1] * len(p) for p in place], device=self.device)
        position_ids = (mask.cumsum(1) - 1).clamp(min=0)    # [U, L]
        cache = DynamicCache(config=self.model.config)
        tokens = torch.zeros(B, max_tokens, dtype=torch.long, device=self.device)    # [B, T]
        logprobs = torch.zeros(B, max_tokens, device=self.device)    # [B, T]
        rows = torch.arange(B, device=self.device)    # [b] which responses are still in the batch
        ended = torch.zeros_like(rows, dtype=torch.bool)

        for t in range(max_tokens):
            logits = self.model(input_ids=input_ids, attention_mask=mask, position_ids=position_ids,
                                past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].float()
            if t == 0:
                logits, mask, position_ids = logits[copies], mask[copies], position_ids[copies]
                cache.batch_select_indices(copies)
            logits[:, len(self.tokenizer):] = -torch.inf    # padding of the embedding: no token has these ids
            logprob = torch.log_softmax(logits / (temperature or 1.0), dim=-1)    # [b, V]
            if self.fork is not None:    # two-temperature decoding (Wang et al. 2025)
                forking = entropy_of(logits)[:, None] > self.fork[0]    # [b, 1]
                logprob = torch.where(forking, torch.log_softmax(logits / self.fork[1], dim=-1), logprob)
            if temperature == 0:
                token = logprob.argmax(dim=-1, keepdim=True)    # [b, 1]
            else:
                token = torch.multinomial(logprob.exp(), 1, generator=generator)
            tokens[rows, t] = token[:, 0]
            logprobs[rows, t] = logprob.gather(1, token)[:, 0]
            ended |= torch.isin(token[:, 0], self.eos_ids)

            input_ids, position_ids = token, position_ids[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(token)], dim=1)
            if t % 8 == 7 and ended.any():    # drop what has ended, so that a few long responses stay cheap
                keep = (~ended).nonzero()[:, 0]
                if len(keep) == 0:
                    break
                rows, ended, mask = rows[keep], ended[keep], mask[keep]
                input_ids, position_ids = input_ids[keep], position_ids[keep]
                cache.batch_select_indices(keep)

        # a row went on after its first EOS until it was dropped: cut it there
        is_eos = torch.isin(tokens, self.eos_ids)    # [B, T]
        stopped = is_eos.any(dim=1)
        lengths = torch.where(stopped, is_eos.int().argmax(dim=1) + 1, max_tokens).tolist()
        return [Sample(ids[:k], lps[:k], "stop" if stop else "length")
                for ids, lps, k, stop in zip(tokens.tolist(), logprobs.tolist(), lengths, stopped.tolist())]

    @torch.no_grad()
    def load(self, weights):
        """weights: iterable of (Hugging Face parameter name, full tensor), every parameter of the model."""
        params = self.model.state_dict(keep_vars=True)  # tied ones under each name; persistent buffers too
        loaded = set()
        for name, tensor in weights:
            params[name].copy_(tensor)
            loaded.add(id(params[name]))
        missing = [name for name, p in params.items() if id(p) not in loaded]
        if missing:
            raise ValueError(f"load() got no tensor for {missing[0]} and {len(missing) - 1} more parameters")

    def sleep(self):
        """Give the GPU to the trainer. Wake, then load, before the next generate."""
        self.model.to("cpu")

    def wake(self):
        self.model.to(self.device)

    def close(self):
        """Nothing to shut down here."""


class VLLMSampler:
    """vLLM in this process, sharing the GPU with the trainer. model: path or hub name.

    Under torchrun every group of tensor_parallel_size neighbouring ranks forms one engine; these ranks must
    pass identical prompts and seeds (split the data by dp_rank of dp_size). init_process_group comes first.
    """

    def __init__(self, model, tokenizer, *, dtype, tensor_parallel_size=1, max_model_len=None,
                 gpu_memory_utilization=0.3, seed=0, trust_remote_code=False):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"    # read when vLLM builds the engine
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR" if rank else "WARNING")
        import vllm
        self.dp_rank, self.dp_size = rank // tensor_parallel_size, world // tensor_parallel_size
        self.tokenizer, self.cuda = tokenizer, torch.cuda.is_available()
        self.stop_token_ids = eos_token_ids(model, tokenizer, trust_remote_code)
        with preserved_process_state():
            self.llm = vllm.LLM(
                model=model, dtype=dtype, max_model_len=max_model_len, trust_remote_code=trust_remote_code,
                tensor_parallel_size=tensor_parallel_size, seed=seed + self.dp_rank,
                distributed_executor_backend="external_launcher" if dist.is_initialized() else None,
                logprobs_mode="processed_logprobs",    # the default ignores the temperature
                enable_sleep_mode=self.cuda,           # refused on a CPU
                disable_custom_all_reduce=True,        # it ends the process where torch's memory segments can expand
                gpu_memory_utilization=gpu_memory_utilization,
                kv_cache_memory_bytes=None if self.cuda else 2 ** 30,    # CPU default: a share of all memory
                enforce_eager=not self.cuda)
        vocab_size = self.llm.llm_engine.model_config.get_vocab_size()
        self.logit_bias = {i: -float("inf") for i in range(len(tokenizer), vocab_size)} or None
        self.kv_cache_asleep = False

    def generate(self, prompts, *, n, max_tokens, temperature, seed) -> list[list[Sample]]:
        """n responses to each of P tokenized prompts -> [P][n]. temperature 0 is greedy (and then n is 1)."""
        from vllm import SamplingParams
        first = random.Random(seed).randrange(2 ** 48)    # vLLM gives response i of a request the seed + i
        params = [SamplingParams(n=n, max_tokens=max_tokens, temperature=temperature, top_p=1.0, top_k=-1,
                                 seed=first + p * n, logprobs=0, stop_token_ids=self.stop_token_ids,
                                 logit_bias=self.logit_bias, detokenize=False) for p in range(len(prompts))]
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = self.llm.generate(requests, params, use_tqdm=False) if prompts else []
        assert [r.prompt_token_ids for r in results] == prompts, "vLLM answered out of order"
        return [[Sample(list(out.token_ids),
                        [step[token].logprob for token, step in zip(out.token_ids, out.logprobs)],
                        out.finish_reason) for out in result.outputs] for result in results]

    def load(self, weights):
        """weights: iterable of (Hugging Face parameter name, full tensor), a tied lm_head.weight included."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if self.kv_cache_asleep:
            self.llm.wake_up(["kv_cache"])
            self.kv_cache_asleep = False
        assert self.llm.reset_prefix_cache(), "cached prefixes of the old weights are still in use"

    def sleep(self):
        """Give the GPU to the trainer: weights and cache are dropped. Wake, then load, before generate."""
        if self.cuda:
            self.llm.sleep(level=2)
            self.kv_cache_asleep = True

    def wake(self):
        if self.cuda:
            self.llm.wake_up(["weights"])    # the cache comes back in load: both do not fit during the sync

    def close(self):
        """Shut the engine down, and torch.distributed's default process group with it: call this last."""
        self.llm.llm_engine.engine_core.shutdown()


@contextlib.contextmanager
def preserved_process_state():
    """LLM() reseeds every generator, changes LOCAL_WORLD_SIZE and, on a CPU, disables set_num_threads."""
    local_world_size, set_num_threads = os.environ.get("LOCAL_WORLD_SIZE"), torch.set_num_threads
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda_state = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if cuda_state is not None:
        torch.cuda.set_rng_state(cuda_state)
    torch.set_num_threads = set_num_threads
    os.environ.pop("LOCAL_WORLD_SIZE", None)
    if local_world_size is not None:
        os.environ["LOCAL_WORLD_SIZE"] = local_world_size
