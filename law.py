"""The entropy law R = -a exp(H) + b, and the figure of a set of runs: `python eval.py law`, `python eval.py plot`."""
import collections
import json
import math
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np


def warn(text):
    if os.environ.get("RANK", "0") == "0":    # once under torchrun
        print(text, file=sys.stderr)


def interval_95(draws) -> list[float]:
    return np.percentile(draws, [2.5, 97.5]).tolist()


def read_jsonl(path) -> list[dict]:
    """The objects of a file, but for a last line that was cut off. ValueError names a line that is none."""
    rows, lines = [], Path(path).read_text(errors="replace").rstrip("\n").split("\n")
    for i, line in enumerate(lines, 1):
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            if i < len(lines):
                raise ValueError(f"{path}, line {i}: not a JSON object") from None
    return rows


# --- law: accuracy as a function of entropy, R = -a exp(H) + b (Cui et al. 2025, Eq. 6) ------------------

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


def one_curve_p_value(sse_one, sse_each, runs: int, evaluations: int) -> float:
    """F test of one curve (sum of squared errors sse_one) against a curve per run (sse_each): P(F > f) at
    2 runs - 2 and evaluations - 2 runs degrees of freedom, in closed form since the first is even."""
    x, half = (sse_each + 1e-12) / (sse_one + 1e-12), evaluations / 2 - runs    # 1e-12: two perfect fits
    log_terms = [math.lgamma(half + i) - math.lgamma(half) - math.lgamma(i + 1) for i in range(runs - 1)]
    return x ** half * sum((1 - x) ** i * math.exp(term) for i, term in enumerate(log_terms))


class Run(NamedTuple):
    name: str
    config: dict
    rows: list[dict]    # metrics.jsonl; evaluations have an "accuracy" (%) and, if it is known, an "entropy"
    val: str            # the validation set that they are of

    def evaluations(self):
        """[3, evaluations]: steps, entropies (nats), accuracies (%)."""
        points = [(row["step"], row["entropy"], row["accuracy"]) for row in self.rows
                  if row.get("entropy") is not None]
        return np.array(points, dtype=float).reshape(-1, 3).T


def read_run(path, val=None) -> Run:
    """val: name of the validation set; None: the first. ValueError says what is missing."""
    folder = Path(path)
    try:
        rows = [row for row in read_jsonl(folder / "metrics.jsonl") if "step" in row]
        config = json.loads((folder / "config.json").read_text())
    except OSError as error:
        raise ValueError(f"{folder} is not a run folder: no {Path(error.filename).name}") from None
    except json.JSONDecodeError:
        raise ValueError(f"{folder}/config.json is not JSON") from None
    sets = {match[1]: key for row in rows for key in row if (match := re.match(r"val/(.+)/avg@", key))}
    val = val or next(iter(sets), None)
    if val not in sets:
        raise ValueError(f"{folder}: no evaluations of {val or 'a'} set; it has {', '.join(sets) or 'none'}")
    # a policy's entropy: of the evaluation's own samples, or, if they are drawn at another temperature
    # (greedily, say), of those that it draws in the next step
    same_temperature = config.get("val_temperature") == config.get("temperature")
    next_entropy = {row["step"] - 1: row.get("actor/entropy") for row in rows}
    for row in rows:
        if sets[val] in row:
            row["accuracy"] = 100 * row[sets[val]]
            row["entropy"] = (row.get(f"val/{val}/entropy") if same_temperature
                              else next_entropy.get(row["step"]))
    return Run(folder.name, config, rows, val)


