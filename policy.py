"""The policy, as it is trained and as it samples.

`Policy` is a Hugging Face causal LM under FSDP2 that returns log-probs and entropies of response tokens; the
samplers generate responses and take the trained weights back (`load(hf_weights(policy, dtype))`).
"""

import contextlib
import functools
import os
import random
import shutil
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, GenerationConfig

import reward
from loss import ADVANTAGES, logprobs_and_entropy


def derive_seed(*key: int) -> int:
    """Another seed for every (seed, step, round, rank): streams never overlap, and a run repeats."""
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def start_distributed() -> torch.device:
    """One process is a group of one: the same code runs under `python` and `torchrun`."""
    if "RANK" not in os.environ:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1",
                          MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    timeout = timedelta(hours=2)  # one rank may judge or write for long while the others wait
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=timeout)
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device, timeout=timeout)
    return device


def any_rank(flag: bool, device: torch.device) -> bool:
    """True on every rank if it is on one."""
    flags = torch.tensor(float(flag), device=device)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return bool(flags)


def last_line(error: BaseException) -> str:
    """The libraries put a traceback into the message; the cause is its last line."""
    return (str(error).strip().splitlines() or [repr(error)])[-1]


# =========================================================================================================
# Policy: a Hugging Face causal LM under FSDP2, with log-probs and entropy computed in chunks
# =========================================================================================================


class Policy(nn.Module):
    """Log-probs and entropies of response tokens. The root of FSDP, so that the head's weight is whole in here."""

    CHUNK_LOGITS = 2**26  # logits of a chunk, 0.27 GB in fp32; three to four tensors of this size live at a time

    def __init__(self, model, n_vocab: int, temperature: float):
        super().__init__()
        self.model, self.n_vocab, self.temperature = model, n_vocab, temperature

    def forward(self, input_ids: Tensor, prompt_lengths: Tensor, targets: Tensor, mask: Tensor, logits_only=False):
        """input_ids [B, L] prompt + response, right-padded; targets and mask [B, T] -> logprobs, entropy [B, T].

        logits_only: instead, logits / temperature [N, V] at the N true positions of the mask.
        No attention mask: under causal attention no token sees the padding to its right.
        """
        hidden = self.model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state       # [B, L, d]
        row, t = mask.nonzero(as_tuple=True)                                                         # [N]
        hidden = hidden[row, prompt_lengths[row] - 1 + t]      # the state that predicts token t      # [N, d]
        if logits_only:
            logits = self.logits(hidden)
            return logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature    # [N, V]
        chunk = max(1, self.CHUNK_LOGITS // self.n_vocab)
        run = self.head if len(row) <= chunk else functools.partial(checkpoint, self.head, use_reentrant=False)
        parts = [run(h, y) for h, y in zip(hidden.split(chunk), targets[mask].split(chunk))]
        logprobs, entropy = (torch.cat(p) for p in zip(*parts))                                      # [N]
        zeros = torch.zeros(mask.shape, dtype=logprobs.dtype, device=logprobs.device)
        return zeros.masked_scatter(mask, logprobs), zeros.masked_scatter(mask, entropy)             # [B, T]

    def reshard(self):
        """FSDP's, if the model is sharded: a forward pass without backward leaves the root's parameters whole."""

    def logits(self, hidden: Tensor):
        return self.model.get_output_embeddings()(hidden)[:, :self.n_vocab]  # ids past the tokenizer's have p = 0

    def head(self, hidden: Tensor, targets: Tensor):
        return logprobs_and_entropy(self.logits(hidden), targets, self.temperature)


def load_policy(path: str, tokenizer, device: torch.device, *, temperature: float = 1.0,
                grad_checkpointing: bool = False, trust_remote_code: bool = False) -> Policy:
    """fp32 master weights; bf16 compute on a GPU, fp32 on a CPU. Sharded block by block, then the root.

    FSDP casts to bf16, too. A CPU process of its own needs neither, and a small model's update is a fifth faster without.
    """
    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto", trust_remote_code=trust_remote_code)
    if not hasattr(model.base_model, "layers"):
        raise ValueError("this architecture is not supported: its decoder has no .layers")
    if grad_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()  # transformers recomputes in training mode only; these models have no dropout
    policy = Policy(model, len(tokenizer), temperature)
    if device.type == "cuda" or dist.get_world_size() > 1:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        compute_dtype = torch.bfloat16 if device.type == "cuda" else None
        precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
        for layer in model.base_model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=precision)
        fully_shard(policy, mesh=mesh, mp_policy=precision)
    return policy.float().to(device)  # after sharding: the whole model never exists in fp32


