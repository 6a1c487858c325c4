"""Pictures of runs, and how runs are read and grouped for them."""

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
    if os.environ.get("RANK", "0") == "0":  # once under torchrun
        print(text, file=sys.stderr)

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

def newest_export(model: str) -> str:
    """Of a run folder: hf/step_*; everything else is returned as it is. ValueError if the run has none."""
    if not Path(model, "metrics.jsonl").exists():
        return model
    exports = sorted(Path(model).glob("hf/step_??????"))
    if not exports:
        raise ValueError(f"{model}: this run has no export in hf/ yet")
    return str(exports[-1])

class NoEvaluations(ValueError):
    """A run without the validation set that is asked for."""

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

def read_run(path, val="") -> Run:
    """val: name of the validation set; "": the first. ValueError says what is missing."""
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
        raise NoEvaluations(f"{folder}: no evaluations of {val or 'a'} set; it has {', '.join(sets) or 'none'}")
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
    runs, left_out = [], []
    for path in paths:
        if Path(path).exists() and not Path(path, "metrics.jsonl").exists():  # as runs/* may hold
            left_out.append(f"{path}: no run folder, it has no metrics.jsonl")
            continue
        try:
            runs.append(read_run(path, val))
            val = runs[-1].val
        except NoEvaluations as error:
            left_out.append(str(error))
    if not runs:
        raise ValueError(left_out[0])
    for reason in left_out:
        warn(f"left out {reason}")
    return runs

SELECTION = {"selection", "cov_scope", "cov_logprobs"}
OPTIONS = {"clip_cov": {"clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", *SELECTION},
           "kl_cov": {"kl_cov_ratio", "ppo_kl_coef", *SELECTION}, "ref_kl": {"kl_loss_coef"},
           "entropy_bonus": {"entropy_coeff", "entropy_target", "entropy_gain"},
           "top_entropy": {"top_entropy_ratio", "keep", "cov_scope"}}
NO_SETTING = "name|preset|seed|overwrite|resume|wandb|max_steps|(probe|keep|eval|val|samples|save|checkpoint)_"

def settings_of(run) -> dict[str, str]:
    """What the run was trained with: no options of other losses, nor of logging, nor of memory."""
    unused = set().union(*OPTIONS.values()) - OPTIONS.get(run.config.get("loss"), set())
    if run.config.get("cov_scope") != "micro":  # there alone is it part of the objective
        unused.add("micro_batch_tokens")
    return {key: re.sub(r"seed\d+", "seed*", str(value)) for key, value in run.config.items()
            if key not in unused and not re.match(NO_SETTING, key)}

def group_runs(runs) -> dict[str, list[Run]]:
    """Runs that differ only in the seed belong together; a label says in what those of one loss differ."""
    used, groups = [settings_of(run) for run in runs], collections.defaultdict(list)

    def label(settings, keys):
        return ", ".join(f"{key} {settings[key]}" for key in keys if key in settings)

    several = len({settings.get("loss") for settings in used}) > 1
    for run, settings in zip(runs, used):
        peers, keys = [other for other in used if other.get("loss") == settings.get("loss")], []
        for key in dict.fromkeys(key for other in peers for key in other):
            differs = len({other[key] for other in peers if key in other}) > 1
            if differs and len({label(p, [*keys, key]) for p in peers}) > len({label(p, keys) for p in peers}):
                keys.append(key)  # it tells apart what the keys before it do not
        loss = [settings.get("loss", "runs")] * (several or not keys)
        groups[", ".join(loss + [label(settings, keys)] * bool(keys))].append(run)
    return groups

def series(runs, metric):
    """The steps that all runs have the metric of [S], and its values [runs, S]."""
    tables = [{row["step"]: row[metric] for row in run.rows if row.get(metric) is not None}
              for run in runs]
    steps = sorted(set.intersection(*map(set, tables)))
    return np.array(steps), np.array([[table[step] for step in steps] for table in tables])

