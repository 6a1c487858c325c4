"""Evaluation, benchmarks, the entropy law, figures and token analysis. train.py uses the first part.

    python eval.py bench MODEL --benchmarks aime24,math500,tiny/val.jsonl   # avg@k, pass@k with intervals
    python eval.py law runs/grpo-seed1 runs/grpo-seed2                      # R = -a exp(H) + b
    python eval.py plot runs/*                                              # what happened in one picture
    python eval.py tokens tiny/base tiny/val.jsonl --other runs/grpo-seed1  # which tokens carry the entropy

MODEL is a model folder, a hub name or a run folder, whose newest export is taken. `python eval.py law --help` explains
the options of a command.
"""

import hashlib
import json
import math
import os
import sys
from pathlib import Path
from typing import NamedTuple

from support.options import numbers, read_command, refuse

if __name__ == "__main__":  # before the imports that take seconds: --help and a typo answer at once
    try:
        COMMAND = read_command(sys.argv[1:], __doc__)
    except ValueError as error:
        refuse(error, "eval.py")

import numpy as np
import torch
import torch.distributed as dist
from scipy import stats
from transformers import AutoModelForCausalLM, AutoTokenizer

import reward
from loss import logprobs_and_entropy
from support import figures
from support.answers import readable
from support.batches import start_distributed
from support.figures import newest_export, read_jsonl, read_runs, warn
from support.samplers import HFSampler, VLLMSampler, decode

# === Evaluation ===============================================================================================

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
    prompts = {i: reward.format_prompt(problems[i], sampler.tokenizer) for i in mine}
    groups = sampler.generate(list(prompts.values()), n=n, max_tokens=max_tokens, temperature=temperature,
                              seed=seed * sampler.dp_size + sampler.dp_rank)    # another stream on each rank
    flat = [(i, j, sample) for i, group in zip(mine, groups) for j, sample in enumerate(group)]
    texts = [decode(sampler.tokenizer, s.token_ids, prompts[i]) for i, _, s in flat]
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

# === bench: the paper's seven benchmarks, or jsonl files ======================================================

class Benchmark(NamedTuple):
    dataset: str            # hub id, or path of a jsonl file
    config: str | None
    split: str | None       # None: a file
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
PAPER = {    # Cui et al. 2025, Table 2, avg@k in percent: what we know of it
    "Qwen2.5-7B": {"average": "GRPO 38.6, clip-higher 38.8, Clip-Cov 40.4, KL-Cov 40.6"},
    "Qwen2.5-32B": {"average": "GRPO 45.8, clip-higher 47.2, Clip-Cov 50.3, KL-Cov 52.2",
                    "aime24": "GRPO 21.8, KL-Cov 36.8", "aime25": "GRPO 16.2, KL-Cov 30.8",
                    "math500": "GRPO 84.2, clip-higher 77.2, KL-Cov 84.6"},
}
CHUNK = 1000    # problems between two saves

def load_benchmark(name, spec: Benchmark) -> list[dict] | None:
    """Rows {"problem", "answer", "task", "source"}; None, and a line that says why, if the hub has no such
    data. ValueError for a bad file."""
    if spec.split is None:
        return reward.load_problems(spec.dataset)
    import datasets
    try:
        table = datasets.load_dataset(spec.dataset, spec.config, split=spec.split)
    except Exception as error:    # the library raises a dozen types for what it cannot reach
        return warn(f"skipped {name}: cannot load dataset {spec.dataset} ({type(error).__name__}); with a "
                    f"network: hf download --repo-type dataset {spec.dataset}")
    absent = {spec.problem, spec.answer} - set(table.column_names)
    if absent:
        return warn(f"skipped {name}: dataset {spec.dataset} has no column {absent.pop()!r}, but "
                    f"{', '.join(table.column_names)}")
    if len(table) != spec.rows:
        warn(f"warning: {name}: {spec.dataset} has {len(table)} rows, not {spec.rows}")
    problems = [{"problem": row[spec.problem], "answer": answer_text(row[spec.answer]), "task": spec.task,
                 "source": name} for row in table]
    unreadable = sum(not readable(problem["answer"]) for problem in problems)
    if unreadable:
        warn(f"warning: {name}: {unreadable} answers cannot be read; their problems count as wrong")
    return problems