def read_runs(paths, val) -> list[Run]:
    """All of one validation set: val, or the first run's first."""
    runs = []
    for path in paths:
        if Path(path).exists() and not Path(path, "metrics.jsonl").exists():    # as runs/* may hold
            warn(f"left out {path}: no run folder, it has no metrics.jsonl")
        else:
            runs.append(read_run(path, val))
            val = runs[-1].val
    if not runs:
        raise ValueError("none of the folders is a run folder")
    return runs


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
    runs, sizes = read_runs(args.runs, args.val), args.sizes
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
        pooled = fit_entropy_law(entropy, accuracy)
        each = np.sqrt(np.mean((accuracy - np.concatenate([fit(H) for fit, (H, _) in zip(fits, data)])) ** 2))
        p = one_curve_p_value(pooled.rmse ** 2, each ** 2, len(runs), len(entropy))
        print(describe(f"all {len(runs)} runs", pooled, entropy, accuracy))
        print(f"    RMSE {pooled.rmse:.2f} with one curve, {each:.2f} with a curve per run: "
              f"{'NOT one curve' if p < 0.05 else 'one curve will do'} (F test, p = {p:.2g})")


# --- plot ------------------------------------------------------------------------------------------------

SELECTION = {"selection", "cov_scope", "cov_logprobs"}
OPTIONS = {"clip_cov": {"clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", *SELECTION},
           "kl_cov": {"kl_cov_ratio", "ppo_kl_coef", *SELECTION}, "ref_kl": {"kl_loss_coef"},
           "entropy_bonus": {"entropy_coeff", "entropy_target", "entropy_gain"},
           "top_entropy": {"top_entropy_ratio", "keep", "cov_scope"}}
NO_SETTING = "name|seed|overwrite|resume|wandb|max_steps|(probe|keep|eval|val|samples|save|checkpoint)_"


def settings_of(run) -> dict:
    """What the run was trained with: no options of other losses, nor of logging."""
    unused = set().union(*OPTIONS.values()) - OPTIONS.get(run.config.get("loss"), set())
    return {key: value for key, value in run.config.items()
            if key not in unused and not re.match(NO_SETTING, key)}


def group_runs(runs) -> dict[str, list[Run]]:
    """Runs that differ only in the seed belong together; a label says in what the groups differ."""
    used, groups = [settings_of(run) for run in runs], collections.defaultdict(list)
    differing = [key for key in dict.fromkeys(key for settings in used for key in settings)
                 if len({str(settings[key]) for settings in used if key in settings}) > 1] or ["loss"]
    if len({str(settings.get("loss")) for settings in used}) == len({str(settings) for settings in used}):
        differing = ["loss"]    # its name says enough
    for run, settings in zip(runs, used):
        label = ", ".join(f"{key} {settings[key]}" for key in differing if key in settings)
        groups[label.replace("loss ", "", 1)].append(run)
    return groups


def series(runs, metric):
    """The steps that all runs have the metric of [S], and its values [runs, S]."""
    tables = [{row["step"]: row[metric] for row in run.rows if row.get(metric) is not None}
              for run in runs]
    steps = sorted(set.intersection(*map(set, tables)))
    return np.array(steps), np.array([[table[step] for step in steps] for table in tables])


