"""RL with verifiable rewards and a hold on policy entropy (Cui et al. 2025).

    python train.py                                             # GRPO on the embedded countdown model, 2 CPU cores
    python train.py --loss kl_cov                               # ... and the entropy stays up
    torchrun --standalone --nproc_per_node 2 train.py           # the same job on two processes
    torchrun --standalone --nproc_per_node 8 train.py --preset 7b --loss kl_cov         # the paper's, 8 GPUs
    python train.py --resume runs/grpo-seed1                    # go on from its newest checkpoint

Every field of Config is an option: `--field value`. A run writes runs/<name>/{config.json, metrics.jsonl,
samples/, selected/, checkpoints/, hf/}. main() at the end of the file is the algorithm; what it calls stands
above it, in order, in loss.py and in policy.py (model, samplers, rollouts, micro-batches). Beside the method:
options.py (what cannot work is refused), checkpoints.py, measure.py (what a run logs).
"""

import hashlib
import inspect
import itertools
import json
import math
import os
import signal
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import reward
from support.checkpoints import Checkpoints, fingerprint
from eval import evaluate
from loss import LOSSES, select_random, tis_weights
from measure import (Log, Probe, response_metrics, rollout_metrics, selected_metrics, selected_rows, timed,
                     token_metrics)
from support.options import (check, entropy_targets, load_tokenizer, parse_args, refuse, run_folder, saved_config,
                     uses_vllm)
from policy import (HFSampler, MicroBatch, Policy, VLLMSampler, all_equal, any_rank, derive_seed, generate,
                    hf_weights, last_line, load_policy, micro_batches, no_grad_pass, over_all_ranks, save_hf,
                    score, set_advantages, start_distributed)

# =========================================================================================================
# Settings. The defaults are the embedded run; a comment ends with the paper's value (7B; 32B where it differs)
# =========================================================================================================


@dataclass
class Config:
    name: str | None = None              # run folder under runs/; None: <loss>-seed<seed>
    overwrite: bool = False              # replace a run folder that exists
    resume: str | None = None            # run folder to go on with, under its settings unless given again
    seed: int = 1
    # model and data
    model: str = "tiny/base"             # path or hub name                           paper: Qwen2.5-7B; 32B
    trust_remote_code: bool = False      # run the Python code that a model brings along
    train_data: str = "tiny/train.jsonl"  # jsonl or hub id                            paper: DAPO-Math-17k
    val_data: str = "tiny/val.jsonl"     # several: comma-separated
    max_prompt_tokens: int = 32          # longer prompts are left out, and counted    paper: 2048
    max_response_tokens: int = 56        #                                             paper: 8192
    # generate
    prompts_per_step: int = 32           #                                             paper: 256
    group_size: int = 16                 # responses a prompt                          paper: 8
    max_gen_rounds: int = 4              # of dynamic sampling                         paper: 3
    temperature: float = 1.0             # of sampling, log-probs and entropy alike    paper: 1
    sampler: str = "auto"                # vllm, hf; auto: vllm on CUDA, hf on a CPU   paper: vllm
    tensor_parallel: int = 1             # ranks that share one vLLM engine            paper: 2
    gpu_memory_utilization: float = 0.3  # vLLM's share of a GPU, beside the trainer
    # score
    advantage: str = "grpo"              # grpo, rloo, reinforce_pp, reinforce_pp_baseline
    score_workers: int = 2               # verifier processes a rank
    score_timeout: float = 5.0           # seconds a response
    overlong_buffer: int = 0             # tokens before the limit that cost reward (DAPO); 0: off
    # loss: an option that is None keeps the loss's own default (loss.py)
    loss: str = "grpo"                   # pg grpo clip_higher clip_cov kl_cov entropy_bonus ref_kl top_entropy
    clip_ratio_low: float | None = None  #                                             paper: 0.2; clip_cov 1
    clip_ratio_high: float | None = None  #                           paper: 0.2; clip_higher 0.28; clip_cov 1
    clip_cov_ratio: float = 0.01         # fraction of tokens                          paper: 2e-4
    clip_cov_lb: float = 1.0             #                                             paper: 1
    clip_cov_ub: float = 5.0             #                                             paper: 5
    kl_cov_ratio: float = 0.05           # fraction of tokens                          paper: 2e-3; 2e-4
    ppo_kl_coef: float = 1.0             #                                             paper: 1
    entropy_coeff: float = 0.01          #                                             paper: 1e-4 to 1e-2 (Fig. 9)
    entropy_target: str | None = None    # entropy_bonus: nats, or a metrics.jsonl whose entropy it shall follow
    entropy_gain: float = 0.03           # added to entropy_coeff for each nat below the target, every step
    kl_loss_coef: float = 0.01           #                                             paper: 1e-3 to 1e-1 (Fig. 10)
    top_entropy_ratio: float = 0.2       #                                             Wang et al.: 0.2
    keep: str = "top"                    # top_entropy: top, or bottom as a control
    cov_scope: str = "mini"              # select over the mini-batch of all ranks; micro: as the published code
    cov_logprobs: str = "current"        # scores of later mini-batches: one more pass; old: reuse, for free
    selection: str = "cov"               # random: the same count, by chance (control)
    tis_cap: float | None = None         # cap of the sampler's importance weights; None: weight 1
    # update
    mini_batch_prompts: int = 4          # prompts an optimizer step                   paper: 32
    micro_batch_tokens: int = 1536       # padded tokens a forward pass                paper: 20480 to 30720
    lr: float = 1.5e-4                   #                                             paper: 5e-7; 1e-6
    warmup_steps: int = 5                # linear, then constant
    weight_decay: float = 0.0            #                                             paper: 0
    max_grad_norm: float = 1.0           #                                             paper: 1
    grad_checkpointing: bool = False     # recompute decoder layers in backward
    max_steps: int = 150                 # rollouts                                    paper: about 300
    # evaluate, log, save
    eval_every: int = 10                 # steps; 0: only before and after             paper: 4
    val_samples: int = 2                 # responses a problem
    val_temperature: float = 1.0         #                                             paper: 0 or 0.6
    probe_states: int = 2048             # states whose entropy change is compared with the theory; 0: off
    samples_every: int = 10              # steps between files of samples
    save_every: int = 0                  # steps between HF exports; 0: only at the end
    checkpoint_every: int = 10           # steps between checkpoints to resume from; 0: only on SIGTERM
    keep_checkpoints: int = 2            # the newest ones
    wandb: str | None = None             # project name


