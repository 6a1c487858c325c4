"""Evaluation, benchmarks, the entropy law, figures and token analysis. train.py uses the first part.

    python eval.py bench MODEL --benchmarks aime24,math500,tiny/val.jsonl   # avg@k, pass@k with intervals
    python eval.py law runs/grpo-seed1 runs/grpo-seed2                      # R = -a exp(H) + b
    python eval.py plot runs/* --out results/entropy.png                    # what happened in one picture
    python eval.py tokens tiny/base tiny/val.jsonl --other runs/grpo-seed1/hf/step_000100
"""
import argparse
import collections
import json
import logging
import math
import os
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

import reward
from policy import HFSampler, Sample, VLLMSampler, entropy_of


# ---------------------------------------------------------------------------------------------------------
# Evaluation
# ---------------------------------------------------------------------------------------------------------

def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k of n samples, c of them right, hold a right one: 1 - C(n-c, k) / C(n, k).

    >>> pass_at_k(10, 3, 5)
    0.9166666666666667
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, got n={n}, c={c}, k={k}")
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def evaluate(sampler, problems, *, n, temperature, max_tokens, seed=0, workers=2, timeout=5.0) -> dict:
    """n responses a problem -> {"avg@n", "pass@n", "entropy", "length", "truncated", "samples"}.

    avg@n: share of right responses. entropy: mean -logprob of the sampled tokens, nats (None if greedy).
    length: mean tokens a response. truncated: share cut at max_tokens. samples: one record a response, in the
    order of the problems. Data-parallel ranks share the problems and all return the same result.
    """
    if temperature == 0 and n != 1:
        raise ValueError(f"greedy decoding (temperature 0) gives the same response n={n} times: set n to 1")
    mine = list(range(len(problems)))[sampler.dp_rank::sampler.dp_size]
    groups = sampler.generate([reward.format_prompt(problems[i], sampler.tokenizer) for i in mine], n=n,
                              max_tokens=max_tokens, temperature=temperature,
                              seed=seed * sampler.dp_size + sampler.dp_rank)    # another stream on each rank
    flat = [(i, j, sample) for i, group in zip(mine, groups) for j, sample in enumerate(group)]
    texts = sampler.tokenizer.batch_decode([s.token_ids for _, _, s in flat], skip_special_tokens=True)
    scores = reward.score_batch(texts, [problems[i] for i, _, _ in flat], workers=workers, timeout=timeout,
                                truncated=[s.finish_reason == "length" for _, _, s in flat])
    records = [{"problem": i, "sample": j, "response": text, "answer": score.answer, "status": score.status,
                "reward": score.reward, "length": len(s.token_ids), "logprob": sum(s.logprobs),
                "truncated": s.finish_reason == "length"}
               for (i, j, s), text, score in zip(flat, texts, scores)]
    if dist.is_initialized():
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, records)
        one_per_engine = gathered[::len(gathered) // sampler.dp_size]    # ranks of one engine hold the same
        records = [record for part in one_per_engine for record in part]
        records.sort(key=lambda record: (record["problem"], record["sample"]))
    return {**summarize(records, n, greedy=temperature == 0), "samples": records}


def summarize(records, n, greedy) -> dict:
    right = np.array([r["status"] == "right" for r in records]).reshape(-1, n)    # [problems, n]
    tokens = sum(r["length"] for r in records)
    return {f"avg@{n}": float(right.mean()),
            f"pass@{n}": float(np.mean([pass_at_k(n, int(c), n) for c in right.sum(axis=1)])),
            "entropy": None if greedy else -sum(r["logprob"] for r in records) / tokens,
            "length": tokens / len(records),
            "truncated": float(np.mean([r["truncated"] for r in records]))}


# ---------------------------------------------------------------------------------------------------------
# bench: the paper's seven benchmarks, or jsonl files
# ---------------------------------------------------------------------------------------------------------

class Benchmark(NamedTuple):
    dataset: str            # hub id, or path of a jsonl file
    config: str | None
    split: str | None
    problem: str            # name of its column
    answer: str
    rows: int | None        # expected
    n: int                  # samples a problem
    temperature: float
    task: str               # prompt form, see reward.format_prompt


BENCHMARKS = {    # as in the paper: AIME and AMC sampled 32 times at 0.6, the others greedy
    "aime24": Benchmark("HuggingFaceH4/aime_2024", None, "train", "problem", "answer", 30, 32, 0.6, "math"),
    "aime25": Benchmark("math-ai/aime25", None, "test", "problem", "answer", 30, 32, 0.6, "math"),
    "amc": Benchmark("AI-MO/aimo-validation-amc", None, "train", "problem", "answer", 83, 32, 0.6, "math"),
    "math500": Benchmark("HuggingFaceH4/MATH-500", None, "test", "problem", "answer", 500, 1, 0.0, "math"),
    "omni_math": Benchmark("KbsdJames/Omni-MATH", None, "test", "problem", "answer", 4428, 1, 0.0, "math"),
    "olympiad": Benchmark("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train", "question", "final_answer",
                          674, 1, 0.0, "math"),
    "minerva": Benchmark("math-ai/minervamath", None, "test", "question", "answer", 272, 1, 0.0, "math"),
}
PAPER = {    # Cui et al. 2025, Table 2, avg@k in percent
    "Qwen2.5-7B": {"average of 7": "GRPO 38.6, clip-higher 38.8, Clip-Cov 40.4, KL-Cov 40.6"},
    "Qwen2.5-32B": {"average of 7": "GRPO 45.8, clip-higher 47.2, Clip-Cov 50.3, KL-Cov 52.2",
                    "aime24": "GRPO 21.8, KL-Cov 36.8", "aime25": "GRPO 16.2, KL-Cov 30.8",
                    "math500": "GRPO 84.2, clip-higher 77.2, KL-Cov 84.6"},
}
CHUNK = 1000    # problems between two saves


def load_benchmark(name, spec: Benchmark) -> list[dict]:
    """Rows {"problem", "answer", "task", "source"}. ValueError if the dataset cannot be had."""
    if spec.split is None:
        return reward.load_problems(spec.dataset)
    import datasets
    try:
        table = datasets.load_dataset(spec.dataset, spec.config, split=spec.split)
    except Exception as error:    # the library raises a dozen types for what it cannot reach
        raise ValueError(f"cannot load dataset {spec.dataset} ({type(error).__name__}); with a network: "
                         f"hf download --repo-type dataset {spec.dataset}") from None
    absent = {spec.problem, spec.answer} - set(table.column_names)
    if absent:
        raise ValueError(f"dataset {spec.dataset} has no column {absent.pop()!r}, but {table.column_names}")
    if len(table) != spec.rows:
        print(f"warning: {name}: {spec.dataset} has {len(table)} rows, not {spec.rows}", file=sys.stderr)
    return [{"problem": row[spec.problem], "answer": answer_text(row[spec.answer]),
             "task": spec.task, "source": name} for row in table]


def answer_text(answer) -> str:
    if isinstance(answer, list):    # OlympiadBench: ["2", "3"]
        return ", ".join(map(answer_text, answer))
    if isinstance(answer, float) and answer.is_integer():    # AMC: 27.0
        return str(int(answer))
    return str(answer)


def load_tokenizer(model):
    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError):
        raise ValueError(f"{model}: no model folder with a tokenizer, nor a hub model in reach") from None


