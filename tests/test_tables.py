"""bench/mechanism.py: its tables against numbers worked out from the metrics by hand."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from bench.mechanism import blocks, entropy_drop, first_crossing
from support.figures import Run


def write_run(folder, rows, loss="grpo"):
    folder.mkdir(parents=True)
    config = {"loss": loss, "seed": 1, "val_temperature": 1.0, "temperature": 1.0}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def table_of(question, folders, *options):
    """The printed table, a dict a line: column -> cell; a column that stands twice is named with a number."""
    out = folders[0].parent / "figure.png"
    done = subprocess.run([sys.executable, str(ROOT / "bench/mechanism.py"), question, *map(str, folders), "--out", str(out), *options],
                          capture_output=True, text=True)
    assert done.returncode == 0 and out.exists(), done.stderr
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.split("\n\n")[0].splitlines()]
    head = [name if name not in lines[0][:i] else f"{name} {lines[0][:i].count(name) + 1}" for i, name in enumerate(lines[0])]
    return {cells[0]: dict(zip(head, cells)) for cells in lines[2:]}


def evaluation(step, accuracy, pass_8, entropy):
    return {"step": step, "val/hard/avg@8": accuracy, "val/hard/pass@8": pass_8, "val/hard/entropy": entropy,
            "actor/entropy": entropy, "rollout/frac_all_wrong": step / 100, "rollout/gen_rounds": 2 + step / 10}


def test_exploration_is_the_mean_of_the_last_five_evaluations(tmp_path):
    """Seed 1 gains a point an evaluation, seed 2 two; up to step 8 the last five are steps 4 to 8."""
    for name, gain in (("grpo-seed1", 1), ("grpo-seed2", 2), ("clip_cov-seed1", 3)):
        write_run(tmp_path / name, [evaluation(k, gain * k / 100, gain * k / 50, 1 / (1 + k)) for k in range(11)])
    folders = sorted(tmp_path.iterdir(), reverse=True)
    table = table_of("exploration", folders)
    assert list(table) == ["grpo", "clip_cov"]
    assert table["grpo"]["accuracy (%)"] == "12.0" and table["grpo"]["seeds 2"] == "16.0, 8.0"       # mean of steps 6 to 10: 8 steps
    assert table["grpo"]["pass@8 (%)"] == "24.0" and table["clip_cov"]["seeds 3"] == "48.0"
    assert table["grpo"]["final entropy (nats)"] == "0.091"
    assert table["grpo"]["prompts all wrong, last fifth of the steps"] == "9 %"                       # rows of steps 8, 9, 10
    assert table["grpo"]["rounds"] == "2.9"
    cut = table_of("exploration", folders, "--steps", "8")
    assert cut["grpo"]["seeds 2"] == "12.0, 6.0" and cut["grpo"]["final entropy (nats)"] == "0.111"


def test_controls_read_accuracy_where_the_entropy_passes(tmp_path):
    write_run(tmp_path / "a-seed1", [evaluation(k, 0.2 + k / 20, 0.5, 0.5 - k / 20) for k in range(11)])
    write_run(tmp_path / "b-seed1", [evaluation(k, 0.2 + k / 20, 0.5, 0.5 - k / 100) for k in range(11)])
    table = table_of("controls", [tmp_path / "a-seed1", tmp_path / "b-seed1"])
    column = "accuracy where the entropy first passes 0.35 nats (%)"
    assert table["a"][column] == "35.0 at step 3" and table["b"][column] == "not reached"
    assert table["a"]["final accuracy (%)"] == "70.0" and table["a"]["mean of the last five (%)"] == "60.0"


def test_first_crossing_lies_between_two_evaluations():
    assert first_crossing(0.4, [0, 10, 20], [0.6, 0.5, 0.1], [20, 40, 80]) == pytest.approx((12.5, 50))
    assert first_crossing(0.4, [0, 10, 20, 30], [0.6, 0.2, 0.6, 0.2], [0, 10, 20, 30]) == pytest.approx((5, 5))    # the first
    assert np.isnan(first_crossing(0.05, [0, 10], [0.6, 0.5], [20, 40])).all()


def test_entropy_drop_pairs_a_step_with_the_next_one_only():
    rows = [{"step": k, "cov": 10.0 * k, "actor/entropy": H} for k, H in ((1, 0.9), (2, 0.7), (4, 0.6), (5, 0.1))]
    assert entropy_drop(Run("x", {}, rows, "val"), "cov") == pytest.approx(np.array([[10, 40], [0.2, 0.5]]))
    assert blocks(np.arange(25.0)).tolist() == [4.5, 14.5]    # what is left over is no block