PRESETS = {
    "7b": dict(model="Qwen/Qwen2.5-7B", train_data="open-r1/DAPO-Math-17k-Processed:en:train",
               val_data="HuggingFaceH4/MATH-500:test", max_prompt_tokens=2048, max_response_tokens=8192,
               prompts_per_step=256, group_size=8, mini_batch_prompts=32, max_gen_rounds=3, tensor_parallel=2,
               score_workers=8, lr=5e-7, warmup_steps=0, max_steps=300, clip_cov_ratio=2e-4, kl_cov_ratio=2e-3,
               micro_batch_tokens=20480, grad_checkpointing=True, eval_every=4, val_samples=1, val_temperature=0.0),
}
PRESETS["32b"] = dict(PRESETS["7b"], model="Qwen/Qwen2.5-32B", lr=1e-6, kl_cov_ratio=2e-4, tensor_parallel=4)


# =========================================================================================================
# Data
# =========================================================================================================


def load_data(cfg: Config, tokenizer) -> tuple[list[dict], dict[str, list[dict]], int]:
    """-> (training problems, {source: validation problems}, number of training problems left out as too long).

    ValueError, one line, for a broken row, for two validation sets of one name, and where no prompt fits.
    """
    problems = reward.load_problems(cfg.train_data)
    val_sets = [reward.load_problems(path) for path in cfg.val_data.split(",")]
    vals = {val[0]["source"]: val for val in val_sets}
    if len(vals) < len(val_sets):
        raise ValueError(f"--val_data {cfg.val_data}: two sets have the same source in their first row; rename one")
    for problem in itertools.chain(*val_sets):
        if (length := len(reward.format_prompt(problem, tokenizer))) > cfg.max_prompt_tokens:
            raise ValueError(f"--val_data: a prompt of {problem['source']} has {length} tokens; raise --max_prompt_tokens")
    fit = [p for p in problems if len(reward.format_prompt(p, tokenizer)) <= cfg.max_prompt_tokens]
    if not fit:
        raise ValueError(f"{cfg.train_data}: every prompt is longer than --max_prompt_tokens {cfg.max_prompt_tokens}")
    return fit, vals, len(problems) - len(fit)


def digest(problems) -> str:
    """Of the rows in their order: the position in the stream means nothing in others."""
    sha = hashlib.sha256()
    for problem in problems:
        sha.update(json.dumps(problem, default=str).encode())
    return sha.hexdigest()


