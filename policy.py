"""The policy, as it is trained."""

import functools
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm
from transformers import AutoModelForCausalLM

import reward
from loss import ADVANTAGES, logprobs_and_entropy
from support.batches import MicroBatch, any_rank, derive_seed, micro_batches, over_all_ranks, start_distributed
from support.checkpoints import last_line
from support.samplers import HFSampler, Sample, VLLMSampler, entropy_of, eos_token_ids


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


@torch.no_grad()
def no_grad_pass(policy: Policy, batches: list[MicroBatch]) -> list[tuple[Tensor, Tensor]]:
    """[(logprobs, entropy)] a micro-batch."""
    return [policy(m.input_ids, m.prompt_lengths, m.targets, m.mask) for m in batches]


