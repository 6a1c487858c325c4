"""What the mechanism looks like: one table and one figure a question, from the metrics of finished runs.

    python bench/mechanism.py cov results/grpo-seed* results/pg-seed*                       # how large is the covariance?
    python bench/mechanism.py identity results/grpo-seed* results/pg-seed*                  # how far does the theory hold?
    python bench/mechanism.py selected results/kl_cov-seed* results/kl_cov_random-seed*     # which tokens are selected?
    python bench/mechanism.py controls results/grpo-seed* results/kl_cov-seed* ...          # is it the covariance?
    python bench/mechanism.py exploration results/hard-* --steps 300                        # does keeping entropy pay?

Runs called NAME-seed1, NAME-seed2, ... are one line: means over seeds, bands from the lowest to the highest.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.figures import Run, band, new_figure, read_run, series, styles_of

QUADRANTS = {"likely_right": "likely, right: H falls", "unlikely_wrong": "unlikely, wrong: H falls",
             "likely_wrong": "likely, wrong: H rises", "unlikely_right": "unlikely, right: H rises"}


def by_name(runs: list[Run]) -> dict[str, list[Run]]:
    groups = {}
    for run in runs:
        groups.setdefault(re.sub(r"-seed\d+$", "", run.name), []).append(run)
    return groups


def mean_of(runs: list[Run], key: str, statistic=np.mean) -> float:
    """Over all steps of all runs that have the metric; nan if none has."""
    values = [row[key] for run in runs for row in run.rows if key in row]
    return float(statistic(values)) if values else float("nan")


def median_of(runs: list[Run], key: str) -> float:
    """Of ratios, one of which may be far out where its denominator is small."""
    return mean_of(runs, key, np.median)


def table(head: list[str], rows: list[list]):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(cell if isinstance(cell, str) else f"{cell:.3g}" for cell in row) + " |")


def entropy_drop(run: Run, key: str) -> tuple[np.ndarray, np.ndarray]:
    """(metric at step k, H_k - H_{k+1}) of all consecutive steps."""
    rows = {row["step"]: row for row in run.rows if key in row}
    pairs = [(rows[k][key], rows[k]["actor/entropy"] - rows[k + 1]["actor/entropy"]) for k in rows if k + 1 in rows]
    return np.array(pairs).reshape(-1, 2).T


def blocks(values: np.ndarray, n: int = 10) -> np.ndarray:
    """Means of n consecutive steps: the entropy of one step is measured on other prompts than the next one's."""
    return values[:len(values) // n * n].reshape(-1, n).mean(1)


def cov(groups):
    head = ["run", "mean", "std", "share positive", "top 2 %", "top 0.2 %", "top 0.02 %", "response level",
            "steps where it is positive", "correlation with the entropy drop"]
    rows = []
    figure, axes = new_figure(3)
    styles = styles_of(list(groups))
    for name, runs in groups.items():
        color = styles[name]["color"]
        response = np.concatenate([series([run], "cov/response")[1][0] for run in runs])
        pairs = [[blocks(v) for v in entropy_drop(run, "cov/response")] for run in runs]
        x, drop = np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])
        rows.append([name, *(mean_of(runs, f"cov/{key}") for key in
                             ("mean", "std", "positive", "top_2%", "top_0.2%", "top_0.02%", "response")),
                     f"{100 * np.mean(response > 0):.0f} %", float(np.corrcoef(x, drop)[0, 1])])
        band(axes[0], *series(runs, "cov/response"), styles[name], window=10, label=name)
        axes[1].plot(x, drop, "o", color=color, alpha=0.6, markersize=4)
        bins = [q for q in (25, 50, 75, 100) if not np.isnan(mean_of(runs, f"cov/response_acc_{q}"))]
        axes[2].plot(bins, [mean_of(runs, f"cov/response_acc_{q}") for q in bins], "o-", color=color)
    axes[0].set(title="Covariance of a response's log-prob", xlabel="step (mean of 10)", ylabel="Cov(log $\\pi$, $\\pi A$), nats")
    axes[1].set(title="... against the entropy drop", xlabel="the covariance, mean of 10 steps",
                ylabel="entropy drop a step, nats, mean of 10")
    axes[1].axhline(0, color="black", linewidth=0.8)
    axes[2].set(title="... by the prompt's accuracy", xlabel="accuracy of the group, up to (%)", xticks=[25, 50, 75, 100],
                ylabel="Cov(log $\\pi$, $\\pi A$), nats")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    table(head, rows)
    return figure