def hf_weights(policy: Policy, dtype: torch.dtype):
    """(HF name, full tensor) one at a time. Collective: every rank has to consume it to the end."""
    policy.reshard()
    tied, embedding = policy.model.config.tie_word_embeddings, None
    for name, p in policy.model.state_dict().items():
        if tied and name == "lm_head.weight":
            yield name, embedding
            continue
        p = p.detach().to(dtype) if p.is_floating_point() else p  # a buffer may hold integers
        p = p.full_tensor() if isinstance(p, DTensor) else p
        if tied and name.endswith("embed_tokens.weight"):
            embedding = p
        yield name, p


def save_hf(policy: Policy, tokenizer, folder: Path, dtype: torch.dtype) -> bool:
    """A folder that `from_pretrained` and vLLM load: written beside, then renamed, so never half there.

    A full disk is reported and stops nothing. -> False on rank 0 if the folder could not be written
    """
    keep, saved = dist.get_rank() == 0, True
    state = {name: p.cpu() for name, p in hf_weights(policy, dtype) if keep}
    if keep:
        if policy.model.config.tie_word_embeddings:
            state.pop("lm_head.weight", None)
        tmp = folder.with_suffix(".tmp")
        shutil.rmtree(tmp, ignore_errors=True)
        try:
            policy.model.save_pretrained(tmp, state_dict=state)
            policy.model.config.dtype = dtype  # save_pretrained wrote the master weights'
            policy.model.config.save_pretrained(tmp)
            tokenizer.save_pretrained(tmp)
            shutil.rmtree(folder, ignore_errors=True)
            tmp.rename(folder)
        except Exception as error:  # safetensors and tokenizers raise their own
            tqdm.write(f"{folder} could not be written: {last_line(error)}")
            shutil.rmtree(tmp, ignore_errors=True)
            saved = False
    dist.barrier()
    return saved


# =========================================================================================================
# Samplers: two engines with the same methods (generate, load, sleep, wake)
# =========================================================================================================

class Sample(NamedTuple):
    token_ids: list[int]    # the response, with the EOS token if it ended by itself; no padding
    logprobs: list[float]   # nats, of these tokens under the sampling distribution (temperature 1 if greedy)
    finish_reason: str      # "stop" | "length"


def entropy_of(logits) -> torch.Tensor:
    """[..., V] -> [...], nats; a logit of -inf counts nothing."""
    logprob = torch.log_softmax(logits.float(), dim=-1)
    return -torch.where(logprob == -torch.inf, 0.0, logprob.exp() * logprob).sum(dim=-1)


def eos_token_ids(model, tokenizer, trust_remote_code=False) -> list[int]:
    """Every id that ends a response: generation_config's (there may be several) and the tokenizer's."""
    try:
        ids = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:   # the folder has no generation_config.json
        ids = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code).eos_token_id
    ids = ids if isinstance(ids, list) else [ids]
    return sorted({i for i in ids + [tokenizer.eos_token_id] if i is not None})