def shuffled_epochs(problems: list[dict], seed: int):
    """An endless stream of problems; after n of them, its whole state is n."""
    for epoch in itertools.count():
        for i in np.random.default_rng([seed, epoch]).permutation(len(problems)):
            yield problems[i]


# =========================================================================================================
# Update: an optimizer step on one mini-batch of all ranks
# =========================================================================================================


def loss_options(cfg: Config) -> dict:
    """The keyword options of the chosen loss that Config holds: kl_cov -> kl_cov_ratio, ppo_kl_coef."""
    names = inspect.signature(LOSSES[cfg.loss]).parameters
    return {k: v for k, v in vars(cfg).items() if k in names and v is not None}


def select_tokens(cfg: Config, logprobs: Tensor, tokens: dict[str, Tensor], seed: int) -> Tensor:
    """The loss's own selection, on the N tokens of a mini-batch of all ranks as if they were one call. -> bool [N]

    `logprobs` [N] are the scores' policy; `tokens` holds old_logprobs, advantages, entropy [N].
    """
    generator = torch.Generator().manual_seed(seed)  # the same on every rank
    options = loss_options(cfg)
    options |= {"generator": generator} if cfg.loss == "clip_cov" else {}
    options |= {"entropy": tokens["entropy"]} if cfg.loss == "top_entropy" else {}
    mask = torch.ones_like(logprobs, dtype=torch.bool)
    _, stats = LOSSES[cfg.loss](logprobs, tokens["old_logprobs"], tokens["advantages"], mask, **options)
    if cfg.selection == "cov":
        return stats["selected"]
    candidates = stats["pg_clipfrac"] == 0 if cfg.loss == "clip_cov" else mask
    return select_random(candidates, count=int(stats["selected"].sum()), generator=generator)


def update(cfg: Config, policy: Policy, optimizer, batches: list[MicroBatch], n_tokens: int,
           selected: Tensor | None) -> dict[str, Tensor] | None:
    """One optimizer step on the token-mean over the mini-batch of all ranks.

    selected: bool [N], or None: the loss selects in each micro-batch, if it does. -> this rank's sums over tokens;
    None if loss or gradient were not finite: then nothing was changed
    """
    options, sums = loss_options(cfg), {}
    if selected is not None and cfg.loss == "top_entropy":
        options["kept_fraction"] = selected.float().mean()
    for m in batches:
        logprobs, entropy = policy(m.input_ids, m.prompt_lengths, m.targets, m.mask)             # [B, T]
        if selected is not None:
            options["selected"] = selected[m.position] & m.mask
        if cfg.loss == "entropy_bonus":
            options["entropy"] = entropy      # of this policy: it carries gradient
        if cfg.loss == "top_entropy":
            options["entropy"] = m.entropy
        if cfg.loss == "ref_kl":
            options["ref_logprobs"] = m.ref_logprobs
        advantages = m.advantages
        if cfg.tis_cap is not None:  # on the advantage, so that a penalty keeps its size
            advantages = advantages * tis_weights(m.old_logprobs, m.sampler_logprobs, m.mask, cap=cfg.tis_cap)
        token_loss, stats = LOSSES[cfg.loss](logprobs, m.old_logprobs, advantages, m.mask, **options)
        # FSDP averages gradients over the ranks: times their number, a sum over the global N is the token-mean
        (token_loss.sum() / n_tokens * dist.get_world_size()).backward()
        for key, value in {"pg_loss": token_loss.detach(), **stats}.items():
            sums[key] = sums.get(key, 0) + value.double().sum()
    grad_norm = nn.utils.clip_grad_norm_(policy.parameters(), cfg.max_grad_norm)
    sums["grad_norm"] = (grad_norm.full_tensor() if isinstance(grad_norm, DTensor) else grad_norm).double()
    finite = bool(torch.isfinite(sums["grad_norm"] + sums["pg_loss"]))
    skip = any_rank(not finite, grad_norm.device)
    if not skip:
        optimizer.step()
    optimizer.zero_grad()
    return None if skip else sums


# =========================================================================================================
# Measurements, validation, resuming
# =========================================================================================================