def identity(groups):
    head = ["run", "update", "entropy change", "predicted", "slope", "correlation", "share explained",
            "Theorem 1: corr, explained", "Theorem 2: corr, explained"]
    rows, spread = [], []
    figure, axes = new_figure(3)
    styles = styles_of(list(groups))
    for name, runs in groups.items():
        for which, marker in (("first", "o"), ("step", "s")):
            key = f"probe/{which}/"
            if np.isnan(mean_of(runs, key + "dH")):
                continue
            theorems = [", ".join(f"{median_of(runs, f'{key}theorem_{t}_{s}'):.2f}" for s in ("corr", "explained")) for t in (1, 2)]
            rows.append([name, {"first": "the first of a step", "step": "a whole step"}[which],
                         mean_of(runs, key + "dH"), mean_of(runs, key + "dH_first_order"),
                         *(median_of(runs, f"{key}first_order_{k}") for k in ("slope", "corr", "explained")), *theorems])
            x, y = series(runs, key + "dH_first_order")[1], series(runs, key + "dH")[1]
            color = styles[name]["color"]
            axes[0].plot(x.ravel(), y.ravel(), marker, color=color, alpha=0.6, markersize=4,
                         markerfacecolor="none" if which == "step" else None)
            spread.append((which, color, [series(runs, key + k)[1].ravel() for k in ("first_order_explained", "theorem_2_corr")]))
        axes[0].plot([], [], "o", color=styles[name]["color"], label=name)
    low, high = axes[0].get_xlim()
    axes[0].plot([low, high], [low, high], color="black", linewidth=0.8)
    axes[0].set(title="Mean entropy change", xlabel="predicted, $-$Cov(log $\\pi$, $\\Delta z$), nats",
                ylabel="exact, nats (filled: first update)")
    spread.sort(key=lambda box: box[0])  # first updates, then whole steps
    places = np.arange(len(spread)) + [which == "step" for which, _, _ in spread]
    for k, ax in enumerate(axes[1:]):
        for x, (_, color, values) in zip(places, spread):
            ax.boxplot(values[k], positions=[x], widths=0.7, whis=(5, 95), showfliers=False, patch_artist=True,
                       boxprops={"facecolor": color, "alpha": 0.5}, medianprops={"color": "black"})
        ax.set_xticks([np.mean([x for x, box in zip(places, spread) if box[0] == which]) for which in ("first", "step")],
                      ["first of a step", "whole step"])
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set(xlabel="update (whiskers: 5 to 95 %)")
    axes[1].set(title="Lemma 1: share explained", ylabel="of the squared change (0: no use)", ylim=(-1, 1.03))
    axes[2].set(title="Theorem 2: correlation", ylabel="with the exact change, state by state")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    table(head, rows)
    visited = [[name, mean_of(runs, "probe/first/dH_visited"), mean_of(runs, "probe/first/dH_unvisited")]
               for name, runs in groups.items() if not np.isnan(mean_of(runs, "probe/first/dH"))]
    print()
    table(["run", "first update: entropy change at its own states", "at states of other mini-batches"], visited)
    return figure


def selected(groups):
    head = ["tokens", *QUADRANTS, "mean probability", "mean entropy", "probability above 0.99", "most frequent tokens"]
    rows, bars = [], []
    name, first = next(iter(groups.items()))
    shares = [100 * mean_of(first, f"quadrant/{q}") for q in QUADRANTS]
    bars.append((f"all of {name}", shares))
    rows.append([f"all of {name}", *(f"{s:.0f} %" for s in shares), "", mean_of(first, "actor/entropy"), "", ""])
    figure, axes = new_figure(2)
    figure.set_size_inches(12, 4.4)
    styles = styles_of(list(groups))
    for name, runs in groups.items():
        shares = [100 * mean_of(runs, f"selected/{q}") for q in QUADRANTS]
        bars.append((name, shares))
        files = sorted(path for folder in folders_of[name] for path in folder.glob("selected/*.jsonl"))
        tokens = [json.loads(line) for path in files for line in path.open()]
        prob = np.array([t["prob"] for t in tokens])
        counts = {}
        for t in tokens:
            counts[t["token"]] = counts.get(t["token"], 0) + 1
        top = ", ".join(f"`{t}` {100 * n / len(tokens):.0f} %" for t, n in sorted(counts.items(), key=lambda c: -c[1])[:4])
        rows.append([name, *(f"{s:.0f} %" for s in shares), mean_of(runs, "selected/prob"), mean_of(runs, "selected/entropy"),
                     f"{100 * np.mean(prob > 0.99):.0f} %" if len(prob) else "", top])
        if len(prob):
            axes[1].hist(prob, bins=np.linspace(0, 1, 21), weights=np.full(len(prob), 100 / len(prob)), histtype="step",
                         linewidth=2, label=name, **styles[name])
    left = np.zeros(len(bars))
    for quadrant, label in QUADRANTS.items():
        values = np.array([shares[list(QUADRANTS).index(quadrant)] for _, shares in bars])
        color = {"likely_right": "#c0392b", "unlikely_wrong": "#e59866", "likely_wrong": "#5dade2", "unlikely_right": "#1f618d"}
        axes[0].barh([name for name, _ in bars], values, left=left, color=color[quadrant], label=label)
        left += values
    axes[0].invert_yaxis()
    axes[0].set(title="Where the tokens stand in the sign table", xlabel="share of the tokens (%)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    axes[1].set(title="Probability of the selected tokens", xlabel="probability under the rollout's policy", ylabel="share (%)")
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside right center")
    table(head, rows)
    return figure


def first_crossing(level: float, steps, entropy, accuracy) -> tuple[float, float]:
    """(step, accuracy) where the entropy first falls to the level, between two evaluations; nan if it never does."""
    for k in range(1, len(steps)):
        if entropy[k] <= level < entropy[k - 1]:
            share = (entropy[k - 1] - level) / (entropy[k - 1] - entropy[k])
            return tuple(float(v[k - 1] + share * (v[k] - v[k - 1])) for v in (steps, accuracy))
    return float("nan"), float("nan")


def controls(groups):
    rows = []
    figure, axes = new_figure(3)
    styles = styles_of(list(groups))
    for name, runs in groups.items():
        evaluations = [run.evaluations() for run in runs]
        final = np.array([[e[1][-1], e[2][-1]] for e in evaluations])  # both on the held-out problems
        passes = np.array([first_crossing(0.35, *e) for e in evaluations])
        rows.append([name, f"{final[:, 0].mean():.3f}", ", ".join(f"{h:.3f}" for h in final[:, 0]), f"{final[:, 1].mean():.1f}",
                     ", ".join(f"{r:.1f}" for r in final[:, 1]),
                     f"{np.mean([e[2][-5:].mean() for e in evaluations]):.1f}",
                     "not reached" if np.isnan(passes).any() else f"{passes[:, 1].mean():.1f} at step {passes[:, 0].mean():.0f}"])
        band(axes[0], *series(runs, "actor/entropy"), styles[name], window=5, label=name)
        steps, R = evaluations[0][0], np.array([e[2] for e in evaluations])
        axes[1].plot(steps, R.mean(0), marker="o", markersize=3, **styles[name])
        axes[1].fill_between(steps, R.min(0), R.max(0), color=styles[name]["color"], alpha=0.2, linewidth=0)
        axes[2].plot(np.mean([e[1] for e in evaluations], 0), R.mean(0), marker="o", markersize=3, **styles[name])
    axes[0].set(title="Policy entropy, training prompts", xlabel="step", ylabel="nats a token", ylim=(0, None))
    axes[1].set(title="Validation accuracy", xlabel="step", ylabel="right responses (%)")
    axes[2].set(title="Accuracy against entropy", xlabel="entropy (nats a token)", ylabel="accuracy (%)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    table(["run", "final entropy (nats)", "seeds", "final accuracy (%)", "seeds", "mean of the last five (%)",
           "accuracy where the entropy first passes 0.35 nats (%)"], rows)
    return figure