class HFSampler:
    """Plain sampling loop over a Hugging Face model with its KV cache; runs anywhere.

    Each rank holds its own full copy of the model. model: path or hub name. Responses depend on the whole
    call (one random generator for all of them), so the same call with the same seed repeats exactly.
    """

    def __init__(self, model, tokenizer, *, device, dtype, batch_size=512, trust_remote_code=False):
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, trust_remote_code=trust_remote_code)
        self.model.to(device).eval()
        self.tokenizer, self.device, self.batch_size = tokenizer, torch.device(device), batch_size
        self.fork = None    # (threshold in nats, temperature of tokens whose entropy is above it)
        self.eos_ids = torch.tensor(eos_token_ids(model, tokenizer, trust_remote_code), device=device)
        self.dp_rank = dist.get_rank() if dist.is_initialized() else 0
        self.dp_size = dist.get_world_size() if dist.is_initialized() else 1

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
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        import vllm
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
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


# =========================================================================================================
# Rollout: responses, scores, groups
# =========================================================================================================


@dataclass
class Response:
    problem: str
    prompt: np.ndarray            # token ids [S]; arrays, because tensors are slow to send between processes
    tokens: np.ndarray            # token ids [T], the EOS included
    sampler_logprobs: np.ndarray  # [T]
    text: str
    finish_reason: str            # stop, length
    score: reward.Score
    reward: float                 # the score's, less the overlong penalty
    advantage: float = 0.0


def generate(cfg, sampler, problems: list[dict], seed: int) -> list[tuple]:
    """This rank's share of the problems, `group_size` samples each. -> [(problem, prompt ids, [Sample] * G)]"""
    share = problems[sampler.dp_rank::sampler.dp_size]
    prompts = [reward.format_prompt(problem, sampler.tokenizer) for problem in share]
    samples = sampler.generate(prompts, n=cfg.group_size, max_tokens=cfg.max_response_tokens,
                               temperature=cfg.temperature, seed=derive_seed(seed, sampler.dp_rank))
    return [(problem, prompt, drawn) for problem, prompt, drawn in zip(share, prompts, samples, strict=True)]


def score(cfg, sampler, rollouts: list[tuple]) -> list[list[Response]]:
    """Verify this rank's responses. -> the groups of all ranks, on every rank."""
    if dist.get_rank() % (dist.get_world_size() // sampler.dp_size):
        rollouts = []  # the ranks of one vLLM engine hold the same samples: the first of them counts
    flat = [(problem, prompt, sample) for problem, prompt, samples in rollouts for sample in samples]
    texts = [sampler.tokenizer.decode(sample.token_ids, skip_special_tokens=True) for _, _, sample in flat]
    truncated = [sample.finish_reason == "length" for _, _, sample in flat]
    scores = reward.score_batch(texts, [problem for problem, _, _ in flat], truncated=truncated,
                                workers=cfg.score_workers, timeout=cfg.score_timeout)
    responses = []
    for (problem, prompt, sample), text, verdict in zip(flat, texts, scores, strict=True):
        penalty = reward.overlong_penalty(len(sample.token_ids), cfg.max_response_tokens, cfg.overlong_buffer)
        responses.append(Response(problem["problem"], np.array(prompt), np.array(sample.token_ids),
                                  np.array(sample.logprobs, np.float32), text, sample.finish_reason, verdict,
                                  verdict.reward + penalty))
    G = cfg.group_size
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, [responses[i:i + G] for i in range(0, len(responses), G)])
    return [group for part in parts for group in part]


def all_equal(group: list[Response]) -> bool:
    """All right, or all wrong: by the verdicts, because a group must not train on its length penalties alone."""
    return len({r.score.reward for r in group}) == 1


def rewards_of(groups: list[list[Response]]) -> Tensor:
    return torch.tensor([[r.reward for r in group] for group in groups])                     # [P, G]


def set_advantages(name: str, groups: list[list[Response]]):
    lengths = torch.tensor([[len(r.tokens) for r in group] for group in groups])             # [P, G]
    for group, row in zip(groups, ADVANTAGES[name](rewards_of(groups), lengths).tolist()):
        for response, advantage in zip(group, row):
            response.advantage = advantage