def update_metrics(updates: list[dict[str, Tensor] | None], n_tokens: list[int]) -> dict[str, float]:
    """Means over a step's updates, or over the tokens that they trained on; None: a skipped one. Collective."""
    done = [(update, N) for update, N in zip(updates, n_tokens) if update is not None]
    metrics = {"actor/skipped": len(updates) - len(done)}
    if not done:
        return metrics
    updates, n_tokens = zip(*done)
    metrics["actor/grad_norm"] = torch.stack([update.pop("grad_norm") for update in updates]).mean().item()
    sums = torch.stack([sum(update[key] for update in updates) for key in updates[0]])
    dist.all_reduce(sums)
    for key, value in zip(updates[0], (sums / sum(n_tokens)).tolist()):
        metrics["cov/selected" if key == "selected" else f"actor/{key}"] = value
    return metrics


def validate(cfg: Config, sampler, vals: dict[str, list[dict]]) -> dict[str, float]:
    metrics = {}
    for name, problems in vals.items():
        result = evaluate(sampler, problems, n=cfg.val_samples, temperature=cfg.val_temperature,
                          max_tokens=cfg.max_response_tokens, seed=cfg.seed, workers=cfg.score_workers,
                          timeout=cfg.score_timeout)
        metrics |= {f"val/{name}/{key}": value for key, value in result.items() if key != "samples"}
    return metrics


def restore(cfg: Config, checkpoints: Checkpoints, policy: Policy, optimizer, state: dict) -> bool:
    """Weights, optimizer and `state` of the run's newest checkpoint; False if it has none yet. Collective.

    ValueError if its model or data are others than those of `state`.
    """
    started_with = saved_config(cfg.resume, Config)["entropy_coeff"]  # before rank 0 can write another config.json
    saved = checkpoints.newest()
    if saved is None:
        return False
    for key, what in (("model", "weights of --model"), ("data", "problems, --train_data or --val_data,")):
        if saved[key] != state[key]:
            raise ValueError(f"--resume {cfg.resume}: the {what} are not those that the run began with")
    checkpoints.load(policy, optimizer, saved["step"])
    if cfg.entropy_target and cfg.entropy_coeff == started_with:
        cfg.entropy_coeff = saved["entropy_coeff"]  # the controller goes on where it was
    state |= saved | {"config": vars(cfg)}
    return True


# =========================================================================================================
# The algorithm
# =========================================================================================================


