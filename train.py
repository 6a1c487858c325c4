"""RL with verifiable rewards and a hold on policy entropy (Cui et al. 2025).

    python train.py                                             # GRPO on the embedded countdown model, 2 CPU cores
    python train.py --loss kl_cov                               # ... and the entropy stays up
    python train.py --preset hard                               # ... on a task where GRPO runs out of exploration
    python train.py --preset small                              # SmolLM2-135M, built by small/make.py; under an hour
    torchrun --standalone --nproc_per_node 8 --shutdown_timeout 3600 train.py --preset 7b --loss kl_cov   # the paper's
    python train.py --resume runs/grpo-seed1                    # go on from its newest checkpoint

Every field of Config is an option. main() at the end of the file is the algorithm; the phases that it names stand above
it, in order; losses and selections are in loss.py; what is no method, its options too, is in support/.
"""

import os
import sys
from dataclasses import dataclass
from typing import Literal

from support.options import Bookkeeping, announce, check, check_method, entropy_targets, parse_args, refuse, run_path, uses_vllm

# === Settings. The defaults are the embedded run; in brackets the paper's, 7B; 32B where it differs ============
@dataclass
class Config(Bookkeeping):
    seed: int = 1  # of everything that is drawn
    # model and data
    model: str = "tiny/base"  # path or hub name (paper: Qwen2.5-7B; 32B)
    train_data: str = "tiny/train.jsonl"  # jsonl, hub id or reasoning_gym:task?option=value (DAPO-Math-17k)
    val_data: str = "tiny/val.jsonl"  # several: comma-separated
    max_prompt_tokens: int = 32  # longer prompts are left out, and counted (paper: 2048)
    max_response_tokens: int = 56  # longer responses are cut (paper: 8192)
    # generate
    prompts_per_step: int = 32  # prompts a rollout (paper: 256)
    group_size: int = 16  # responses a prompt (paper: 8)
    max_gen_rounds: int = 4  # of dynamic sampling (paper: 10)
    oversample: bool = False  # as many prompts a round as will do at the share of usable groups so far (on GPUs: on)
    min_accuracy: float = 0.0  # a group is kept from this share of right responses on, unless all are wrong ...
    max_accuracy: float = 1.0  # ... up to this one, unless all are right (PRIME: 0.2 to 0.8)
    temperature: float = 1.0  # of sampling, log-probs and entropy alike (paper: 1)
    # score
    advantage: Literal["grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "prime"] = "grpo"  # baseline of a response
    prm_lr: float = 3e-4  # prime: learning rate of its reward model (paper: 1e-6)
    prm_beta: float = 0.05  # prime: weight of sum q in its cross entropy (paper: 0.05)
    overlong_buffer: int = 0  # tokens before the limit that cost reward (DAPO); 0: off
    # which loss: a function of loss.py
    loss: Literal["pg", "grpo", "clip_higher", "clip_cov", "kl_cov", "entropy_bonus", "ref_kl", "top_entropy"] = "grpo"
    clip_ratio_low: float = 0.2  # PPO's clip, downwards (paper: 0.2; clip_cov 1)
    clip_ratio_high: float = 0.2  # and upwards (paper: 0.2; clip_higher 0.28; clip_cov 1)
    clip_cov_ratio: float = 0.01  # fraction of the tokens that clip_cov drops (paper: 2e-4)
    clip_cov_lb: float = 1.0  # of those with a covariance above it (paper: 1)
    clip_cov_ub: float = 5.0  # and below it (paper: 5)
    kl_cov_ratio: float = 0.05  # fraction of the tokens that kl_cov pulls back (paper: 2e-3; 2e-4)
    ppo_kl_coef: float = 1.0  # kl_cov: how hard (paper: 1)
    entropy_coeff: float = 0.01  # entropy_bonus: weight (paper: 1e-4 to 1e-2, Fig. 9)
    entropy_target: str | None = None  # entropy_bonus: nats, or a metrics.jsonl whose entropy it shall follow
    entropy_gain: float = 0.03  # added to entropy_coeff for each nat below the target, every step
    kl_loss_coef: float = 0.01  # ref_kl: weight (paper: 1e-3 to 1e-1, Fig. 10)
    top_entropy_ratio: float = 0.2  # top_entropy: fraction of the tokens that is trained on (Wang et al.: 0.2)
    keep: Literal["top", "bottom"] = "top"  # top_entropy: bottom trains on the others, as a control
    cov_scope: Literal["mini", "micro"] = "mini"  # select over the mini-batch of all ranks; micro: as the published code
    cov_logprobs: Literal["current", "old"] = "current"  # scores of later mini-batches: one more pass; old: reuse, for free
    selection: Literal["cov", "random"] = "cov"  # random: the same count, by chance (control)
    tis_cap: float | None = None  # cap of the sampler's importance weights; None: weight 1
    # update
    mini_batch_prompts: int = 4  # prompts an optimizer step (paper: 32)
    lr: float = 1.5e-4  # learning rate of AdamW (paper: 5e-7; 1e-6)
    warmup_steps: int = 5  # linear, then constant (paper: 0)
    weight_decay: float = 0.0  # of AdamW (paper: 0)
    max_grad_norm: float = 1.0  # longer gradients are clipped (paper: 1)
    max_steps: int = 150  # rollouts (paper: about 300)

# what a loss, an advantage or --preset changes; "7b clip_cov": the loss under the preset
PRESETS = {
    "clip_higher": dict(clip_ratio_high=0.28),
    "top_entropy": dict(clip_ratio_high=0.28),
    "prime": dict(min_accuracy=0.2, max_accuracy=0.8),
    # a mini-batch has about 500 tokens, 4 of them a rollout: the paper's 2e-3 selects one token, 0.02 selects ten
    "small": dict(model="small/base", train_data="reasoning_gym:small?size=2000&seed=1", val_data="reasoning_gym:small?size=25&seed=2",
                  max_prompt_tokens=40, max_response_tokens=64, prompts_per_step=8, group_size=8, mini_batch_prompts=2,
                  clip_cov_ratio=0.02, kl_cov_ratio=0.02, lr=2e-5, max_steps=40, eval_every=4, score_workers=1, compile=True),
    "hard": dict(model="tiny/hard_base", train_data="tiny/hard_train.jsonl", val_data="tiny/hard_val.jsonl", max_prompt_tokens=8,
                 max_response_tokens=16, val_samples=8, clip_cov_ratio=0.02, kl_cov_ratio=0.01, max_steps=300),
    "7b": dict(model="Qwen/Qwen2.5-7B", train_data="open-r1/DAPO-Math-17k-Processed:en:train",
               val_data="HuggingFaceH4/MATH-500:test", max_prompt_tokens=2048, max_response_tokens=8192,
               prompts_per_step=256, group_size=8, mini_batch_prompts=32, max_gen_rounds=10, oversample=True, lr=5e-7,
               prm_lr=1e-6, warmup_steps=0, max_steps=300, clip_cov_ratio=2e-4, kl_cov_ratio=2e-3, tensor_parallel=2,
               micro_batch_tokens=20480, grad_checkpointing=True, eval_every=4, val_samples=1, val_temperature=0.0,
               score_workers=8, checkpoint_every=32),
    "7b clip_cov": dict(clip_ratio_low=1.0, clip_ratio_high=1.0),
}
PRESETS["32b"] = dict(PRESETS["7b"], model="Qwen/Qwen2.5-32B", lr=1e-6, kl_cov_ratio=2e-4, tensor_parallel=4,
                      gpu_memory_utilization=0.5)
PRESETS["32b clip_cov"] = PRESETS["7b clip_cov"]

if __name__ == "__main__":  # before the imports that take seconds: --help and a typo answer at once
    try:
        CFG = parse_args(sys.argv[1:], Config, PRESETS)
        check(CFG, int(os.environ.get("WORLD_SIZE", 1)))
    except ValueError as error:
        refuse(error)
    announce(CFG)

import functools
import inspect
import itertools
import signal
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

import reward
from eval import evaluate
from loss import (ADVANTAGES, LOSSES, SELECT, implicit_prm_loss, logprobs_and_entropy, prime_advantages, select_random,
                  tis_weights)
from support.batches import (MiniBatch, Response, any_rank, derive_seed, make_response, mini_batches,
                             start_distributed)
from support.checkpoints import Checkpoints, digest, fingerprint, last_line, shuffled_epochs
from support.mechanism import follow_entropy_target, measure_groups, measure_update, rollout_metrics, timed
from support.run_folder import RunFolder, check_sampler, check_update, finish, finish_step
from support.samplers import check_logits, decode, load_tokenizer, make_sampler, warn_of_lost_letters

# === The policy: a Hugging Face causal LM under FSDP2, with log-probs and entropy computed in chunks ==========

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
        """fully_shard() puts its own before this one: a forward pass without backward leaves the root's weights whole."""

    def logits(self, hidden: Tensor):
        return self.model.get_output_embeddings()(hidden)[:, :self.n_vocab]  # ids past the tokenizer's have p = 0

    def head(self, hidden: Tensor, targets: Tensor):
        return logprobs_and_entropy(self.logits(hidden), targets, self.temperature)

def load_policy(cfg: Config, tokenizer, device: torch.device) -> Policy:
    """fp32 master weights; bf16 compute on a GPU, fp32 on a CPU. Sharded block by block, then the root.

    A CPU process of its own needs no FSDP: a small model's update is a fifth faster. ValueError: it cannot be loaded.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(cfg.model, dtype="auto", trust_remote_code=cfg.trust_remote_code)
    except Exception as error:  # each kind of broken model raises its own
        raise ValueError(f"--model {cfg.model}: {last_line(error)}") from None
    if not hasattr(model.base_model, "layers"):
        raise ValueError(f"--model {cfg.model}: this architecture is not supported: its decoder has no .layers")
    model.config.tie_word_embeddings = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    if cfg.grad_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for layer in model.base_model.layers:
            layer.training = True  # transformers recomputes in training mode only; dropout inside stays off
    policy = Policy(model, len(tokenizer), cfg.temperature)
    check_logits(policy, cfg.model)
    if cfg.compile:
        for layer in model.base_model.layers:
            layer.compile(dynamic=True)
    if device.type == "cuda" or dist.get_world_size() > 1:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if device.type == "cuda" else None,
                                         reduce_dtype=torch.float32)
        for block in (*model.base_model.layers, policy):
            fully_shard(block, mesh=mesh, mp_policy=precision)
    return policy.float().to(device)  # after sharding: the whole model never exists in fp32

def hf_weights(policy: Policy, dtype: torch.dtype):
    """(HF name, full tensor) one at a time. Collective: every rank has to consume it to the end."""
    policy.reshard()
    for name, p in policy.model.state_dict().items():  # tied ones under each of their names
        p = p.detach().to(dtype) if p.is_floating_point() else p  # a buffer may hold integers
        yield name, p.full_tensor() if isinstance(p, DTensor) else p

# === Set-up ===================================================================================================

class Run:
    """Set up from the settings, resumed where it stopped; what the phases share. ValueError, OSError: one line."""

    def __init__(self, cfg: Config):
        check(cfg, int(os.environ.get("WORLD_SIZE", 1)))
        check_method(cfg, PRESETS, LOSSES, SELECT)
        self.cfg, self.probe, self.signals, self.stopped, vllm = cfg, None, [], False, uses_vllm(cfg)
        self.targets = entropy_targets(cfg.entropy_target) if cfg.entropy_target else None
        self.tokenizer = load_tokenizer(cfg, vllm)
        problems, self.vals = reward.load_data(cfg.train_data, cfg.val_data, self.tokenizer, cfg.max_prompt_tokens)
        everything = [*problems, *itertools.chain(*self.vals.values())]
        warn_of_lost_letters(self.tokenizer, everything)
        if any(problem["task"] in ("math", "code") for problem in everything):
            reward.start_workers(cfg.score_workers)
        self.device = start_distributed()
        torch.manual_seed(derive_seed(cfg.seed, dist.get_rank()))
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32  # of sampler and exports

        load = functools.partial(load_policy, cfg, self.tokenizer, self.device)
        adamw = functools.partial(torch.optim.AdamW, weight_decay=cfg.weight_decay, fused=True)
        self.policy = load()
        self.models = {"policy": (self.policy, adamw(self.policy.parameters(), lr=cfg.lr))}
        if cfg.advantage == "prime":
            prm = load()
            self.models["prm"] = prm, adamw(prm.parameters(), lr=cfg.prm_lr)
        needs_ref = cfg.advantage == "prime" or "ref_logprobs" in inspect.signature(LOSSES[cfg.loss]).parameters
        self.ref_policy = load() if needs_ref else None
        self.sampler = make_sampler(cfg, self.tokenizer, self.device, self.dtype, vllm)
        self.weights = functools.partial(hf_weights, self.policy, self.dtype)

        # beside weights and optimizers all that the next step depends on: each random draw has a seed of its own
        self.state = {"step": 0, "drawn": 0, "usable": 1.0, "skipped_in_a_row": 0, "entropy_coeff": cfg.entropy_coeff,
                      "model": fingerprint(self.policy), "data": digest(everything)}
        self.checkpoints = Checkpoints(run_path(cfg) / "checkpoints", cfg.keep_checkpoints)
        resumed = cfg.resume and self.checkpoints.restore(self.models, self.state)
        if not cfg.entropy_target:
            self.state["entropy_coeff"] = cfg.entropy_coeff  # with a target, the controller goes on where it was
        self.folder = RunFolder(run_path(cfg), vars(cfg), active=dist.get_rank() == 0,
                                resumed=self.state["step"] if resumed else -1 if cfg.resume else None)
        self.stream = itertools.islice(shuffled_epochs(problems, cfg.seed), self.state["drawn"], None)
        if resumed:
            self.sampler.load(self.weights())
        else:
            self.folder.write({"step": 0, **self.validate()})
        signal.signal(signal.SIGTERM, lambda *_: self.signals.append(True))  # at any moment: it only takes note

    def steps(self):
        """To max_steps, or to the end of the step in which SIGTERM came to any rank."""
        every = self.cfg.eval_every or self.cfg.max_steps
        for step in range(self.state["step"] + 1, self.cfg.max_steps + 1):
            self.metrics, self.started = {"step": step}, time.perf_counter()
            self.evaluates = step == self.cfg.max_steps or step % every == 0
            for (_, optimizer), lr in zip(self.models.values(), (self.cfg.lr, self.cfg.prm_lr)):
                optimizer.param_groups[0]["lr"] = lr * min(1.0, step / max(1, self.cfg.warmup_steps))
            yield step
            if self.stopped:
                return

    def validate(self) -> dict[str, float]:
        cfg, metrics = self.cfg, {}
        for name, problems in self.vals.items():
            result = evaluate(self.sampler, problems, n=cfg.val_samples, temperature=cfg.val_temperature,
                              max_tokens=cfg.max_response_tokens, seed=cfg.seed, workers=cfg.score_workers,
                              timeout=cfg.score_timeout)
            metrics |= {f"val/{name}/{key}": value for key, value in result.items() if key != "samples"}
        return metrics

# === 1. and 2. Rollout: responses, verdicts, groups ===========================================================

def rollout(run: Run) -> list[list[Response]]:
    """prompts_per_step groups with right and wrong responses, or as many as max_gen_rounds find (dynamic sampling)."""
    cfg, groups, run.sampled, rounds = run.cfg, [], [], 0
    while len(groups) < cfg.prompts_per_step and rounds < cfg.max_gen_rounds:
        missing = cfg.prompts_per_step - len(groups)
        n = min(cfg.prompts_per_step, 2 * missing)  # about half will do
        if cfg.oversample:  # few rounds: each waits for its longest response
            n = int(min(3 * cfg.prompts_per_step, (missing + missing**0.5) / run.state["usable"]))
        problems = list(itertools.islice(run.stream, n))
        run.state["drawn"] += n
        scored = score(run, generate(run, problems, derive_seed(cfg.seed, run.metrics["step"], rounds)))
        run.sampled += scored
        groups += [group for group in scored if teaches(cfg, group)]
        rounds += 1
        run.state["usable"] = (len(groups) + 1) / (len(run.sampled) + 1)  # of this step, or of the last one; never 0
    groups = groups[:cfg.prompts_per_step]
    run.metrics |= rollout_metrics(run.sampled, rounds, reward.STATUSES) | {"rollout/groups": len(groups)}
    return groups

@timed("gen")
def generate(run: Run, problems: list[dict], seed: int) -> list[tuple]:
    """This rank's share of the problems, `group_size` samples each. -> [(problem, prompt ids, [Sample] * G)]"""
    sampler, cfg = run.sampler, run.cfg
    share = problems[sampler.dp_rank::sampler.dp_size]
    prompts = [reward.format_prompt(problem, run.tokenizer) for problem in share]
    samples = sampler.generate(prompts, n=cfg.group_size, max_tokens=cfg.max_response_tokens,
                               temperature=cfg.temperature, seed=derive_seed(seed, sampler.dp_rank))
    return list(zip(share, prompts, samples, strict=True))

@timed("score")
def score(run: Run, rollouts: list[tuple]) -> list[list[Response]]:
    """Verify this rank's responses. -> the groups of all ranks, on every rank."""
    cfg, G, world = run.cfg, run.cfg.group_size, dist.get_world_size()
    if dist.get_rank() % (world // run.sampler.dp_size):
        rollouts = []  # the ranks of one vLLM engine hold the same samples: the first of them counts
    problems = [problem for problem, _, _ in rollouts for _ in range(G)]
    prompts = [prompt for _, prompt, _ in rollouts for _ in range(G)]
    samples = [sample for _, _, group in rollouts for sample in group]
    texts = [decode(run.tokenizer, sample.token_ids, prompt) for sample, prompt in zip(samples, prompts)]
    scores = reward.score_batch(texts, problems, truncated=[sample.finish_reason == "length" for sample in samples],
                                workers=cfg.score_workers, timeout=cfg.score_timeout)
    rewards = [score.reward + reward.overlong_penalty(len(sample.token_ids), cfg.max_response_tokens, cfg.overlong_buffer)
               for score, sample in zip(scores, samples)]
    responses = list(map(make_response, problems, prompts, samples, texts, scores, rewards))
    parts = [None] * world
    dist.all_gather_object(parts, [responses[i:i + G] for i in range(0, len(responses), G)])
    return [group for part in parts for group in part]

def teaches(cfg: Config, group: list[Response]) -> bool:
    """By the verdicts, not by the rewards: a group must not train on its length penalties alone."""
    accuracy = sum(r.score.reward for r in group) / len(group)
    return 0 < accuracy < 1 and cfg.min_accuracy <= accuracy <= cfg.max_accuracy

# === 3. Advantages and log-probs ==============================================================================

def set_advantages(run: Run, groups: list[list[Response]]):
    """response.advantages [T] of all responses of the step."""
    if not groups:
        return
    lengths = torch.tensor([[len(r.tokens) for r in group] for group in groups])                 # [P, G]
    if "prm" in run.models:
        per_token = prime(run, groups, lengths.flatten())                                        # [B, T]
    else:
        rewards = torch.tensor([[r.reward for r in group] for group in groups])                  # [P, G]
        advantages = ADVANTAGES[run.cfg.advantage](rewards, lengths)                             # [P, G]
        per_token = advantages.view(-1, 1).expand(-1, int(lengths.max()))                        # [B, T]
    for row, response in zip(per_token, itertools.chain(*groups)):
        response.advantages = row[:len(response.tokens)].numpy()

@timed("prm")
def prime(run: Run, groups: list[list[Response]], lengths: Tensor) -> Tensor:
    """PRIME: the reward model learns from the rollout's verdicts, then its process rewards become advantages. -> [B, T]

    q = log pi_prm - log pi_ref of each token; the update comes before q is read off ("before" in the published code).
    """
    cfg, (prm, optimizer), loss, parts = run.cfg, run.models["prm"], torch.zeros((), device=run.device), []
    minis = mini_batches(groups, cfg.mini_batch_prompts, cfg.micro_batch_tokens, run.device)
    for mini in minis:
        def cross_entropy(m):
            logprobs, _ = prm(m.input_ids, m.prompt_lengths, m.targets, m.mask)
            share = m.mask.any(1).sum() / (len(mini.groups) * cfg.group_size)  # of the mini-batch's responses
            part = share * implicit_prm_loss(logprobs, m.ref_logprobs, m.right, m.mask, beta=cfg.prm_beta)
            loss.add_(part.detach() / len(minis))
            return part
        for m, (ref_logprobs, _) in zip(mini.batches, no_grad_pass(run.ref_policy, mini.batches)):
            m.ref_logprobs = ref_logprobs
        optimizer_step(prm, optimizer, mini, cross_entropy, cfg.max_grad_norm)
    for mini in minis:
        passes = zip(mini.batches, no_grad_pass(prm, mini.batches))
        parts.append(mini.over_all_ranks([logprobs - m.ref_logprobs for m, (logprobs, _) in passes]).cpu())
    dist.all_reduce(loss)

    q = nn.utils.rnn.pad_sequence(torch.cat(parts).split(lengths.tolist()), batch_first=True)    # [B, T]
    mask = torch.arange(q.shape[1]) < lengths[:, None]
    right = torch.tensor([[r.score.reward for r in group] for group in groups])                  # [P, G]
    run.metrics |= {"prm/loss": loss.item(), "prm/reward": q[mask].mean().item(),
                    "prm/acc": ((q.sum(1) > 0) == right.flatten().bool()).float().mean().item()}
    to_go = q.flip(1).cumsum(1)
    return prime_advantages(q / (to_go.abs().max() + 1e-6), right, mask)

@torch.no_grad()
def no_grad_pass(policy: Policy, batches: list) -> list[tuple[Tensor, Tensor]]:
    """[(logprobs, entropy)] a micro-batch."""
    passes = [policy(m.input_ids, m.prompt_lengths, m.targets, m.mask) for m in batches]
    policy.reshard()  # without a backward pass the root's weights would stay whole
    return passes

@timed("logprob")
def log_probs(run: Run, groups: list[list[Response]]) -> list[MiniBatch]:
    """The step's mini-batches, with log-probs and entropy of the policy that sampled, from the training model."""
    minis = mini_batches(groups, run.cfg.mini_batch_prompts, run.cfg.micro_batch_tokens, run.device)
    for mini in minis:
        for m, (logprobs, entropy) in zip(mini.batches, no_grad_pass(run.policy, mini.batches)):
            m.old_logprobs, m.entropy = logprobs, entropy
        if "ref_logprobs" in inspect.signature(LOSSES[run.cfg.loss]).parameters:
            for m, (logprobs, _) in zip(mini.batches, no_grad_pass(run.ref_policy, mini.batches)):
                m.ref_logprobs = logprobs
        for name in ("old_logprobs", "entropy", "advantages", "sampler_logprobs"):
            mini.tokens[name] = mini.over_all_ranks([getattr(m, name) for m in mini.batches])
    return minis

# === 4. Update: select tokens, then an optimizer step on one mini-batch of all ranks ==========================

def asked_for(function, cfg: Config, **given) -> dict:
    """The keywords that a loss or a selection names: of `given`, or fields of Config (kl_cov: kl_cov_ratio, ppo_kl_coef)."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in {**vars(cfg), **given}.items() if name in names}

@timed("update")
def select(run: Run, mini: MiniBatch) -> Tensor | None:
    """The tokens that the loss acts on, chosen over the N tokens of all ranks as if they were one call. -> bool [N]

    None: the loss selects nothing, or in each micro-batch. Scores are those of the policy just before the optimizer step.
    """
    cfg, old = run.cfg, mini.tokens
    if cfg.loss not in SELECT or cfg.cov_scope == "micro":
        return None

    def choose(logprobs, entropy):
        seed = derive_seed(cfg.seed, run.metrics["step"], mini.index)
        generator = torch.Generator().manual_seed(seed)  # the same on every rank
        options = asked_for(SELECT[cfg.loss], cfg, entropy=entropy, generator=generator)
        mask = torch.ones_like(logprobs, dtype=torch.bool)
        selected = SELECT[cfg.loss](logprobs, old["old_logprobs"], old["advantages"], mask, **options)
        if cfg.selection == "random":
            selected = select_random(mask, count=int(selected.sum()), generator=generator)
        return selected

    mini.by_old = choose(old["old_logprobs"], old["entropy"])  # kept for the metric cov/overlap
    if mini.index == 0 or cfg.cov_logprobs == "old":
        return mini.by_old
    return choose(*map(mini.over_all_ranks, zip(*no_grad_pass(run.policy, mini.batches))))

def optimizer_step(policy: Policy, optimizer, mini: MiniBatch, loss_of, max_grad_norm: float) -> Tensor | None:
    """loss_of(micro-batch): its part of the mini-batch's mean. -> gradient norm; None: not finite on some rank, no step."""
    total = 0.0
    for m in mini.batches:
        loss = loss_of(m) * dist.get_world_size()  # FSDP averages gradients over the ranks
        loss.backward()
        total += loss.detach()
    norm = nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    finite = not any_rank(not torch.isfinite(norm + total), norm.device)
    if finite:
        optimizer.step()
    optimizer.zero_grad()
    return norm.double() if finite else None

@timed("update")
def update(run: Run, mini: MiniBatch):
    """One optimizer step on the token-mean of the loss over the mini-batch of all ranks; mini.sums: over its tokens."""
    cfg, sums = run.cfg, {}
    torch.manual_seed(derive_seed(cfg.seed, run.metrics["step"], mini.index, dist.get_rank()))  # clip_cov may draw
    share = None if mini.selected is None else mini.selected.float().mean()  # for a mean over the selected alone

    def part_of_token_mean(m):
        logprobs, entropy = run.policy(m.input_ids, m.prompt_lengths, m.targets, m.mask)         # [B, T]
        selected = None if mini.selected is None else mini.selected[m.position] & m.mask
        options = asked_for(LOSSES[cfg.loss], cfg, entropy=entropy, ref_logprobs=m.ref_logprobs, selected=selected,
                            selected_share=share, entropy_coeff=run.state["entropy_coeff"])
        advantages = m.advantages
        if cfg.tis_cap is not None:  # on the advantage, so that a penalty keeps its size
            advantages = advantages * tis_weights(m.old_logprobs, m.sampler_logprobs, m.mask, cap=cfg.tis_cap)
        token_loss, stats = LOSSES[cfg.loss](logprobs, m.old_logprobs, advantages, m.mask, **options)
        for key, value in {"pg_loss": token_loss.detach(), **stats}.items():
            sums[key] = sums.get(key, 0) + torch.where(m.mask, value, 0).double().sum()
        return torch.where(m.mask, token_loss, 0.0).sum() / mini.n_tokens

    norm = optimizer_step(run.policy, run.models["policy"][1], mini, part_of_token_mean, cfg.max_grad_norm)
    mini.sums = sums | {"grad_norm": norm} if norm is not None else None
    check_update(run, mini)

# === The algorithm ============================================================================================

def main(cfg: Config):
    try:
        run = Run(cfg)
    except (ValueError, OSError) as error:
        refuse(error)
    for step in run.steps():
        # ==== 1. generate: responses of the current policy ====================================================
        # ==== 2. score: verify; keep the groups that have right and wrong responses ===========================
        groups = rollout(run)
        run.sampler.sleep()

        # ==== 3. log-probs: advantages, and log-probs of the policy that sampled from the training model ======
        set_advantages(run, groups)
        minis = log_probs(run, groups)
        measure_groups(run, groups, minis)
        check_sampler(run)
        follow_entropy_target(run)

        # ==== 4. update: one optimizer step on each mini-batch, on the tokens of all ranks ====================
        for mini in minis:
            mini.selected = select(run, mini)
            update(run, mini)
            measure_update(run, mini, last=mini is minis[-1])

        # ==== 5. sync: the new weights into the sampler; evaluate, log, save ==================================
        with timed("sync"):
            run.sampler.wake()
            run.sampler.load(run.weights())
        finish_step(run, minis)
    finish(run)

if __name__ == "__main__":
    main(CFG)