# =========================================================================================================
# Micro-batches: a mini-batch spans all ranks, a micro-batch is one forward pass of one rank
# =========================================================================================================


@dataclass
class MicroBatch:
    input_ids: Tensor         # [B, L] prompt + response, right-padded
    prompt_lengths: Tensor    # [B]
    targets: Tensor           # [B, T] the response
    mask: Tensor              # [B, T] bool
    position: Tensor          # [B, T] a token's place among the N tokens of the mini-batch
    advantages: Tensor        # [B, T]
    sampler_logprobs: Tensor  # [B, T]
    old_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    ref_logprobs: Tensor | None = None


def micro_batches(responses: list[Response], budget: int, device: torch.device) -> tuple[list[MicroBatch], int]:
    """Of a mini-batch that every rank holds: this rank's micro-batches, and N, the tokens of all ranks.

    Rows go to the ranks longest first, each to the lightest one, and fill micro-batches of at most `budget`
    padded tokens in that order. All ranks get equally many, as FSDP's collectives need: some may be empty.
    """
    length = [len(r.prompt) + len(r.tokens) for r in responses]
    shares = [[] for _ in range(dist.get_world_size())]
    for i in sorted(range(len(responses)), key=lambda i: -length[i]):
        min(shares, key=lambda share: sum(length[j] for j in share)).append(i)
    plans = [[] for _ in shares]
    for share, plan in zip(shares, plans):
        for i in share:
            if plan and (len(plan[-1]) + 1) * length[plan[-1][0]] <= budget:  # the first row is the longest
                plan[-1].append(i)
            else:
                plan.append([i])
    plan = plans[dist.get_rank()]
    plan += [[]] * (max(map(len, plans)) - len(plan))
    start = np.cumsum([0] + [len(r.tokens) for r in responses])
    return [collate([(responses[i], start[i]) for i in rows], device) for rows in plan], int(start[-1])


def collate(rows: list[tuple], device: torch.device) -> MicroBatch:
    """rows: [(response, place of its first token among the N)]"""
    if not rows:  # one token of padding, no token of response
        none = np.zeros(0, dtype=np.int64)
        rows = [(SimpleNamespace(prompt=np.zeros(1, np.int64), tokens=none, sampler_logprobs=none, advantage=0.0), 0)]

    def pad(arrays, dtype=torch.float32):
        return pad_sequence([torch.as_tensor(a, dtype=dtype) for a in arrays], batch_first=True).to(device)

    return MicroBatch(
        input_ids=pad([np.concatenate([r.prompt, r.tokens]) for r, _ in rows], torch.long),
        prompt_lengths=torch.tensor([len(r.prompt) for r, _ in rows], device=device),
        targets=pad([r.tokens for r, _ in rows], torch.long),
        mask=pad([np.ones(len(r.tokens)) for r, _ in rows], torch.bool),
        position=pad([start + np.arange(len(r.tokens)) for r, start in rows], torch.long),
        advantages=pad([np.full(len(r.tokens), r.advantage) for r, _ in rows]),
        sampler_logprobs=pad([r.sampler_logprobs for r, _ in rows]),
    )


@torch.no_grad()
def no_grad_pass(policy: Policy, batches: list[MicroBatch]) -> list[tuple[Tensor, Tensor]]:
    """[(logprobs, entropy)] a micro-batch."""
    return [policy(m.input_ids, m.prompt_lengths, m.targets, m.mask) for m in batches]


def over_all_ranks(values: list[Tensor], batches: list[MicroBatch], n_tokens: int) -> Tensor:
    """[B, T] a micro-batch and rank -> [N], in an order that depends neither on micro-batches nor on ranks."""
    flat = torch.zeros(n_tokens, dtype=values[0].dtype, device=values[0].device)
    for value, m in zip(values, batches):
        flat[m.position[m.mask]] = value[m.mask]
    dist.all_reduce(flat)
    return flat
