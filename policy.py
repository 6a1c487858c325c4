"""The policy, as it is trained and as it samples.

`Policy` is a Hugging Face causal LM under FSDP2 that returns log-probs and entropies of response tokens; the
samplers generate responses and take the trained weights back (`load(hf_weights(policy, dtype))`).
"""

import functools
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

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
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


# =========================================================================================================
# Policy: a Hugging Face causal LM under FSDP2, with log-probs and entropy computed in chunks
# =========================================================================================================


class Policy(nn.Module):
    """Log-probs and entropies of response tokens. The root of FSDP, so that the head's weight is whole in here."""

    CHUNK_LOGITS = 2**27  # logits alive at a time: 0.5 GB in fp32, whatever the vocabulary or the batch

    def __init__(self, model, n_vocab: int, temperature: float):
        super().__init__()
        self.model, self.n_vocab, self.temperature = model, n_vocab, temperature

    def forward(self, input_ids: Tensor, prompt_lengths: Tensor, targets: Tensor, mask: Tensor):
        """input_ids [B, L] prompt + response, right-padded; targets and mask [B, T] -> logprobs, entropy [B, T].

        No attention mask: under causal attention no token sees the padding to its right.
        """
        hidden = self.model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state       # [B, L, d]
        row, t = mask.nonzero(as_tuple=True)                                                         # [N]
        hidden = hidden[row, prompt_lengths[row] - 1 + t]      # the state that predicts token t      # [N, d]
        chunk = max(1, self.CHUNK_LOGITS // self.n_vocab)
        run = self.head if len(row) <= chunk else functools.partial(checkpoint, self.head, use_reentrant=False)
        parts = [run(h, y) for h, y in zip(hidden.split(chunk), targets[mask].split(chunk))]
        logprobs, entropy = (torch.cat(p) for p in zip(*parts))                                      # [N]
        zeros = torch.zeros(mask.shape, dtype=logprobs.dtype, device=logprobs.device)
        return zeros.masked_scatter(mask, logprobs), zeros.masked_scatter(mask, entropy)             # [B, T]

    def head(self, hidden: Tensor, targets: Tensor):
        logits = self.model.get_output_embeddings()(hidden)[:, :self.n_vocab]  # ids past the tokenizer's have p = 0
        return logprobs_and_entropy(logits, targets, self.temperature)


def load_policy(path: str, tokenizer, device: torch.device, *, temperature: float = 1.0,
                grad_checkpointing: bool = False) -> Policy:
    """fp32 master weights; bf16 compute on a GPU, fp32 on a CPU. Sharded block by block, then the root."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    if grad_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = Policy(model, len(tokenizer), temperature)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    compute_dtype = torch.bfloat16 if device.type == "cuda" else None
    precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for layer in model.base_model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)
    return policy.float().to(device)  # after sharding: the whole model never exists in fp32


def hf_weights(policy: Policy, dtype: torch.dtype):
    """(HF name, full tensor) one at a time. Collective: every rank has to consume it to the end."""
    policy.reshard()  # a forward pass without backward leaves the root's parameters whole
    tied, embedding = policy.model.config.tie_word_embeddings, None
    for name, p in policy.model.state_dict().items():
        if tied and name == "lm_head.weight":
            yield name, embedding
            continue
        p = p.detach().to(dtype)
        p = p.full_tensor() if isinstance(p, DTensor) else p
        if tied and name.endswith("embed_tokens.weight"):
            embedding = p
        yield name, p


def save_hf(policy: Policy, tokenizer, folder: Path, dtype: torch.dtype):
    """A folder that `from_pretrained` and vLLM load: written beside, then renamed, so never half there."""
    keep = dist.get_rank() == 0
    state = {name: p.cpu() for name, p in hf_weights(policy, dtype) if keep}
    if keep:
        if policy.model.config.tie_word_embeddings:
            state.pop("lm_head.weight", None)
        tmp = folder.with_suffix(".tmp")
        shutil.rmtree(tmp, ignore_errors=True)
        policy.model.save_pretrained(tmp, state_dict=state)
        tokenizer.save_pretrained(tmp)
        shutil.rmtree(folder, ignore_errors=True)
        tmp.rename(folder)
    dist.barrier()


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
    if not rows:  # one token of padding, no token of response
        rows = [(SimpleNamespace(prompt=torch.tensor([0]), tokens=torch.zeros(0, dtype=torch.long),
                                 sampler_logprobs=torch.zeros(0), advantage=0.0), 0)]
    pad = functools.partial(pad_sequence, batch_first=True)
    batch = MicroBatch(
        input_ids=pad([torch.cat([r.prompt, r.tokens]) for r, _ in rows]),
        prompt_lengths=torch.tensor([len(r.prompt) for r, _ in rows]),
        targets=pad([r.tokens for r, _ in rows]),
        mask=pad([torch.ones_like(r.tokens, dtype=torch.bool) for r, _ in rows]),
        position=pad([start + torch.arange(len(r.tokens)) for r, start in rows]),
        advantages=pad([torch.full((len(r.tokens),), r.advantage) for r, _ in rows]),
        sampler_logprobs=pad([r.sampler_logprobs for r, _ in rows]),
    )
    return MicroBatch(**{k: v.to(device) for k, v in vars(batch).items() if v is not None})


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


# =========================================================================================================
# Rollout: responses, scores, groups
# =========================================================================================================


@dataclass
class Response:
    prompt: Tensor            # token ids [S]
    tokens: Tensor            # token ids [T], the EOS included
    sampler_logprobs: Tensor  # [T]
    text: str
    finish_reason: str        # stop, length
    score: reward.Score
    reward: float             # the score's, less the overlong penalty
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
    if dist.get_rank() % cfg.tensor_parallel:
        rollouts = []  # the ranks of one vLLM engine hold the same samples: the first of them counts
    flat = [(problem, prompt, sample) for problem, prompt, samples in rollouts for sample in samples]
    texts = [sampler.tokenizer.decode(sample.token_ids, skip_special_tokens=True) for _, _, sample in flat]
    truncated = [sample.finish_reason == "length" for _, _, sample in flat]
    scores = reward.score_batch(texts, [problem for problem, _, _ in flat], truncated=truncated,
                                workers=cfg.score_workers, timeout=cfg.score_timeout)
    responses = []
    for (_, prompt, sample), text, verdict in zip(flat, texts, scores, strict=True):
        penalty = reward.overlong_penalty(len(sample.token_ids), cfg.max_response_tokens, cfg.overlong_buffer)
        responses.append(Response(torch.tensor(prompt), torch.tensor(sample.token_ids), torch.tensor(sample.logprobs),
                                  text, sample.finish_reason, verdict, verdict.reward + penalty))
    G = cfg.group_size
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, [responses[i:i + G] for i in range(0, len(responses), G)])
    return [group for part in parts for group in part]


def rewards_of(groups: list[list[Response]]) -> Tensor:
    return torch.tensor([[r.reward for r in group] for group in groups])                     # [P, G]


def set_advantages(name: str, groups: list[list[Response]]):
    lengths = torch.tensor([[len(r.tokens) for r in group] for group in groups])             # [P, G]
    for group, row in zip(groups, ADVANTAGES[name](rewards_of(groups), lengths).tolist()):
        for response, advantage in zip(group, row):
            response.advantage = advantage