def main():
    try:
        cfg = parse_args(sys.argv[1:], Config, PRESETS)
        check(cfg, int(os.environ.get("WORLD_SIZE", 1)))
        tokenizer = load_tokenizer(cfg)
        problems, vals, too_long = load_data(cfg, tokenizer)
        targets = entropy_targets(cfg.entropy_target) if cfg.entropy_target else None
    except (ValueError, OSError) as error:
        refuse(error)

    if any(p["task"] != "countdown" for p in itertools.chain(problems, *vals.values())):
        reward.start_workers(cfg.score_workers)  # before CUDA
    device = start_distributed()
    rank0 = dist.get_rank() == 0
    torch.manual_seed(derive_seed(cfg.seed, dist.get_rank()))
    policy_options = dict(temperature=cfg.temperature, grad_checkpointing=cfg.grad_checkpointing,
                          trust_remote_code=cfg.trust_remote_code)
    try:
        policy = load_policy(cfg.model, tokenizer, device, **policy_options)
    except Exception as error:  # each kind of broken or unsupported model raises its own
        refuse(ValueError(f"--model {cfg.model}: {last_line(error)}"))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, fused=True)
    ref_policy = load_policy(cfg.model, tokenizer, device, **policy_options) if cfg.loss == "ref_kl" else None
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if uses_vllm(cfg):
        sampler = VLLMSampler(cfg.model, tokenizer, dtype=dtype, tensor_parallel_size=cfg.tensor_parallel,
                              max_model_len=cfg.max_prompt_tokens + cfg.max_response_tokens,
                              gpu_memory_utilization=cfg.gpu_memory_utilization, seed=cfg.seed,
                              trust_remote_code=cfg.trust_remote_code)
    else:
        sampler = HFSampler(cfg.model, tokenizer, device=device, dtype=dtype,
                            trust_remote_code=cfg.trust_remote_code)

    # all that the next step depends on beside weights, optimizer and config: each random draw has its own seed
    state = {"step": 0, "drawn": 0, "skipped_in_a_row": 0, "config": vars(cfg), "model": fingerprint(policy),
             "data": digest(itertools.chain(problems, *vals.values()))}
    checkpoints = Checkpoints(run_folder(cfg) / "checkpoints", cfg.keep_checkpoints)
    config = {key: value for key, value in vars(cfg).items() if key != "resume"}
    try:
        resumed = cfg.resume and restore(cfg, checkpoints, policy, optimizer, state)
        log = Log(run_folder(cfg), config, rank0, None if not cfg.resume else state["step"] if resumed else -1)
    except (ValueError, OSError) as error:
        refuse(error)
    if resumed:
        sampler.load(hf_weights(policy, dtype))
    selects = cfg.loss in ("clip_cov", "kl_cov", "top_entropy")
    if cfg.loss == "kl_cov" and cfg.mini_batch_prompts == cfg.prompts_per_step:
        log.say("kl_cov does nothing with one update a rollout (log pi = log pi_old): lower --mini_batch_prompts")
    if not resumed:
        log.write({"step": 0, **validate(cfg, sampler, vals)})
    if too_long:
        log.say(f"{too_long} prompts longer than --max_prompt_tokens are left out")
    stream = itertools.islice(shuffled_epochs(problems, cfg.seed), state["drawn"], None)
    stopping = []  # a signal's handler may run at any moment: it only takes note
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    stop = False
    for step in range(state["step"] + 1, cfg.max_steps + 1):
        timing: dict[str, float] = {}
        last = step == cfg.max_steps
        evaluates = last or cfg.eval_every > 0 and step % cfg.eval_every == 0
        step_start = time.perf_counter()
        groups, sampled, rounds = [], [], 0
        while len(groups) < cfg.prompts_per_step and rounds < cfg.max_gen_rounds:
            # ==== 1. generate: responses of the current policy ============================================
            with timed(timing, "gen"):
                n = min(cfg.prompts_per_step, 2 * (cfg.prompts_per_step - len(groups)))  # about half will do
                drawn = list(itertools.islice(stream, n))
                rollouts = generate(cfg, sampler, drawn, derive_seed(cfg.seed, step, rounds))
                state["drawn"] += n
                rounds += 1

            # ==== 2. score: verify, drop groups that are all right or all wrong (dynamic sampling) ========
            with timed(timing, "score"):
                scored = score(cfg, sampler, rollouts)
                sampled += scored
                groups += [group for group in scored if not all_equal(group)]
        sampler.sleep()
        groups = groups[:cfg.prompts_per_step]
        metrics = {"step": step, **rollout_metrics(sampled, rounds), "rollout/groups": len(groups)}
        if not groups:
            log.say(f"step {step}: every group is all right or all wrong after {rounds} rounds; no update")
        elif cfg.loss == "kl_cov" and len(groups) <= cfg.mini_batch_prompts < cfg.prompts_per_step:
            log.say(f"step {step}: groups for one update only, and kl_cov does nothing on the first")

        # ==== 3. log-probs: of the policy that sampled, from the training model ===========================
        minis = []  # (micro-batches of this rank, N, {name: [N] tokens of all ranks})
        with timed(timing, "logprob"):
            if groups:
                set_advantages(cfg.advantage, groups)
            for i in range(0, len(groups), cfg.mini_batch_prompts):
                responses = [r for group in groups[i:i + cfg.mini_batch_prompts] for r in group]
                batches, N = micro_batches(responses, cfg.micro_batch_tokens, device)
                for m, (logprobs, entropy) in zip(batches, no_grad_pass(policy, batches)):
                    m.old_logprobs, m.entropy = logprobs, entropy
                if ref_policy is not None:
                    for m, (logprobs, _) in zip(batches, no_grad_pass(ref_policy, batches)):
                        m.ref_logprobs = logprobs
                    ref_policy.reshard()
                minis.append((batches, N, {k: over_all_ranks([getattr(m, k) for m in batches], batches, N)
                                           for k in ("old_logprobs", "entropy", "advantages", "sampler_logprobs")}))
        with timed(timing, "measure"):
            tokens, probe = {}, None  # of the whole step: {name: [N]}
            if minis:
                tokens = {name: torch.cat([mini[name] for _, _, mini in minis]) for name in minis[0][2]}
                metrics |= token_metrics(tokens) | response_metrics(groups, tokens)
            if minis and evaluates and cfg.probe_states:
                probe = Probe(policy, groups, cfg.mini_batch_prompts * cfg.group_size, cfg.probe_states,
                              cfg.micro_batch_tokens, device)
            if minis and targets:  # an integral controller
                gap = targets[min(step, len(targets)) - 1] - metrics["actor/entropy"]
                if math.isfinite(gap):
                    cfg.entropy_coeff = max(0.0, cfg.entropy_coeff + cfg.entropy_gain * gap)

        # ==== 4. update: select tokens over each mini-batch, then one optimizer step on it ================
        updates, overlaps, selections = [], [], []
        for group in optimizer.param_groups:
            group["lr"] = cfg.lr * min(1.0, step / max(1, cfg.warmup_steps))
        for i, (batches, N, mini) in enumerate(minis):
            with timed(timing, "update"):
                selected = None
                if selects and cfg.cov_scope == "mini":
                    seed = derive_seed(cfg.seed, step, i)
                    selected = select_tokens(cfg, mini["old_logprobs"], mini, seed)
                    if step == 1 and i == 0:
                        log.say(f"{cfg.loss} selects {int(selected.sum())} of the first mini-batch's {N} tokens")
                    if i > 0 and cfg.cov_logprobs == "current" and cfg.loss != "top_entropy":
                        old_selected = selected
                        logprobs = [logprobs for logprobs, _ in no_grad_pass(policy, batches)]
                        selected = select_tokens(cfg, over_all_ranks(logprobs, batches, N), mini, seed)
                        if selected.any() and cfg.selection == "cov":
                            overlaps.append(((selected & old_selected).sum() / selected.sum()).item())
                    selections.append(selected)
                torch.manual_seed(derive_seed(cfg.seed, step, i, dist.get_rank()))  # clip_cov in micro-batches draws
                updates.append(update(cfg, policy, optimizer, batches, N, selected))
                state["skipped_in_a_row"] = 0 if updates[-1] else state["skipped_in_a_row"] + 1
            if state["skipped_in_a_row"] == 3:
                first = i * cfg.mini_batch_prompts
                path = log.save_batch(step, groups[first:first + cfg.mini_batch_prompts], mini)
                log.say(f"stopped: loss or gradient of three updates in a row were not finite; see {path}")
                checkpoints.wait()
                sys.exit(1)
            if probe and i == 0 and len(minis) > 1:
                with timed(timing, "measure"):
                    metrics |= probe.change("first")

        # ==== 5. sync: the new weights into the sampler; measure, evaluate, save, log =====================
        if probe:  # before the sampler takes its memory back
            with timed(timing, "measure"):
                metrics |= probe.change("step")
            probe = None
        with timed(timing, "sync"):
            sampler.wake()
            sampler.load(hf_weights(policy, dtype))
        rows = None
        with timed(timing, "measure"):
            if updates:
                metrics |= update_metrics(updates, [N for _, N, _ in minis])
            if selections:
                selected = torch.cat(selections)
                metrics |= selected_metrics(selected, tokens)
                if evaluates and rank0 and cfg.loss != "top_entropy":  # a fifth of all tokens is no list to read
                    rows = selected_rows(tokenizer, sampled, groups, selected, tokens)
            if overlaps:
                metrics["cov/overlap"] = sum(overlaps) / len(overlaps)
        timing["step"] = time.perf_counter() - step_start
        n_generated = sum(len(r.tokens) for group in sampled for r in group)
        metrics |= {f"timing_s/{phase}": seconds for phase, seconds in timing.items()}
        metrics |= {"actor/lr": optimizer.param_groups[0]["lr"], "tokens_per_s": n_generated / timing["step"]}
        if targets:
            metrics["actor/entropy_coeff"] = cfg.entropy_coeff
        if evaluates:
            metrics |= validate(cfg, sampler, vals)
        log.write(metrics, sampled if cfg.samples_every and step % cfg.samples_every == 0 else None, rows)
        state |= {"step": step, "entropy_coeff": cfg.entropy_coeff}
        stop = any_rank(bool(stopping), device)
        if stop or cfg.checkpoint_every and (last or step % cfg.checkpoint_every == 0):
            checkpoints.save(policy, optimizer, state)
        if cfg.save_every and step % cfg.save_every == 0 and not last:
            save_hf(policy, tokenizer, log.folder / f"hf/step_{step:06d}", dtype)
        if stop:
            break
    checkpoints.wait()
    exported = stop or save_hf(policy, tokenizer, log.folder / f"hf/step_{state['step']:06d}", dtype)
    if stop:
        log.say(f"SIGTERM: stopped after step {state['step']}; train.py --resume {log.folder} goes on")
    log.bar.close()
    dist.barrier()
    sampler.close()  # vLLM ends the default process group with its own
    if dist.is_initialized():
        dist.destroy_process_group()
    if not exported:
        sys.exit(1)


if __name__ == "__main__":
    main()