# one colour a method in all figures; a control has its method's colour, dashed
COLORS = {"grpo": "C0", "kl_cov": "C1", "clip_cov": "C2", "entropy_bonus": "C3", "entropy_target": "C3", "pg": "C4",
          "top_entropy": "C5", "rloo": "C6", "clip_higher": "C7", "reinforce_pp": "C8", "prime": "C9", "ref_kl": "black"}

def styles_of(labels) -> dict[str, dict]:
    """{label: colour and line}; other settings of one method are other lines, a label without a method has its own colour."""
    from matplotlib import colormaps
    styles = {}
    for i, label in enumerate(labels):
        method = re.sub("_random$|, selection random$|^advantage ", "", label).split(",")[0]
        lines = ["--"] if "random" in label else ["-", "-.", (0, (4, 1, 1, 1, 1, 1))]
        mine = [{"color": COLORS[method], "linestyle": line} for line in lines if method in COLORS]
        mine.append({"color": colormaps["turbo"](i / len(labels)), "linestyle": "-"})
        styles[label] = next(style for style in mine if style not in styles.values())
    return styles

def band(ax, steps, values, style, window=1, **options):
    """Mean over runs (values [runs, S]), moving mean over `window` steps, and a band from the lowest to the highest."""
    if len(steps) < window:
        return
    smooth = np.array([np.convolve(row, np.full(window, 1 / window), "valid") for row in values])
    steps = steps[:smooth.shape[1]] + (window - 1) / 2
    ax.plot(steps, smooth.mean(axis=0), **style, **options)
    ax.fill_between(steps, smooth.min(axis=0), smooth.max(axis=0), color=style["color"], alpha=0.2, linewidth=0)

def entropy_panel(ax, groups, styles, fit):
    ax.set(title="Policy entropy", xlabel="step", ylabel="nats a token (training prompts)")
    for label, runs in groups.items():
        band(ax, *series(runs, "actor/entropy"), styles[label])
    ax.set_ylim(bottom=0)

def accuracy_panel(ax, groups, styles, fit):
    ax.set(title=f"Validation accuracy ({next(iter(groups.values()))[0].val})", xlabel="step", ylabel="right responses (%)")
    for label, runs in groups.items():
        band(ax, *series(runs, "accuracy"), styles[label], marker="o", markersize=3)

def law_panel(ax, groups, styles, fit):
    ax.set(title="The law $R = b - a\\,e^H$", xlabel="validation entropy (nats a token; dotted: no data)",
           ylabel="right responses (%)")
    for label, runs in groups.items():
        _, H, R = np.concatenate([run.evaluations() for run in runs], axis=1)
        ax.plot(H, R, "o", color=styles[label]["color"], alpha=0.4, markersize=4, markeredgewidth=0)
        law = fit_or_none(fit, H, R)
        if law and law.r2 >= 0.5:
            for line, x in ((":", np.linspace(0, H.min())), ("-", np.linspace(H.min(), H.max()))):
                ax.plot(x, law(x), line, color=styles[label]["color"])
    ax.set_ylim(top=min(100, ax.get_ylim()[1]))

def tail_panel(ax, groups, styles, fit):
    ax.set(title="Covariance tail, all steps", xlabel="tokens of highest covariance", ylabel="mean covariance (nats)")
    width = 0.8 / len(groups)
    for i, (label, runs) in enumerate(groups.items()):
        for j, share in enumerate(("0.02", "0.2", "2")):
            _, tail = series(runs, f"cov/top_{share}%")
            if tail.size:
                ax.bar(j + width * (i + 0.5) - 0.4, tail.mean(), width, color=styles[label]["color"])
    ax.set_xticks(range(3), ["top 0.02 %", "top 0.2 %", "top 2 %"])

def length_panel(ax, groups, styles, fit):
    ax.set(title="Response length", xlabel="step", ylabel="tokens")
    for label, runs in groups.items():
        band(ax, *series(runs, "response_length/mean"), styles[label])
    ax.set_ylim(bottom=0)

