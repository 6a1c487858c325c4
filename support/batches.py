"""What ranks share: a mini-batch spans all of them, a micro-batch is one forward pass of one of them."""

import os
import socket
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


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


@dataclass
class Response:
    problem: str
    prompt: np.ndarray            # token ids [S]; arrays, because tensors are slow to send between processes
    tokens: np.ndarray            # token ids [T], the EOS included
    sampler_logprobs: np.ndarray  # [T]
    text: str
    finish_reason: str            # stop, length
    score: NamedTuple             # reward.Score
    reward: float                 # the score's, less the overlong penalty
    advantages: np.ndarray        # [T]


def make_response(problem: dict, prompt: list[int], sample, text: str, score, reward: float) -> Response:
    tokens = np.array(sample.token_ids)
    return Response(problem["problem"], np.array(prompt), tokens, np.array(sample.logprobs, np.float32), text,
                    sample.finish_reason, score, reward, advantages=np.zeros(len(tokens), np.float32))


@dataclass
class MicroBatch:
    input_ids: Tensor         # [B, L] prompt + response, right-padded
    prompt_lengths: Tensor    # [B]
    targets: Tensor           # [B, T] the response
    mask: Tensor              # [B, T] bool
    position: Tensor          # [B, T] a token's place among the N tokens of the mini-batch
    right: Tensor             # [B] 1.0 or 0.0, the verdict
    advantages: Tensor        # [B, T]
    sampler_logprobs: Tensor  # [B, T]
    old_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    ref_logprobs: Tensor | None = None


@dataclass
class MiniBatch:
    """What one optimizer step is made on: this rank's micro-batches, and [N] tensors over the tokens of all ranks."""
    groups: list[list[Response]]
    batches: list[MicroBatch]
    n_tokens: int                      # N
    index: int                         # 0: the first update of a rollout
    tokens: dict[str, Tensor] = field(default_factory=dict)  # old_logprobs, entropy, advantages, ...: [N]
    selected: Tensor | None = None     # bool [N]
    by_old: Tensor | None = None       # bool [N] what the rollout's log-probs select
    sums: dict[str, Tensor] | None = None  # over this rank's tokens, of loss and metrics; None: no step was made

    def over_all_ranks(self, values: list[Tensor]) -> Tensor:
        return over_all_ranks(values, self.batches, self.n_tokens)


def mini_batches(groups: list[list[Response]], size: int, budget: int, device: torch.device) -> list[MiniBatch]:
    """`size` groups each, in order. A rest of less than half of it joins the one before: AdamW's steps are alike in length,
    however few tokens they are a mean of."""
    minis, starts = [], list(range(0, len(groups), size))
    if len(starts) > 1 and 2 * (len(groups) - starts[-1]) < size:
        del starts[-1]
    for start, end in zip(starts, [*starts[1:], len(groups)]):
        part = groups[start:end]
        minis.append(MiniBatch(part, *micro_batches([r for group in part for r in group], budget, device), len(minis)))
    return minis


def micro_batches(responses: list, budget: int, device: torch.device) -> tuple[list[MicroBatch], int]:
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
        rows = [(SimpleNamespace(prompt=np.zeros(1, np.int64), tokens=none, sampler_logprobs=none, advantages=none,
                                 score=SimpleNamespace(reward=0.0)), 0)]

    def pad(arrays, dtype=torch.float32):
        return pad_sequence([torch.as_tensor(a, dtype=dtype) for a in arrays], batch_first=True).to(device)

    return MicroBatch(
        input_ids=pad([np.concatenate([r.prompt, r.tokens]) for r, _ in rows], torch.long),
        prompt_lengths=torch.tensor([len(r.prompt) for r, _ in rows], device=device),
        targets=pad([r.tokens for r, _ in rows], torch.long),
        mask=pad([np.ones(len(r.tokens)) for r, _ in rows], torch.bool),
        position=pad([start + np.arange(len(r.tokens)) for r, start in rows], torch.long),
        right=torch.tensor([r.score.reward for r, _ in rows], device=device),
        advantages=pad([r.advantages for r, _ in rows]),
        sampler_logprobs=pad([r.sampler_logprobs for r, _ in rows]),
    )


def over_all_ranks(values: list[Tensor], batches: list[MicroBatch], n_tokens: int) -> Tensor:
    """[B, T] a micro-batch and rank -> [N], in an order that depends neither on micro-batches nor on ranks."""
    flat = torch.zeros(n_tokens, dtype=values[0].dtype, device=values[0].device)
    for value, m in zip(values, batches):
        flat[m.position[m.mask]] = value[m.mask]
    dist.all_reduce(flat)
    return flat