def plot(args):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    runs = read_runs(args.runs, args.val)
    groups = group_runs(runs)
    plt.rcParams.update({"font.size": 11, "axes.titleweight": "bold", "lines.linewidth": 2, "axes.grid": True,
                         "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
                         "legend.frameon": False})
    figure, axes = plt.subplots(2, 3, figsize=(12, 7.4), layout="constrained")
    entropy_ax, accuracy_ax, law_ax, tail_ax, length_ax, drop_ax = axes.flat

    def band(ax, steps, values, color, **style):
        ax.plot(steps, values.mean(axis=0), color=color, **style)
        ax.fill_between(steps, values.min(axis=0), values.max(axis=0), color=color, alpha=0.2, linewidth=0)

    for i, (label, members) in enumerate(groups.items()):
        color = f"C{i}" if len(groups) <= 10 else plt.cm.turbo(i / len(groups))
        steps, entropy = series(members, "actor/entropy")
        val_steps, accuracy = series(members, "accuracy")
        if not len(steps) or not len(val_steps):
            raise ValueError(f"{' and '.join(run.name for run in members)}: no training step to draw")
        entropies, accuracies = entropy.mean(axis=0), accuracy.mean(axis=0)
        change = (f"entropy {entropies[0]:.2f} to {entropies[-1]:.2f}, "
                  f"accuracy {accuracies[0]:.0f} to {accuracies[-1]:.0f} %")
        band(entropy_ax, steps, entropy, color, label=f"{label} (seeds: {len(members)}): {change}")
        band(accuracy_ax, val_steps, accuracy, color, marker="o", markersize=3)
        band(length_ax, *series(members, "response_length/mean"), color)

        _, H, R = np.concatenate([run.evaluations() for run in members], axis=1)
        law_ax.plot(H, R, "o", color=color, alpha=0.4, markersize=4, markeredgewidth=0)
        try:
            fit = fit_entropy_law(H, R)
            verdict = f"$R^2$ {fit.r2:.2f}" + ", does not fit" * (fit.r2 < 0.5)
            if fit.r2 >= 0.5:
                for line, x in ((":", np.linspace(0, H.min())), ("-", np.linspace(H.min(), H.max()))):
                    law_ax.plot(x, fit(x), line, color=color)
        except ValueError:
            verdict = "none"    # too few entropies, or NaN
        law_ax.plot([], [], color=color, label=verdict)

        width = 0.8 / len(groups)
        for j, share in enumerate(("0.02", "0.2", "2")):
            _, tail = series(members, f"cov/top_{share}%")
            if tail.size:
                tail_ax.bar(j + width * (i + 0.5) - 0.4, tail.mean(), width, color=color)
        window = max(1, len(steps) // 10)    # of a moving mean
        cov_steps, cov = series(members, "cov/mean")
        drop = -np.diff(entropies) / np.diff(steps)
        for line, *curve in (("-", steps[:-1], drop), (":", cov_steps, cov.mean(axis=0))):
            if len(curve[0]) >= window:
                x, y = (np.convolve(values, np.full(window, 1 / window), "valid") for values in curve)
                drop_ax.plot(x, y, line, color=color)

    for ax, title, x, y in [
            (entropy_ax, "Policy entropy", "step", "nats a token"),
            (accuracy_ax, f"Validation accuracy ({runs[0].val})", "step", "right responses (%)"),
            (law_ax, "Accuracy against entropy", "entropy (nats a token)", "right responses (%)"),
            (tail_ax, "Covariance tail, all steps", "tokens of highest covariance", "mean covariance (nats)"),
            (length_ax, "Response length", "step", "tokens"),
            (drop_ax, "Entropy drop and covariance", "step", "nats")]:
        ax.set(title=title, xlabel=x, ylabel=y)
    entropy_ax.set_ylim(bottom=0)
    length_ax.set_ylim(bottom=0)
    tail_ax.set_xticks(range(3), ["top 0.02 %", "top 0.2 %", "top 2 %"])
    law_ax.legend(title="fit of $R = b - a\\,e^H$", loc="lower left")
    drop_ax.axhline(0, color="black", linewidth=0.8)
    drop_ax.plot([], [], "k-", label="entropy drop per step")
    drop_ax.plot([], [], "k:", label="mean covariance")
    drop_ax.legend()
    figure.legend(*entropy_ax.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    settings = []
    for key in ("model", "prompts_per_step", "group_size", "mini_batch_prompts", "lr", "kl_cov_ratio",
                "clip_cov_ratio"):
        values = dict.fromkeys(str(used[key]) for used in map(settings_of, runs) if key in used)
        settings += [f"{key} {' or '.join(values)}"] * bool(values)
    caption = (f"Runs: {', '.join(run.name for run in runs)}. Settings: {', '.join(settings)}. "
               "Lines: mean over seeds, at the steps that all have; bands: lowest to highest seed. Fits are "
               "dotted beyond the data. Last panel: moving mean over a tenth of the run.")
    figure.supxlabel(textwrap.fill(caption, 150), fontsize=9)
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    for path in [out, out.with_suffix(".svg")] if args.svg else [out]:
        figure.savefig(path, dpi=150)
        print(f"wrote {path}")