def exploration(groups):
    rows = []
    figure, axes = new_figure(3)
    styles = styles_of(list(groups))
    for name, runs in groups.items():
        steps, H, R = runs[0].evaluations()[0], *(np.array([run.evaluations()[i] for run in runs]) for i in (1, 2))
        key = next(key for key in runs[0].rows[0] if "/pass@" in key)
        P = 100 * np.array([[row[key] for row in run.rows if key in row] for run in runs])
        last = lambda values: [f"{values[:, -5:].mean():.1f}", ", ".join(f"{v:.1f}" for v in values[:, -5:].mean(1))]
        wrong, rounds = (np.mean([row[f"rollout/{k}"] for run in runs for row in run.rows[-len(run.rows) // 5:]])
                         for k in ("frac_all_wrong", "gen_rounds"))
        rows.append([name, f"{H[:, -1].mean():.3f}", ", ".join(f"{h:.3f}" for h in H[:, -1]), *last(R), *last(P),
                     f"{100 * wrong:.0f} %", f"{rounds:.1f}"])
        for axis, values in zip(axes, (H, R, P)):
            band(axis, steps, values, styles[name], label=name)
    axes[0].set(title="Entropy, held-out problems", xlabel="step", ylabel="nats a token", ylim=(0, None))
    axes[1].set(title="Validation accuracy", xlabel="step", ylabel="right responses (%)", ylim=(0, None))
    axes[2].set(title=key.rpartition("/")[2], xlabel="step", ylabel="solved problems (%)", ylim=(0, None))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    table(["run", "final entropy (nats)", "seeds", "accuracy (%)", "seeds", f"{key.rpartition('/')[2]} (%)", "seeds",
           "prompts all wrong, last fifth of the steps", "rounds"], rows)
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    questions = {"cov": cov, "identity": identity, "selected": selected, "controls": controls, "exploration": exploration}
    parser.add_argument("question", choices=questions)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--steps", type=int, help="read the runs up to this step; default: to their end")
    parser.add_argument("--out", type=Path, help="default results/mechanism-QUESTION.png")
    args = parser.parse_args()
    try:
        runs = [read_run(path) for path in args.runs]
    except ValueError as error:
        sys.exit(f"mechanism.py: {error}")
    if args.steps:
        runs = [run._replace(rows=[row for row in run.rows if row["step"] <= args.steps]) for run in runs]
    groups = by_name(runs)
    folders_of = {name: [path for path in args.runs if re.sub(r"-seed\d+$", "", path.name) == name] for name in groups}
    figure = questions[args.question](groups)
    out = args.out or Path(f"results/mechanism-{args.question}.png")
    figure.savefig(out, dpi=150)
    print(f"\nwrote {out}")