def answer_text(answer) -> str:
    if isinstance(answer, list):    # OlympiadBench: ["2", "3"]
        return ", ".join(map(answer_text, answer))
    if isinstance(answer, float) and answer.is_integer():    # AMC: 27.0
        return str(int(answer))
    return str(answer)

def load_tokenizer(model):
    try:
        return AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError):
        raise ValueError(f"{model}: no model folder with a tokenizer, nor a hub model in reach") from None

def load_samples(path, settings) -> list[dict]:
    """What an interrupted run has left: whole chunks, so that the rest is drawn as it would have been."""
    found, *records = (path.exists() and read_jsonl(path)) or [settings]
    for key, value in settings.items():
        if found.get(key) != value:
            raise ValueError(f"{path} is from another run, with {key} {found.get(key)}, not {value}: choose "
                             f"another --out, or delete it")
    if len(records) < settings["problems"] * settings["n"]:
        del records[len(records) - len(records) % (CHUNK * settings["n"]):]
    return records

def bench(args):
    args.model = newest_export(args.model)
    names = [name.strip() for name in args.benchmarks.split(",")]
    for name in names:
        if name not in BENCHMARKS and not name.endswith(".jsonl") and not name.startswith(reward.procedural.PREFIX):
            raise ValueError(f"unknown benchmark {name!r}: give a .jsonl file, reasoning_gym:task or {', '.join(BENCHMARKS)}")
    if len({Path(name).stem for name in names}) < len(names):
        raise ValueError(f"--benchmarks {args.benchmarks}: two have the same name")
    if args.temperature < 0 or args.temperature == 0 and args.samples > 1:
        raise ValueError("--temperature is 0 or more; 0 is greedy, all samples are the same: set --samples 1")
    if args.base_model and args.base_model not in PAPER:
        raise ValueError(f"--base_model {args.base_model}: it is one of {', '.join(PAPER)}")
    if int(os.environ.get("WORLD_SIZE", 1)) % args.tensor_parallel:
        raise ValueError(f"--tensor_parallel {args.tensor_parallel} needs a multiple of it as torchrun's --nproc_per_node")
    tokenizer = load_tokenizer(args.model)
    weights = sorted(file.stat().st_mtime_ns for file in Path(args.model).glob("*.safetensors"))    # if local
    out = Path(args.out or f"runs/bench/{args.model.strip('/').replace('/', '-')}")
    todo = {}    # everything that can be refused is, before the first sample
    for name in names:
        spec = BENCHMARKS.get(name) or Benchmark(name, None, None, "problem", "answer", None, args.samples,
                                                 args.temperature, "as each row says")
        problems = load_benchmark(name, spec)
        if problems is not None:
            settings = {"model": args.model, "benchmark": name, "problems": len(problems), "n": spec.n,
                        "temperature": spec.temperature, "max_tokens": args.max_tokens, "seed": args.seed,
                        "content": hashlib.sha256(json.dumps([problems, weights]).encode()).hexdigest()[:16]}
            path = out / f"{Path(name).stem}.jsonl"    # the settings, then one line a response
            todo[name] = problems, settings, path, load_samples(path, settings)
    if not todo:
        raise ValueError("none of the benchmarks could be loaded")
    if "RANK" in os.environ:    # torchrun
        start_distributed()
    writer = not dist.is_initialized() or dist.get_rank() == 0
    out.mkdir(parents=True, exist_ok=True)

    sampler, results, rng, draws = None, {}, np.random.default_rng(0), []
    for name, (problems, settings, path, records) in todo.items():
        n, temperature = settings["n"], settings["temperature"]
        for start in range(len(records) // n, len(problems), CHUNK):    # continues an interrupted run
            if sampler is None and torch.cuda.is_available():
                sampler = VLLMSampler(args.model, tokenizer, dtype=torch.bfloat16, gpu_memory_utilization=0.9,
                                      tensor_parallel_size=args.tensor_parallel)
            elif sampler is None:
                sampler = HFSampler(args.model, tokenizer, device="cpu", dtype=torch.float32)
            result = evaluate(sampler, problems[start:start + CHUNK], n=n, temperature=temperature,
                              max_tokens=args.max_tokens, seed=args.seed + start)
            records += [record | {"problem": record["problem"] + start} for record in result["samples"]]
            if writer:    # a crash leaves the old file or the new one
                text = "".join(json.dumps(line) + "\n" for line in [settings, *records])
                path.with_suffix(".tmp").write_text(text)
                path.with_suffix(".tmp").replace(path)
        right = np.array([record["status"] == "right" for record in records]).reshape(-1, n)
        draws.append(rng.choice(right.mean(axis=1), size=(2000, len(right))).mean(axis=1))    # over problems
        results[name] = settings | summarize(records, n, greedy=temperature == 0)
        results[name]["interval"] = interval_95(draws[-1])
    if writer:
        (out / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
        print_bench(results, interval_95(np.mean(draws, axis=0)), PAPER.get(args.base_model, {}))
    if sampler is not None:
        sampler.close()
    if dist.is_initialized():    # vLLM has ended the default group with its own
        dist.destroy_process_group()

def print_bench(results, average_interval, paper):
    row = "{:<14}{:>9}{:>4}{:>5}{:>7}{:>15}{:>8}{:>8}{:>7}{:>9}  {}".format
    percent = lambda value: f"{100 * value:.1f}"
    print(row("benchmark", "problems", "k", "T", "avg@k", "95 % interval", "pass@k", "tokens", "cut %",
              "entropy", "paper, avg@k" if paper else "").rstrip())
    for name, r in results.items():
        n = r["n"]
        print(row(Path(name).name, r["problems"], n, r["temperature"], percent(r[f"avg@{n}"]),
                  " - ".join(map(percent, r["interval"])), percent(r[f"pass@{n}"]), round(r["length"]),
                  percent(r["truncated"]), "-" if r["entropy"] is None else f"{r['entropy']:.3f}",
                  paper.get(name, "")).rstrip())
    average = np.mean([r[f"avg@{r['n']}"] for r in results.values()])
    print(row(f"average of {len(results)}", "", "", "", percent(average),
              " - ".join(map(percent, average_interval)), "", "", "", "",
              paper.get("average", "") if set(results) == set(BENCHMARKS) else "").rstrip())    # all seven

# === law: accuracy as a function of entropy, R = -a exp(H) + b (Cui et al. 2025, Eq. 6) =========================

def interval_95(draws) -> list[float]:
    return np.percentile(draws, [2.5, 97.5]).tolist()

class Law(NamedTuple):
    a: float          # in the unit of accuracy, like b, rmse and ceiling
    b: float
    rmse: float
    r2: float
    ceiling: float    # b - a: accuracy at zero entropy

    def __call__(self, entropy):
        return self.b - self.a * np.exp(entropy)

def least_squares(x, y):
    """a and b of y = b - a x, over the last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    a = -(centred * y).sum(axis=-1) / (centred ** 2).sum(axis=-1)
    return a, y.mean(axis=-1) + a * x.mean(axis=-1)

def fit_entropy_law(entropy, accuracy) -> Law:
    """Linear least squares on exp(H). entropy: nats; accuracy: any unit; both [evaluations]."""
    entropy, accuracy = np.asarray(entropy, dtype=float), np.asarray(accuracy, dtype=float)
    if not (np.isfinite(entropy).all() and np.isfinite(accuracy).all()):
        raise ValueError("no entropy law: an entropy or an accuracy is NaN or infinite")
    if (different := len(np.unique(entropy.round(6)))) < 3:
        raise ValueError(f"no entropy law: needs three different entropies, got {different} in "
                         f"{len(entropy)} evaluations")
    a, b = least_squares(np.exp(entropy), accuracy)
    rmse = np.sqrt(np.mean((accuracy - b + a * np.exp(entropy)) ** 2))
    r2 = 1 - rmse ** 2 / accuracy.var() if np.ptp(accuracy) > 0 else 0.0    # constant: nothing to explain
    return Law(float(a), float(b), float(rmse), float(r2), float(b - a))

def predict_entropy_law(entropy, accuracy, first: int) -> tuple[Law, float]:
    """Fit the first evaluations; return this law and its root-mean-square error on the rest."""
    if not 3 <= first < len(entropy):
        raise ValueError(f"cannot fit the first {first} of {len(entropy)} evaluations and predict the rest")
    law = fit_entropy_law(entropy[:first], accuracy[:first])
    error = np.asarray(accuracy[first:]) - law(np.asarray(entropy[first:]))
    return law, float(np.sqrt(np.mean(error ** 2)))

def bootstrap_entropy_law(entropy, accuracy, draws=1000) -> dict[str, list[float]]:
    """95 % intervals of a, b and ceiling from laws refitted to resampled evaluations."""
    pick = np.random.default_rng(0).integers(len(entropy), size=(draws, len(entropy)))
    x, y = np.exp(entropy)[pick], np.asarray(accuracy)[pick]    # [draws, evaluations]
    several = np.ptp(x, axis=1) > 1e-6    # a line needs two points
    a, b = least_squares(x[several], y[several])
    return {key: interval_95(values) for key, values in (("a", a), ("b", b), ("ceiling", b - a))}

def one_curve_p_value(sse_one, sse_each, curves: int, evaluations: int) -> float:
    """F test of one curve (sum of squared errors sse_one) against `curves` of them (sse_each): P(F > f)."""
    df_between, df_within = 2 * curves - 2, evaluations - 2 * curves
    f = (sse_one - sse_each) / df_between / ((sse_each + 1e-12) / df_within)  # 1e-12: two perfect fits
    return float(stats.f.sf(f, df_between, df_within))

def describe(name, law, entropy, accuracy) -> str:
    intervals = bootstrap_entropy_law(entropy, accuracy)
    text = ", ".join(f"{key} {getattr(law, key):.1f} [{low:.1f}, {high:.1f}]"
                     for key, (low, high) in intervals.items())
    verdict, (low, high) = "", intervals["a"]
    if law.r2 < 0.5 or low <= 0 <= high:
        verdict = f"; THE LAW DOES NOT FIT: {'R^2 is below 0.5' if law.r2 < 0.5 else 'a may be 0'}"
    elif law.a < 0:
        verdict = "; a < 0: accuracy rises with entropy"
    elif law.ceiling > 100:
        verdict = "; ceiling above 100 %: it cannot hold down to H = 0"
    return f"{name}: {text}, R^2 {law.r2:.2f}, RMSE {law.rmse:.2f}, {len(entropy)} evaluations{verdict}"

def law(args):
    runs, sizes = read_runs(args.runs, args.val), numbers("--sizes", args.sizes)
    if sizes and not (len(sizes) == len(runs) > 2 and (np.diff(sizes) > 0).all()):
        raise ValueError("--sizes: give one size per run, three or more, smallest first")
    print(f"R = -a exp(H) + b; R and RMSE: percentage points on {runs[0].val}, H: nats; "
          f"[95 % bootstrap intervals]")
    data, fits = [run.evaluations()[1:] for run in runs], []
    for run, (entropy, accuracy) in zip(runs, data):
        try:
            fits.append(fit_entropy_law(entropy, accuracy))
            print(describe(run.name, fits[-1], entropy, accuracy))
            if args.first is not None:
                early, error = predict_entropy_law(entropy, accuracy, args.first)
                print(f"    first {args.first}: ceiling {early.ceiling:.1f}, RMSE on the rest {error:.2f}")
        except ValueError as error:
            raise ValueError(f"{run.name}: {error}") from None
    if sizes:
        guess, x = {}, np.log(sizes)    # guess: for the largest model, from the smaller ones
        for key in ("a", "b"):
            values = np.array([getattr(fit, key) for fit in fits])
            slope, intercept = np.polyfit(x, values, 1)
            guess[key] = np.polyval(np.polyfit(x[:-1], values[:-1], 1), x[-1])
            print(f"{key} = {intercept:.2f} {slope:+.2f} log(size); {runs[-1].name}: {values[-1]:.2f}, "
                  f"from the smaller models {guess[key]:.2f}")
        entropy, accuracy = data[-1]
        error = accuracy - guess["b"] + guess["a"] * np.exp(entropy)
        print(f"    RMSE of the extrapolated law on {runs[-1].name}: {np.sqrt(np.mean(error ** 2)):.2f}")
    elif len(runs) > 1:    # is it one curve?
        entropy, accuracy = np.concatenate(data, axis=1)
        print(describe(f"all {len(runs)} runs", fit_entropy_law(entropy, accuracy), entropy, accuracy))
        one = sum_of_squares([data])
        methods = [[run.evaluations()[1:] for run in group] for group in figures.group_runs(runs).values()]
        for what, curves in (("method", methods), ("run", [[pair] for pair in data])):
            if len(curves) > 1 and (what == "run" or len(curves) < len(runs)):
                each = sum_of_squares(curves)
                p = one_curve_p_value(one, each, len(curves), len(entropy))
                print(f"    RMSE {math.sqrt(one / len(entropy)):.2f} with one curve, {math.sqrt(each / len(entropy)):.2f} "
                      f"with a curve per {what}: {'NOT one curve' if p < 0.05 else 'one curve will do'} (F test, p = {p:.2g})")

def sum_of_squares(curves) -> float:
    """Of the residuals of one law fitted to each element: a list of (entropy, accuracy) pairs of runs."""
    total = 0.0
    for runs in curves:
        entropy, accuracy = np.concatenate(runs, axis=1)
        total += fit_entropy_law(entropy, accuracy).rmse ** 2 * len(entropy)
    return total

def plot(args):
    unknown = set(args.panels.split(",")) - set(figures.PANELS)
    if unknown:
        raise ValueError(f"--panels: {unknown.pop()} is none of {','.join(figures.PANELS)}")
    figures.draw(read_runs(args.runs, args.val), args.panels.split(","), Path(args.out), fit_entropy_law)
    print(f"wrote {args.out}")

# === tokens: which tokens carry the entropy (Wang et al. 2025) =================================================

@torch.inference_mode()
def token_entropies(model, pairs, n_ids) -> np.ndarray:
    """[tokens] nats, at temperature 1: entropy of the distribution from which each response token of the
    (prompt, response) pairs is drawn."""
    entropies = []
    for prompt, response in pairs:
        input_ids = torch.tensor([prompt + response[:-1]], device=model.device)
        logits = model(input_ids, logits_to_keep=len(response)).logits[0, :, :n_ids]    # [T, V]
        _, entropy = logprobs_and_entropy(logits, torch.tensor(response, device=model.device))
        entropies.append(entropy.cpu().numpy())
    return np.concatenate(entropies)

def tokens(args):
    args.model, args.other = newest_export(args.model), newest_export(args.other)
    tokenizer, problems = load_tokenizer(args.model), reward.load_problems(args.data)[:args.problems]
    if args.other and load_tokenizer(args.other).get_vocab() != tokenizer.get_vocab():
        raise ValueError(f"--other {args.other}: its tokenizer is not that of {args.model}")
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    sampler = HFSampler(args.model, tokenizer, device=device, dtype=dtype)
    prompts = [reward.format_prompt(problem, tokenizer) for problem in problems]
    groups = sampler.generate(prompts, n=args.samples, max_tokens=args.max_tokens, temperature=1.0,
                              seed=args.seed)
    pairs = [(prompt, sample.token_ids) for prompt, group in zip(prompts, groups) for sample in group]
    entropy = token_entropies(sampler.model, pairs, len(tokenizer))
    if len(entropy) < 20:
        raise ValueError(f"{len(entropy)} tokens are too few for 5 % bands: raise --problems or --samples")
    percentiles = ", ".join(f"{p} % {np.percentile(entropy, p):.3f}" for p in (5, 25, 50, 75, 80, 90, 95, 99))
    print(f"{len(entropy)} tokens, {len(pairs)} responses of {args.model}, temperature 1; entropies in nats\n"
          f"mean {entropy.mean():.3f}; {100 * np.mean(entropy < 0.01):.1f} % of the tokens are below 0.01; "
          f"percentiles: {percentiles}")

    ids = np.concatenate([response for _, response in pairs])
    counts = np.bincount(ids)
    means = np.bincount(ids, weights=entropy) / counts.clip(min=1)
    frequent = sorted(np.flatnonzero(counts >= args.min_count), key=lambda i: -means[i])
    print(f"mean entropy and count of the {len(frequent)} tokens seen {args.min_count} times or more")
    for title, chosen in (("highest", frequent[:args.top]), ("lowest", frequent[::-1][:args.top])):
        listed = [f"{tokenizer.decode([i])!r} {means[i]:.3f} {counts[i]}" for i in chosen]
        print(f"  {title}: {', '.join(listed)}")

    if args.other:
        other = AutoModelForCausalLM.from_pretrained(args.other, dtype=dtype).to(device).eval()
        after = token_entropies(other, pairs, len(tokenizer))
        order, k = np.argsort(entropy, kind="stable"), len(entropy) // 5
        same = len(np.intersect1d(order[-k:], np.argsort(after, kind="stable")[-k:])) / k
        print(f"\nthe same responses under {args.other}: mean {after.mean():.3f}; {100 * same:.1f} % of the "
              f"top 20 % positions are the same (chance: 20 %)\nin 5 % bands of {args.model}'s entropy:"
              f"\n{'band':>10}{'before':>9}{'after':>9}{'change':>9}")
        for i, band in enumerate(np.array_split(order, 20)):
            before, now = entropy[band].mean(), after[band].mean()
            print(f"{5 * i:>4} - {5 * i + 5:>3}{before:>9.4f}{now:>9.4f}{now - before:>+9.4f}")

    temperatures = numbers("--temperatures", args.temperatures)
    if temperatures:
        threshold = float(np.percentile(entropy, 80))
        print(f"\navg@{args.samples} (%) with one temperature for tokens above {threshold:.3f} nats (80th "
              f"percentile), another below\n{'temperature':>12}{'above; 1 below':>16}{'below; 1 above':>16}")
    for t in temperatures:
        cells = []
        for above, below in ((t, 1.0), (1.0, t)):
            sampler.fork = (threshold, above)
            result = evaluate(sampler, problems, n=args.samples, temperature=below,
                              max_tokens=args.max_tokens, seed=args.seed)
            cells.append(100 * result[f"avg@{args.samples}"])
        print(f"{t:>12}{cells[0]:>16.1f}{cells[1]:>16.1f}")

def main(command: str, options):
    try:
        {"bench": bench, "law": law, "plot": plot, "tokens": tokens}[command](options)
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("RANK", "0") == "0":  # once under torchrun
            refuse(error, f"eval.py {command}")
        sys.exit(2)

if __name__ == "__main__":
    main(*COMMAND)