def drop_panel(ax, groups, styles, fit):
    ax.set(title="Entropy drop and covariance", xlabel="step", ylabel="solid: entropy drop a step (nats)")
    right = ax.twinx()
    right.set(title="", xlabel="step", ylabel="dotted: mean covariance (nats)")
    right.grid(False)
    for label, runs in groups.items():
        (steps, entropy), (cov_steps, cov) = series(runs, "actor/entropy"), series(runs, "cov/mean")
        window, entropy = max(1, len(steps) // 10), entropy.mean(axis=0)
        for where, line, x, y in ((ax, "-", steps[:-1], -np.diff(entropy) / np.diff(steps)), (right, ":", cov_steps, cov.mean(axis=0))):
            if len(y) >= window:
                x, y = (np.convolve(values, np.full(window, 1 / window), "valid") for values in (x, y))
                where.plot(x, y, line, color=styles[label]["color"])
    ax.axhline(0, color="black", linewidth=0.8)

PANELS = {"entropy": entropy_panel, "accuracy": accuracy_panel, "law": law_panel, "tail": tail_panel,
          "length": length_panel, "drop": drop_panel}

def fit_or_none(fit, H, R):
    try:
        return fit(H, R)
    except ValueError:  # too few entropies, or NaN
        return None

def new_figure(n: int):
    """-> figure and its n axes, at most three a row, in the style of all figures."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 11, "axes.titleweight": "bold", "axes.titlesize": 11, "lines.linewidth": 2,
                         "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
                         "legend.frameon": False})
    columns, rows = min(n, 3), math.ceil(n / 3)
    figure, axes = plt.subplots(rows, columns, figsize=(4 * columns, 3.7 * rows + 0.4), layout="constrained", squeeze=False)
    return figure, axes.flat[:n]

def draw(runs: list[Run], panels: list[str], out: Path, fit):
    """The panels of the runs' groups, written to `out`. fit(entropies, accuracies) -> a law with .r2, or ValueError."""
    groups = group_runs(runs)
    styles, labels = styles_of(list(groups)), []
    for label, members in groups.items():
        (steps, entropy), (val_steps, accuracy) = series(members, "actor/entropy"), series(members, "accuracy")
        if not len(steps) or not len(val_steps):
            raise ValueError(f"{' and '.join(run.name for run in members)}: no training step to draw")
        entropy, accuracy = entropy.mean(axis=0), accuracy.mean(axis=0)
        law = fit_or_none(fit, *np.concatenate([run.evaluations() for run in members], axis=1)[1:])
        labels.append(f"{label} (seeds: {len(members)}): entropy {entropy[0]:.2f} to {entropy[-1]:.2f}, accuracy "
                      f"{accuracy[0]:.0f} to {accuracy[-1]:.0f} %" + (f", law's $R^2$ {law.r2:.2f}" if law and "law" in panels else ""))
    figure, axes = new_figure(len(panels))
    for ax, panel in zip(axes, panels):
        PANELS[panel](ax, groups, styles, fit)
    from matplotlib.lines import Line2D
    handles = [Line2D([], [], **styles[label]) for label in groups]
    width, ncols = 42 * min(len(panels), 3), 1 if len(panels) < 3 or len(groups) < 4 else 2    # in characters
    labels = [textwrap.fill(label, width // ncols) for label in labels]
    figure.legend(handles, labels, loc="outside upper center", ncols=ncols)
    figure.set_figheight(figure.get_figheight() + 0.22 * "\n".join(labels).count("\n") / ncols)
    caption = ("Lines: mean over seeds, at the steps that all have; bands: lowest to highest seed."
               + " Entropy drop: moving mean over a tenth of the run." * ("drop" in panels))
    figure.supxlabel(textwrap.fill(caption, width * 4 // 3), fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