def bench(args):
    names, cuda = args.benchmarks.split(","), torch.cuda.is_available()
    for name in names:
        if name not in BENCHMARKS and not name.endswith(".jsonl"):
            raise ValueError(f"unknown benchmark {name!r}: give a .jsonl file or {', '.join(BENCHMARKS)}")
    if min(args.n, args.max_tokens) < 1 or args.temperature < 0:
        raise ValueError("--n and --max-tokens must be at least 1, --temperature at least 0")
    if "RANK" in os.environ:    # torchrun
        if cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    writer = not dist.is_initialized() or dist.get_rank() == 0
    tokenizer, sampler, results = load_tokenizer(args.model), None, {}
    out = Path(args.out or f"runs/bench/{args.model.strip('/').replace('/', '-')}")
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        spec = BENCHMARKS.get(name) or Benchmark(name, None, None, "", "", None, args.n, args.temperature, "")
        try:
            problems = load_benchmark(name, spec)
        except (ValueError, OSError) as error:
            if writer:
                print(f"skipped {name}: {error}", file=sys.stderr)
            continue
        settings = {"model": args.model, "benchmark": name, "problems": len(problems), "n": spec.n,
                    "temperature": spec.temperature, "max_tokens": args.max_tokens, "seed": args.seed}
        path = out / f"{Path(name).stem}.jsonl"    # the settings, then one line a response
        found, *records = [json.loads(line) for line in path.open()] if path.exists() else [settings]
        if found != settings:
            raise ValueError(f"{path} is from another run, {found}, not {settings}: choose another --out")
        for start in range(len(records) // spec.n, len(problems), CHUNK):    # continues an interrupted run
            if sampler is None and cuda:
                sampler = VLLMSampler(args.model, tokenizer, dtype=torch.bfloat16, gpu_memory_utilization=0.9,
                                      tensor_parallel_size=args.tensor_parallel)
            elif sampler is None:
                sampler = HFSampler(args.model, tokenizer, device="cpu", dtype=torch.float32)
            result = evaluate(sampler, problems[start:start + CHUNK], n=spec.n, temperature=spec.temperature,
                              max_tokens=args.max_tokens, seed=args.seed + start)
            records += [record | {"problem": record["problem"] + start} for record in result["samples"]]
            if writer:    # a crash leaves the old file or the new one
                text = "".join(json.dumps(line) + "\n" for line in [settings, *records])
                path.with_suffix(".tmp").write_text(text)
                path.with_suffix(".tmp").replace(path)
        results[name] = settings | summarize(records, spec.n, greedy=spec.temperature == 0)
        right = np.array([record["status"] == "right" for record in records]).reshape(-1, spec.n).mean(axis=1)
        means = np.random.default_rng(0).choice(right, size=(2000, len(right))).mean(axis=1)
        results[name]["interval"] = np.percentile(means, [2.5, 97.5]).tolist()    # 95 %, over problems
    if not results:
        raise ValueError("none of the benchmarks could be loaded")
    if writer:
        (out / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
        print_bench(results, PAPER.get(args.base_model, {}))
    if sampler is not None:
        sampler.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def print_bench(results, paper):
    row = "{:<14}{:>9}{:>4}{:>5}{:>7}{:>15}{:>8}{:>8}{:>7}{:>9}  {}".format
    print(row("benchmark", "problems", "k", "T", "avg@k", "95 % interval", "pass@k", "tokens", "cut %",
              "entropy", "paper, avg@k" if paper else ""))
    averages = []
    for name, r in results.items():
        n, (low, high) = r["n"], r["interval"]
        averages.append(100 * r[f"avg@{n}"])
        print(row(Path(name).name, r["problems"], n, r["temperature"], f"{averages[-1]:.1f}",
                  f"{100 * low:.1f} - {100 * high:.1f}", f"{100 * r[f'pass@{n}']:.1f}", round(r["length"]),
                  f"{100 * r['truncated']:.1f}", "-" if r["entropy"] is None else f"{r['entropy']:.3f}",
                  paper.get(name, "")))
    label = f"average of {len(results)}"
    print(f"{label:<32}{np.mean(averages):>7.1f}{'':>47}  {paper.get(label, '')}".rstrip())


# ---------------------------------------------------------------------------------------------------------
# law: accuracy as a function of entropy, R = -a exp(H) + b (Cui et al. 2025, Eq. 6)
# ---------------------------------------------------------------------------------------------------------

class Law(NamedTuple):
    a: float          # in the unit of accuracy, like b, rmse and ceiling
    b: float
    rmse: float
    r2: float
    ceiling: float    # b - a: accuracy at zero entropy

    def __call__(self, entropy):
        return self.b - self.a * np.exp(entropy)


def fit_entropy_law(entropy, accuracy) -> Law:
    """Linear least squares on exp(H). entropy: nats; accuracy: any unit; both [evaluations]."""
    entropy, accuracy = np.asarray(entropy, dtype=float), np.asarray(accuracy, dtype=float)
    if not (np.isfinite(entropy).all() and np.isfinite(accuracy).all()):
        raise ValueError("no entropy law: an entropy or an accuracy is NaN or infinite")
    if len(np.unique(entropy.round(6))) < 3:
        raise ValueError(f"no entropy law: needs three different entropies, got {entropy.round(6).tolist()}")
    slope, b = np.polyfit(np.exp(entropy), accuracy, 1)
    rmse = np.sqrt(np.mean((accuracy - slope * np.exp(entropy) - b) ** 2))
    r2 = 1 - rmse ** 2 / accuracy.var() if np.ptp(accuracy) > 0 else 0.0    # constant: nothing to explain
    return Law(float(-slope), float(b), float(rmse), float(r2), float(b + slope))


def predict_entropy_law(entropy, accuracy, first: int) -> tuple[Law, float]:
    """Fit the first evaluations; return this law and its root-mean-square error on the rest."""
    if not 3 <= first < len(entropy):
        raise ValueError(f"cannot fit the first {first} of {len(entropy)} evaluations and predict the rest")
    law = fit_entropy_law(entropy[:first], accuracy[:first])
    error = np.asarray(accuracy[first:]) - law(np.asarray(entropy[first:]))
    return law, float(np.sqrt(np.mean(error ** 2)))


def bootstrap_entropy_law(entropy, accuracy, draws=1000) -> dict[str, tuple[float, float]]:
    """95 % intervals of a, b and ceiling from laws refitted to resampled evaluations."""
    pick = np.random.default_rng(0).integers(len(entropy), size=(draws, len(entropy)))
    x, y = np.exp(entropy)[pick], np.asarray(accuracy)[pick]    # [draws, evaluations]
    mean, spread = x.mean(axis=1, keepdims=True), np.ptp(x, axis=1)
    x, y, mean = x[spread > 0], y[spread > 0], mean[spread > 0]    # a line needs two points
    a = -((x - mean) * y).sum(axis=1) / ((x - mean) ** 2).sum(axis=1)
    b = y.mean(axis=1) + a * mean[:, 0]
    return {key: tuple(np.percentile(values, [2.5, 97.5])) for key, values in
            (("a", a), ("b", b), ("ceiling", b - a))}


class Run(NamedTuple):
    name: str
    config: dict
    rows: list[dict]    # metrics.jsonl
    val: str            # name of the validation set

    def evaluations(self):
        """steps, entropies (nats), accuracies (percent), each [evaluations]. A greedy evaluation has no
        entropy of its own: it gets that of the training samples of its step."""
        points = []
        for row in self.rows:
            accuracy = next((v for key, v in row.items() if key.startswith(f"val/{self.val}/avg@")), None)
            entropy = row.get(f"val/{self.val}/entropy")
            entropy = row.get("actor/entropy") if entropy is None else entropy
            if accuracy is not None and entropy is not None:
                points.append((row["step"], entropy, 100 * accuracy))
        return np.array(points, dtype=float).reshape(-1, 3).T


def read_run(path, val=None) -> Run:
    folder = Path(path)
    try:
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
        config = json.loads((folder / "config.json").read_text())
    except OSError as error:
        raise ValueError(f"{path} is not a run folder: no {Path(error.filename).name}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: metrics.jsonl or config.json is not JSON: {error}") from None
    sets = [key.split("/")[1] for row in rows for key in row if key.startswith("val/") and "/avg@" in key]
    if not sets or val not in (None, *sets):
        raise ValueError(f"{path}: no evaluations of {val or 'any set'}; of: {', '.join(sorted(set(sets)))}")
    return Run(folder.name, config, rows, val or sets[0])


def describe(name, law, entropy, accuracy) -> str:
    intervals = bootstrap_entropy_law(entropy, accuracy)
    text = ", ".join(f"{key} {getattr(law, key):.1f} [{low:.1f}, {high:.1f}]"
                     for key, (low, high) in intervals.items())
    verdict = "" if law.r2 >= 0.5 else "  THE LAW DOES NOT FIT (R^2 < 0.5)"
    return f"{name}: {text}, R^2 {law.r2:.2f}, RMSE {law.rmse:.2f}, {len(entropy)} evaluations{verdict}"


def law(args):
    runs = [read_run(path, args.val) for path in args.runs]
    data, fits = [run.evaluations()[1:] for run in runs], []
    print("R = -a exp(H) + b; R and RMSE in percentage points, H in nats; [95 % bootstrap intervals]")
    for run, (entropy, accuracy) in zip(runs, data):
        try:
            fits.append(fit_entropy_law(entropy, accuracy))
        except ValueError as error:
            raise ValueError(f"{run.name}: {error}") from None
        print(describe(run.name, fits[-1], entropy, accuracy))
        if args.first:
            early, error = predict_entropy_law(entropy, accuracy, args.first)
            print(f"    first {args.first}: ceiling {early.ceiling:.1f}, RMSE on the rest {error:.2f}")
    if len(runs) > 1:    # is it one curve?
        entropy, accuracy = np.concatenate(data, axis=1)
        pooled = fit_entropy_law(entropy, accuracy)
        error = accuracy - np.concatenate([fit(H) for fit, (H, _) in zip(fits, data)])
        print(describe(f"all {len(runs)} runs", pooled, entropy, accuracy))
        print(f"    RMSE {pooled.rmse:.2f} with one curve, "
              f"{np.sqrt(np.mean(error ** 2)):.2f} with a curve per run")
    if args.sizes:
        sizes = np.log([float(size) for size in args.sizes.split(",")])
        if len(sizes) != len(runs) or len(runs) < 3 or not (np.diff(sizes) > 0).all():
            raise ValueError(f"--sizes {args.sizes}: give one size per run, at least three, smallest first")
        guess = {}    # for the largest model, from the smaller ones
        for key in ("a", "b"):
            values = [getattr(fit, key) for fit in fits]
            slope, intercept = np.polyfit(sizes, values, 1)
            guess[key] = np.polyval(np.polyfit(sizes[:-1], values[:-1], 1), sizes[-1])
            print(f"{key} = {intercept:.2f} {slope:+.2f} log(size); {runs[-1].name}: {values[-1]:.2f}, "
                  f"from the smaller models {guess[key]:.2f}")
        entropy, accuracy = data[-1]
        error = accuracy - guess["b"] + guess["a"] * np.exp(entropy)
        print(f"    RMSE of the extrapolated law on {runs[-1].name}: {np.sqrt(np.mean(error ** 2)):.2f}")


# ---------------------------------------------------------------------------------------------------------
# plot
# ---------------------------------------------------------------------------------------------------------

OPTION_OF = {"clip_cov_ratio": "clip_cov", "clip_cov_lb": "clip_cov", "clip_cov_ub": "clip_cov", "kl_cov_ratio": "kl_cov",
             "ppo_kl_coef": "kl_cov", "entropy_coeff": "entropy_bonus", "kl_loss_coef": "ref_kl",
             "top_entropy_ratio": "top_entropy", "keep": "top_entropy"}


def group_runs(runs) -> dict[str, list[Run]]:
    """Runs that differ only in the seed belong together; a label says in what the groups differ."""
    # an option of another loss was not used: it neither separates two runs nor stands in a label
    used = [{key: value for key, value in run.config.items()
             if OPTION_OF.get(key, run.config.get("loss")) == run.config.get("loss")} for run in runs]
    differing = [key for key in dict.fromkeys(key for config in used for key in config)
                 if key not in ("name", "seed", "overwrite", "wandb")
                 and len({str(config[key]) for config in used if key in config}) > 1] or ["loss"]
    groups = collections.defaultdict(list)
    for run, config in zip(runs, used):
        label = ", ".join(f"{key} {config[key]}" for key in differing if key in config)
        groups[label.replace("loss ", "")].append(run)
    return groups


def series(runs, metric):
    """The steps that all runs have [S] and the metric [runs, S]."""
    tables = [{row["step"]: row[metric] for row in run.rows if row.get(metric) is not None} for run in runs]
    steps = sorted(set.intersection(*map(set, tables)))
    if not steps:
        raise ValueError(f"no step at which {', '.join(run.name for run in runs)} have {metric}")
    return np.array(steps), np.array([[table[step] for step in steps] for table in tables])


def plot(args):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    runs = [read_run(path, args.val) for path in args.runs]
    groups = group_runs(runs)
    val_metric = next(key for row in runs[0].rows for key in row if key.startswith(f"val/{runs[0].val}/avg@"))
    plt.rcParams.update({"font.size": 11, "axes.titleweight": "bold", "lines.linewidth": 2, "axes.grid": True,
                         "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
                         "legend.frameon": False})
    figure, axes = plt.subplots(2, 3, figsize=(12, 7.4), layout="constrained")
    entropy_ax, accuracy_ax, law_ax, tail_ax, length_ax, drop_ax = axes.flat

    def band(ax, steps, values, color, **style):
        ax.plot(steps, values.mean(axis=0), color=color, **style)
        ax.fill_between(steps, values.min(axis=0), values.max(axis=0), color=color, alpha=0.2, linewidth=0)

    for i, (label, members) in enumerate(groups.items()):
        color = f"C{i}"
        steps, entropy = series(members, "actor/entropy")
        val_steps, accuracy = series(members, val_metric)
        entropies, accuracies = entropy.mean(axis=0), 100 * accuracy.mean(axis=0)
        change = (f"entropy {entropies[0]:.2f} to {entropies[-1]:.2f}, "
                  f"accuracy {accuracies[0]:.0f} to {accuracies[-1]:.0f} %")
        band(entropy_ax, steps, entropy, color, label=f"{label} (seeds: {len(members)}): {change}")
        band(accuracy_ax, val_steps, 100 * accuracy, color, marker="o", markersize=3)
        band(length_ax, *series(members, "response_length/mean"), color)
        tail = [series(members, f"cov/top_{share}%")[1].mean() for share in ("0.02", "0.2", "2")]
        width = 0.8 / len(groups)
        tail_ax.bar(np.arange(3) + width * (i + 0.5) - 0.4, tail, width, color=color)

        _, H, R = np.concatenate([run.evaluations() for run in members], axis=1)
        law_ax.plot(H, R, "o", color=color, alpha=0.4, markersize=4, markeredgewidth=0)
        try:
            fit, x = fit_entropy_law(H, R), np.linspace(0, H.max(), 100)
            if fit.r2 >= 0.5:
                law_ax.plot(x, fit(x), color=color, label=f"$R^2$ {fit.r2:.2f}")
            else:
                law_ax.plot([], [], color=color, label=f"$R^2$ {fit.r2:.2f}, does not fit")
        except ValueError:
            law_ax.plot([], [], color=color, label="too few evaluations")

        window = max(1, len(steps) // 10)    # of a moving mean
        drop, cov = -np.diff(entropies) / np.diff(steps), series(members, "cov/mean")[1].mean(axis=0)
        for values, line in ((drop, "-"), (cov, ":")):
            smooth = np.array([values[j:j + window].mean() for j in range(len(values) - window + 1)])
            drop_ax.plot(steps[:len(smooth)] + window / 2, smooth, line, color=color)

    for ax, title, x, y in [
            (entropy_ax, "Policy entropy", "step", "nats a token"),
            (accuracy_ax, f"Validation accuracy ({runs[0].val})", "step", f"{val_metric.split('/')[2]} (%)"),
            (law_ax, "Accuracy against entropy", "entropy (nats a token)", "accuracy (%)"),
            (tail_ax, "Covariance tail", "tokens of highest covariance", "their mean covariance (nats)"),
            (length_ax, "Response length", "step", "tokens"),
            (drop_ax, "Entropy drop and covariance", "step", "nats")]:
        ax.set(title=title, xlabel=x, ylabel=y)
    entropy_ax.set_ylim(bottom=0)
    length_ax.set_ylim(bottom=0)
    tail_ax.set_xticks(range(3), ["top 0.02 %", "top 0.2 %", "top 2 %"])
    law_ax.legend(title="fit of $R = b - a\\,e^H$")
    drop_ax.axhline(0, color="black", linewidth=0.8)
    drop_ax.plot([], [], "k-", label="entropy drop per step")
    drop_ax.plot([], [], "k:", label="mean covariance")
    drop_ax.legend()
    figure.legend(*entropy_ax.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    shown = ("model", "prompts_per_step", "group_size", "mini_batch_prompts", "lr", "kl_cov_ratio",
             "clip_cov_ratio")
    users = {key: [run for run in runs if key in run.config and
                   OPTION_OF.get(key, run.config.get("loss")) == run.config.get("loss")] for key in shown}
    settings = ", ".join(f"{key} {value}" for key in shown
                         for value in dict.fromkeys(str(run.config[key]) for run in users[key]))
    caption = (f"Runs: {', '.join(run.name for run in runs)}. Settings: {settings}. Lines: mean over seeds; "
               f"bands: lowest to highest seed. Last panel: moving mean over {window} steps.")
    figure.supxlabel(textwrap.fill(caption, 150), fontsize=9)
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    for path in [out, out.with_suffix(".svg")] if args.svg else [out]:
        figure.savefig(path, dpi=150)
        print(f"wrote {path}")


# ---------------------------------------------------------------------------------------------------------
# tokens: which tokens carry the entropy (Wang et al. 2025)
# ---------------------------------------------------------------------------------------------------------

@torch.inference_mode()
def token_entropies(model, pairs, n_ids) -> np.ndarray:
    """[tokens] nats, at temperature 1: entropy of the distribution from which each response token of the
    (prompt, response) pairs is drawn."""
    entropies = []
    for prompt, response in pairs:
        input_ids = torch.tensor([prompt + response[:-1]], device=model.device)
        logits = model(input_ids, logits_to_keep=len(response)).logits[0, :, :n_ids]    # [T, V]
        entropies.append(entropy_of(logits).cpu().numpy())
    return np.concatenate(entropies)


def tokens(args):
    tokenizer, problems = load_tokenizer(args.model), reward.load_problems(args.data)[:args.problems]
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    sampler = HFSampler(args.model, tokenizer, device=device, dtype=dtype)
    prompts = [reward.format_prompt(problem, tokenizer) for problem in problems]
    groups = sampler.generate(prompts, n=args.n, max_tokens=args.max_tokens, temperature=1.0, seed=args.seed)
    pairs = [(prompt, sample.token_ids) for prompt, group in zip(prompts, groups) for sample in group]
    entropy = token_entropies(sampler.model, pairs, len(tokenizer))
    percentiles = ", ".join(f"{p} % {np.percentile(entropy, p):.3f}" for p in (5, 25, 50, 75, 80, 90, 95, 99))
    print(f"{len(entropy)} tokens, {len(pairs)} responses of {args.model}, temperature 1; entropies in nats\n"
          f"mean {entropy.mean():.3f}; {100 * np.mean(entropy < 0.01):.1f} % of the tokens are below 0.01; "
          f"percentiles: {percentiles}")

    ids = np.concatenate([response for _, response in pairs])
    counts = np.bincount(ids)
    means = np.bincount(ids, weights=entropy) / counts.clip(min=1)
    frequent = sorted(np.flatnonzero(counts >= args.min_count), key=lambda i: -means[i])
    print(f"mean entropy and count of tokens seen {args.min_count} times or more")
    for title, chosen in (("highest", frequent[:args.top]), ("lowest", frequent[::-1][:args.top])):
        listed = [f"{tokenizer.decode([i])!r} {means[i]:.3f} {counts[i]}" for i in chosen]
        print(f"  {title}: {', '.join(listed)}")

    if args.other:
        load_tokenizer(args.other)    # one clear line if there is no such model
        other = AutoModelForCausalLM.from_pretrained(args.other, dtype=dtype).to(device).eval()
        after = token_entropies(other, pairs, len(tokenizer))
        order, k = np.argsort(entropy, kind="stable"), max(1, len(entropy) // 5)
        same = len(np.intersect1d(order[-k:], np.argsort(after, kind="stable")[-k:])) / k
        print(f"\nthe same responses under {args.other}: mean {after.mean():.3f}; {100 * same:.1f} % of the "
              f"top 20 % positions are the same (chance: 20 %)\nin 5 % bands of {args.model}'s entropy:"
              f"\n{'band':>10}{'before':>9}{'after':>9}{'change':>9}")
        for i, band in enumerate(np.array_split(order, 20)):
            before, now = entropy[band].mean(), after[band].mean()
            print(f"{5 * i:>4} - {5 * i + 5:>3}{before:>9.4f}{now:>9.4f}{now - before:>+9.4f}")

    if args.temperatures:
        threshold = float(np.percentile(entropy, 80))
        print(f"\navg@{args.n} (%) with one temperature for tokens above {threshold:.3f} nats (80th "
              f"percentile), another below\n{'temperature':>12}{'above; 1 below':>16}{'below; 1 above':>16}")
        for t in map(float, args.temperatures.split(",")):
            cells = []
            for above, below in ((t, 1.0), (1.0, t)):
                sampler.fork = (threshold, above)
                result = evaluate(sampler, problems, n=args.n, temperature=below, max_tokens=args.max_tokens,
                                  seed=args.seed)
                cells.append(100 * result[f"avg@{args.n}"])
            print(f"{t:>12}{cells[0]:>16.1f}{cells[1]:>16.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="{bench,law,plot,tokens}")

    def command(function, help):
        sub = commands.add_parser(function.__name__, help=help,
                                  formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        sub.set_defaults(function=function)
        return sub.add_argument

    add = command(bench, "accuracy on benchmarks")
    add("model", help="path or hub name")
    add("--benchmarks", default=",".join(BENCHMARKS), help="of the table in this file, or jsonl files")
    add("--n", type=int, default=4, help="samples a problem, for jsonl files")
    add("--temperature", type=float, default=1.0, help="for jsonl files")
    add("--max-tokens", type=int, default=8192)
    add("--seed", type=int, default=1)
    add("--tensor-parallel", type=int, default=1, help="GPUs an engine, under torchrun")
    add("--base-model", choices=list(PAPER), help="print the paper's numbers for this base model")
    add("--out", help="folder of bench.json and the samples, default runs/bench/MODEL; "
        "an interrupted run in it is continued")
    add = command(law, "fit accuracy against entropy")
    add("runs", nargs="+", help="run folders")
    add("--first", type=int, help="fit the first N evaluations, report the error on the rest")
    add("--sizes", help="model size of each run, smallest first: coefficients against log size")
    add("--val", help="validation set, if there are several")
    add = command(plot, "one picture of any number of runs")
    add("runs", nargs="+", help="run folders")
    add("--out", default="results/plot.png")
    add("--svg", action="store_true", help="write an SVG as well")
    add("--val", help="validation set, if there are several")
    add = command(tokens, "which tokens carry the entropy")
    add("model", help="path or hub name")
    add("data", help="jsonl file or hub dataset")
    add("--other", help="a later checkpoint: change of entropy, overlap of the top 20 %%")
    add("--temperatures", help="two-temperature decoding, e.g. 0.5,1,1.5")
    add("--problems", type=int, default=128)
    add("--n", type=int, default=4, help="responses a problem")
    add("--max-tokens", type=int, default=64)
    add("--min-count", type=int, default=20)
    add("--top", type=int, default=10, help="tokens to list")
    add("--seed", type=int, default=1)
    args = parser.parse_args()
    transformers_logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)    # retries of an unreachable hub
    try:
        args.function(args)
    except (ValueError, OSError) as error:
        print(f"eval.py {args.function.__name__}: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
