"""Long runs: what a fault must not cost. Each fault is a real one; a run is compared with one that met none.

Metrics are compared exactly, without timing_s/* and tokens_per_s.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, CohereForCausalLM, GPT2Config, GPT2LMHeadModel

import train
from faulty import PHASES, ROOT, SMALL, finish, metrics, output, prepare, run, start, start_training

STEPS = ["--max_steps", "5", "--oversample"]  # which goes on at the share that it had measured
TARGET = ["--loss", "entropy_bonus", "--entropy_target", "0.4"]  # a coefficient that has to go on where it was


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A working directory with runs/whole: five steps that nothing disturbed, its five checkpoints kept."""
    folder = prepare(tmp_path_factory.mktemp("whole"))
    options = ["--name", "whole", *SMALL, *STEPS, *TARGET, "--keep_checkpoints", "5", "--samples_every", "1"]
    assert run(folder, options) == [0], output(folder)
    return folder


@pytest.fixture
def stopped(whole, tmp_path) -> Path:
    """The same run as if it had been killed after step 4, while it wrote step 5's metrics: runs/run in a new directory."""
    folder = prepare(tmp_path / "stopped")
    shutil.copytree(whole / "runs/whole", folder / "runs/run")
    shutil.rmtree(folder / "runs/run/checkpoints/step_000005")
    shutil.rmtree(folder / "runs/run/hf")
    path = folder / "runs/run/metrics.jsonl"
    path.write_text(path.read_text()[:-20])
    return folder


def equal_weights(a: Path, b: Path) -> bool:
    pairs = zip(*(AutoModelForCausalLM.from_pretrained(f).state_dict().values() for f in (a, b)))
    return all(torch.equal(x, y) for x, y in pairs)


def wait_for(condition, timeout: float = 300):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


# --- checkpoint and resume --------------------------------------------------------------------------------


def test_a_resumed_run_equals_the_uninterrupted_one_and_damaged_checkpoints_are_skipped(whole, stopped, record_property):
    """Of the newest checkpoints one has a flipped bit, one no manifest, one is half-written."""
    checkpoints = stopped / "runs/run/checkpoints"
    data = next((checkpoints / "step_000004").glob("*.distcp"))
    flipped = bytearray(data.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    data.write_bytes(flipped)
    (checkpoints / "step_000003/manifest.json").unlink()
    shutil.copytree(checkpoints / "step_000002", checkpoints / "step_000005.tmp")
    assert run(stopped, ["--resume", "runs/run"]) == [0], output(stopped)
    said = output(stopped)
    assert "step_000004 is skipped: " in said and "checksum" in said and "step_000003 is skipped: incomplete" in said
    assert "resumed after step 2" in said and "Traceback" not in said
    assert metrics(stopped / "runs/run") == metrics(whole / "runs/whole")
    for step in range(1, 6):
        name = f"samples/step_{step:06d}.jsonl"
        assert (stopped / "runs/run" / name).read_text() == (whole / "runs/whole" / name).read_text()
    assert equal_weights(stopped / "runs/run/hf/step_000005", whole / "runs/whole/hf/step_000005")
    assert not list(checkpoints.glob("*.tmp"))
    record_property("happened", "steps 3 and 4 skipped, resumed after 2: metrics, samples and weights bit for bit")


def test_a_finished_run_only_exports_and_goes_on_with_more_steps_and_other_settings(whole, stopped, tmp_path):
    """Two ranks continue what one began; what is given on the command line is listed, and stays."""
    options = ["--resume", "runs/run", "--max_steps", "6", "--lr", "0.0003"]
    assert run(stopped, options, ranks=2) == [0, 0], output(stopped)
    said, config = output(stopped), json.loads((stopped / "runs/run/config.json").read_text())
    assert "--lr 0.0003: was 0.00015" in said and "--max_steps 6: was 5" in said and "--seed" not in said
    assert (config["lr"], config["max_steps"], config["name"]) == (0.0003, 6, "whole") and "resume" not in config
    rows = metrics(stopped / "runs/run")
    assert rows[:5] == metrics(whole / "runs/whole")[:5] and [row["step"] for row in rows] == list(range(7))
    assert rows[5]["rollout/logprob_diff"] < 1e-5 and rows[6]["actor/lr"] == 0.0003, "the sampler has the resumed weights"

    before = (stopped / "runs/run/metrics.jsonl").read_text()
    shutil.rmtree(stopped / "runs/run/hf")
    assert run(stopped, ["--resume", "runs/run"]) == [0], output(stopped)
    assert (stopped / "runs/run/metrics.jsonl").read_text() == before
    assert (stopped / "runs/run/hf/step_000006/model.safetensors").exists()
    kept = sorted(path.name for path in (stopped / "runs/run/checkpoints").iterdir())
    assert kept == [f"step_{step:06d}" for step in (2, 3, 4, 5, 6)], "the newest five"


def test_the_reward_model_of_prime_goes_on_where_it_was(tmp_path):
    """Two ranks; a step after the checkpoint is lost. Metrics and samples are those of the run that was not cut."""
    folder = prepare(tmp_path / "prime")
    options = ["--name", "whole", *SMALL, "--max_steps", "3", "--advantage", "prime", "--keep_checkpoints", "3", "--samples_every", "1"]
    assert run(folder, options, ranks=2) == [0, 0], output(folder)
    shutil.copytree(folder / "runs/whole", folder / "runs/run")
    shutil.rmtree(folder / "runs/run/checkpoints/step_000003")
    assert run(folder, ["--resume", "runs/run"], ranks=2) == [0, 0], output(folder)
    assert "resumed after step 2" in output(folder)
    rows = metrics(folder / "runs/run")
    assert rows == metrics(folder / "runs/whole") and rows[3]["prm/loss"] > 0
    name = "samples/step_000003.jsonl"
    assert (folder / "runs/run" / name).read_text() == (folder / "runs/whole" / name).read_text()


@pytest.mark.parametrize("what", ("model", "data", "settings", "nothing intact"))
def test_another_model_or_data_is_refused_and_nothing_is_lost(what, stopped):
    options = []
    if what == "model":  # the same path, other weights
        (stopped / "tiny").unlink()
        shutil.copytree(ROOT / "tiny", stopped / "tiny")
        model = AutoModelForCausalLM.from_pretrained(stopped / "tiny/base")
        with torch.no_grad():
            model.model.norm.weight[0] += 0.5
        model.save_pretrained(stopped / "tiny/base")
    if what == "data":
        lines = open(ROOT / "tiny/train.jsonl").readlines()
        (stopped / "other.jsonl").write_text("".join(lines[1:]))
        options = ["--train_data", "other.jsonl"]
    if what == "settings":
        config = stopped / "runs/run/config.json"
        config.write_text(config.read_text().replace('"lr"', '"learning_rate"'))
    if what == "nothing intact":
        for path in (stopped / "runs/run/checkpoints").glob("step_*/manifest.json"):
            path.write_text("{")
    before = (stopped / "runs/run/metrics.jsonl").read_text()
    assert run(stopped, ["--resume", "runs/run", *options]) == [2]
    last = output(stopped).strip().splitlines()[-1]
    word = {"model": "--model", "data": "--train_data", "settings": "learning_rate",
            "nothing intact": "no checkpoint is intact"}[what]
    assert last.startswith("train.py: error: ") and word in last
    assert (stopped / "runs/run/metrics.jsonl").read_text() == before


# --- killed -----------------------------------------------------------------------------------------------


def test_sigkill_of_a_rank_in_every_phase(tmp_path, record_property):
    """Two ranks; in each phase one is killed, the other ends by itself, the next run resumes. The end is the same."""
    folder = prepare(tmp_path / "kills")
    options = [*SMALL, "--max_steps", str(len(PHASES) + 1), "--eval_every", "1"]
    assert run(folder, ["--name", "whole", *options], ranks=2) == [0, 0], output(folder)
    slowest = 0
    for i, phase in enumerate(PHASES):
        victim = 0 if phase.startswith(("log", "save")) else i % 2  # rank 0 alone writes
        processes = start(folder, ["--resume", "runs/run"] if i else ["--name", "run", *options], ranks=2,
                          fault=("kill_in", phase, victim, 1))
        processes[victim].join(300)
        killed = time.monotonic()
        codes = finish(processes, timeout=60)
        slowest = max(slowest, time.monotonic() - killed)
        assert codes[victim] == -signal.SIGKILL and codes[1 - victim] == 1, (phase, codes, output(folder, 1 - victim))
        said = output(folder, 1 - victim)
        assert "Connection closed by peer" in said or "Connection reset by peer" in said, said
    assert run(folder, ["--resume", "runs/run"], ranks=2) == [0, 0], output(folder)
    assert metrics(folder / "runs/run") == metrics(folder / "runs/whole")
    record_property("happened", f"in all {len(PHASES)} ({', '.join(PHASES)}): the other rank ended within {slowest:.1f} s, "
                                "the resumed metrics are the uninterrupted run's")


def test_under_torchrun_the_others_end_and_the_dead_rank_is_named(tmp_path, record_property):
    """Within a minute."""
    folder = prepare(tmp_path / "torchrun")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
               str(ROOT / "tests/faulty.py"), json.dumps(["kill_in", "update", 1, 0]), "--name", "run", *SMALL]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    wait_for((folder / "killed").exists)
    killed = time.monotonic()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1 and "Signal 9 (SIGKILL)" in said and "rank      : 1" in said, said
    record_property("happened", f"torchrun ended {time.monotonic() - killed:.1f} s later and named rank 1")


@pytest.mark.parametrize("ranks", (1, 2))
def test_sigterm_ends_with_a_checkpoint_of_the_step_and_code_0(ranks, tmp_path, record_property):
    """To one rank: all of them stop after the same step, checkpoints due or not."""
    folder = prepare(tmp_path / "sigterm")
    processes = start(folder, ["--name", "run", *SMALL, "--checkpoint_every", "0", "--max_steps", "1000"], ranks=ranks)
    path = folder / "runs/run/metrics.jsonl"
    wait_for(lambda: path.exists() and len(path.read_text().splitlines()) > 2)
    os.kill(processes[-1].pid, signal.SIGTERM)
    assert finish(processes) == [0] * ranks, output(folder)
    last = metrics(folder / "runs/run")[-1]["step"]
    assert f"SIGTERM: stopped after step {last}; train.py --resume runs/run goes on" in output(folder)
    assert [p.name for p in (folder / "runs/run/checkpoints").iterdir()] == [f"step_{last:06d}"]
    assert run(folder, ["--resume", "runs/run", "--max_steps", str(last + 1)], ranks=ranks) == [0] * ranks, output(folder)
    assert [row["step"] for row in metrics(folder / "runs/run")] == list(range(last + 2))
    record_property("happened", f"stopped after step {last} with its checkpoint, code 0; resumed")


# --- a full disk ------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """8 MB of memory as a file system, unmounted in the end."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", "--lazy", disk])


def test_a_full_disk_stops_nothing_and_costs_no_metrics(small_disk, whole, tmp_path, record_property):
    """Full after the metrics of step 2 (its checkpoint fails), free after those of step 4."""
    folder = prepare(tmp_path / "full")
    (folder / "runs").symlink_to(small_disk)
    fault = ("full_disk", str(small_disk / "filler"), 3, 4)
    options = ["--name", "run", *SMALL, *STEPS, *TARGET, "--samples_every", "1", "--save_every", "2", "--keep_checkpoints", "1"]
    assert run(folder, options, fault=fault) == [0], output(folder)
    said = output(folder)
    for name in ("checkpoint step_000002 could not be saved", "checkpoint step_000003 could not be saved",
                 "metrics.jsonl could not be written", "step_000003.jsonl could not be written",
                 "hf/step_000002 could not be written"):
        assert name in said, name
    assert "No space left" in said and "Traceback" not in said.replace("tqdm", "")
    assert metrics(folder / "runs/run") == metrics(whole / "runs/whole")
    assert [p.name for p in (small_disk / "run/checkpoints").iterdir()] == ["step_000005"]
    assert equal_weights(small_disk / "run/hf/step_000005", whole / "runs/whole/hf/step_000005")
    assert not list(small_disk.rglob("*.tmp"))
    record_property("happened", "two checkpoints, samples and an export failed and were named; all metrics and the end as without")


def test_a_disk_that_stays_full_keeps_the_last_good_checkpoint(small_disk, whole, tmp_path, record_property):
    """From step 3 on nothing can be written, the export neither: code 1, and step 2 resumes to the same end."""
    folder = prepare(tmp_path / "full")
    (folder / "runs").symlink_to(small_disk)
    options = ["--name", "run", *SMALL, *STEPS, *TARGET]
    assert run(folder, options, fault=("full_disk", str(small_disk / "filler"), 4, 99)) == [1], output(folder)
    assert "hf/step_000005 could not be written" in output(folder)
    assert sorted(p.name for p in (small_disk / "run/checkpoints").iterdir()) == ["step_000001", "step_000002"]
    assert [row["step"] for row in metrics(small_disk / "run")] == [0, 1, 2, 3]
    (small_disk / "filler").unlink()
    assert run(folder, ["--resume", "runs/run"]) == [0], output(folder)
    assert "resumed after step 2" in output(folder) and metrics(folder / "runs/run") == metrics(whole / "runs/whole")
    record_property("happened", "code 1, checkpoints 1 and 2 kept; resumed after 2 to the uninterrupted metrics")


# --- numbers and batches that are not as they should be -----------------------------------------------------


def test_a_nan_loss_skips_the_update_and_is_counted(tmp_path):
    """On rank 1 alone. The weights stay finite, and the two updates of step 1 that are left out change nothing."""
    folder = prepare(tmp_path / "nan")
    options = ["--name", "run", *SMALL, "--max_steps", "2", "--eval_every", "1"]
    assert run(folder, options, ranks=2, fault=("nan_loss", (0, 1), 1)) == [0, 0], output(folder)
    base, first, second = metrics(folder / "runs/run")
    assert first["actor/skipped"] == 2 and "actor/grad_norm" not in first and second["actor/skipped"] == 0
    val = [key for key in base if key.startswith("val/")]
    assert [first[key] for key in val] == [base[key] for key in val] and second["actor/grad_norm"] > 0


def test_a_sampler_that_drifts_is_named_then_stops_the_run(tmp_path):
    """After the first sync its head is off by 2 %, after the second by a half; the third step stops before its updates."""
    folder = prepare(tmp_path / "drift")
    assert run(folder, ["--name", "run", *SMALL, "--max_steps", "5"], fault=("drifting_sampler", (1.02, 1.5))) == [1]
    said, rows = output(folder), metrics(folder / "runs/run")
    assert said.count("rounding explains") == 1 and "step 2: the sampler's log-probs differ" in said
    assert "stopped: step 3: the sampler's log-probs differ" in said and "--max_logprob_diff is 0.1" in said
    assert 1e-3 < rows[2]["rollout/logprob_diff"] < 0.1 < rows[3]["rollout/logprob_diff"]
    assert "actor/grad_norm" in rows[2] and "actor/grad_norm" not in rows[3]
    assert sorted(p.name for p in (folder / "runs/run/checkpoints").iterdir()) == ["step_000001", "step_000002"]
    assert run(folder, ["--resume", "runs/run", "--max_logprob_diff", "0"]) == [0], output(folder)
    assert [row["step"] for row in metrics(folder / "runs/run")] == list(range(6))


def test_three_nan_losses_in_a_row_stop_the_run_and_keep_the_batch(tmp_path):
    """Code 1; the mini-batch is in a file, the checkpoints of the steps before are there."""
    folder = prepare(tmp_path / "nans")
    options = ["--name", "run", *SMALL, *STEPS]
    assert run(folder, options, fault=("nan_loss", (1, 3, 4, 5))) == [1]
    rows = metrics(folder / "runs/run")
    assert "three updates in a row" in output(folder) and "see runs/run/bad_batch_step_000003.pt" in output(folder)
    assert [row.get("actor/skipped") for row in rows] == [None, 1, 1], "update 1 alone, then 3, 4, 5"
    batch = torch.load(folder / "runs/run/bad_batch_step_000003.pt", weights_only=True)
    assert len(batch["responses"]) == 8
    assert sum(len(response["tokens"]) for response in batch["responses"]) == len(batch["old_logprobs"])
    assert sorted(p.name for p in (folder / "runs/run/checkpoints").iterdir()) == ["step_000001", "step_000002"]


def test_long_prompts_repeated_problems_empty_responses_and_batches_without_contrast(tmp_path):
    """All right, all wrong, then half of the responses empty. One prompt is over the limit, one problem there thrice."""
    folder = prepare(tmp_path / "strange")
    rows = [json.loads(line) for line in open(ROOT / "tiny/train.jsonl").readlines()[:200]]
    rows[7] = rows[8] = rows[9]
    rows[3]["problem"] = ",".join(["1"] * 40) + ":9\n"
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--name", "run", *SMALL, "--max_steps", "3", "--train_data", "train.jsonl", "--samples_every", "3",
               "--max_logprob_diff", "0"]  # the emptied responses have made-up log-probs
    assert run(folder, options, fault=("strange_batches",)) == [0], output(folder)
    assert "1 prompts longer than --max_prompt_tokens are left out" in output(folder)
    assert "dropped 2 rows whose prompt occurred before" in output(folder)
    _, right, wrong, empty = metrics(folder / "runs/run")
    assert right["reward/acc"] == 1 and wrong["reward/acc"] == 0
    for row in (right, wrong):
        assert row["rollout/frac_zero_std"] == 1 and "actor/grad_norm" not in row and row["rollout/gen_rounds"] == 4
    assert empty["actor/grad_norm"] > 0 and empty["actor/skipped"] == 0
    samples = [json.loads(line) for line in open(folder / "runs/run/samples/step_000003.jsonl")]
    assert sum(s["response"] == "" and s["status"] == "no_answer" and s["length"] == 1 for s in samples) >= len(samples) // 2


def test_verifiers_that_are_killed_cost_their_own_response_only(tmp_path, record_property):
    """Every 0.3 s one is killed; the run goes on with new ones."""
    folder = prepare(tmp_path / "verifiers")
    lines = open(ROOT / "tiny/train.jsonl").readlines()
    for name, part in ("math.jsonl", lines[:40]), ("val.jsonl", lines[40:80]):
        rows = list(map(json.loads, part))
        rows = [{"problem": row["problem"], "answer": f"{row['target']}", "task": "math", "source": "m"} for row in rows]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--name", "run", *SMALL, "--max_steps", "3", "--train_data", "math.jsonl", "--max_prompt_tokens", "100",
               "--max_response_tokens", "20", "--max_gen_rounds", "1"]
    assert run(folder, options, fault=("kill_verifiers", 0.3)) == [0], output(folder)
    killed = output(folder).count("killed verifier")
    assert killed >= 2 and [row["step"] for row in metrics(folder / "runs/run")] == [0, 1, 2, 3]
    record_property("happened", f"{killed} workers killed, three steps done")


def test_validation_waits_for_a_verdict_as_long_as_training_does(monkeypatch):
    """--score_timeout reaches both."""
    monkeypatch.setattr(train, "evaluate", lambda *_, **options: {"timeout": options["timeout"], "samples": []})
    run = SimpleNamespace(cfg=train.Config(score_timeout=7.0), sampler=None, vals={"x": []})
    assert train.Run.validate(run) == {"val/x/timeout": 7.0}


# --- bad input --------------------------------------------------------------------------------------------

ROW = '{"problem": "4,1,2,9,6:16\\n", "numbers": [4, 1, 2, 9, 6], "target": 16, "task": "countdown", "source": "x"}\n'


def write(path: str, text: str | bytes) -> str:
    Path(path).write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def model(change) -> list[str]:
    """A copy of tiny/base in ./model, changed; -> the options that choose it"""
    shutil.copytree("tiny/base", "model")
    change(Path("model"))
    return ["--model", "./model"]


def set_json(path: Path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def without_eos(folder: Path):
    for name in ("config.json", "generation_config.json"):
        set_json(folder / name, eos_token_id=None)
    set_json(folder / "tokenizer_config.json", eos_token=None)


def read_only() -> list[str]:
    Path("runs").write_text("a file where the folder should be")
    return []


def own_model() -> list[str]:
    shutil.copytree("tiny/base", "runs/x/hf/step_000150")
    return ["--model", "runs/x/hf/step_000150", "--name", "x", "--overwrite"]


BAD_INPUT = {  # what is made, with the options that name it -> words of the one line
    "cut-off row": (lambda: ["--train_data", write("bad.jsonl", ROW + ROW[:30])], ("bad.jsonl", "row 2")),
    "wrong columns": (lambda: ["--train_data", write("bad.jsonl", ROW + '{"query": "1+1", "answer": "2"}\n')],
                      ("bad.jsonl", "row 2", "problem")),
    "a list, not an object": (lambda: ["--train_data", write("bad.jsonl", "[1]\n")], ("bad.jsonl", "row 1")),
    "not UTF-8": (lambda: ["--train_data", write("bad.jsonl", ROW.encode() + b"\xff\xfe\n")], ("bad.jsonl", "row 2", "UTF-8")),
    "empty file": (lambda: ["--train_data", write("bad.jsonl", "")], ("bad.jsonl",)),
    "every prompt too long": (lambda: ["--train_data", write("bad.jsonl", ROW.replace("4,1,2,9,6:", "1," * 40)),
                                       "--val_data", "tiny/val.jsonl"], ("--max_prompt_tokens",)),
    "no validation set": (lambda: ["--val_data", ""], ("--val_data",)),
    "no EOS": (lambda: model(without_eos), ("EOS",)),
    "more ids than the model has": (lambda: model(lambda m: set_json(m / "config.json", vocab_size=20)), ("tokenizer", "22", "20")),
    "no weights": (lambda: model(lambda m: (m / "model.safetensors").unlink()), ("weights",)),
    "no tokenizer": (lambda: model(lambda m: [(m / n).unlink() for n in ("tokenizer.json", "tokenizer_config.json")]), ("model",)),
    "longer than the model's positions": (lambda: ["--max_response_tokens", "120"], ("128 positions", "--max_response_tokens")),
    "hub offline": (lambda: ["--model", "nobody/nothing", "--kl_cov_ratio", "0.002", "--clip_cov_ratio", "0.0002"], ("nobody/nothing",)),
    "data set, hub offline": (lambda: ["--train_data", "nobody/nothing:train"], ("nobody/nothing",)),
    "tensor parallel without vLLM": (lambda: ["--sampler", "hf", "--tensor_parallel", "2"], ("--tensor_parallel",)),
    "overwrite of its own model": (own_model, ("--overwrite", "--model", "--name")),
    "overwrite of its own second validation set": (lambda: own_model()[2:] + ["--val_data", "tiny/val.jsonl,runs/x/val.jsonl"],
                                                   ("--overwrite", "--val_data", "runs/x/val.jsonl")),
    "more padding ids than vLLM can exclude": (lambda: [*model(lambda m: set_json(m / "config.json", vocab_size=2000)),
                                                        "--sampler", "vllm"], ("1978 ids", "1,024")),
    "a secret": (lambda: ["--wandb", "0123456789abcdef0123456789abcdef01234567"], ("--wandb", "secret")),
    "a secret in a URL": (lambda: ["--train_data", "https://user:pass@host/x.jsonl"], ("--train_data", "secret")),
    "no permission": (read_only, ("runs", "permission")),
    "resume of nothing": (lambda: ["--resume", "runs/none"], ("--resume", "runs/none")),
    "resume of a model": (lambda: ["--resume", "tiny/base"], ("--resume", "tiny/base")),
    "resume under another name": (lambda: ["--resume", "runs/none", "--name", "x"], ("--name",)),
    "tyro's own": (lambda: ["--lr"], ("--lr",)),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_ends_with_one_line_and_code_2(case, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "tiny").symlink_to(ROOT / "tiny")
    make, words = BAD_INPUT[case]
    monkeypatch.setattr(sys, "argv", ["train.py", *make()])
    monkeypatch.setattr(train, "start_distributed", lambda: pytest.fail("training started"))
    world_size = "2" if case.startswith("tensor") else "1"
    monkeypatch.setenv("WORLD_SIZE", world_size)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as exit_:
        start_training()
    lines = capfd.readouterr().err.strip().splitlines()
    assert exit_.value.code == 2 and len(lines) == 1, lines
    assert lines[0].startswith("train.py: error: ") and all(word in lines[0] for word in words), lines
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("what", ("cut off", "unsupported", "scaled logits"))
def test_a_model_that_cannot_be_loaded_or_would_train_wrongly_is_named(what, tmp_path):
    folder = prepare(tmp_path / what)
    shutil.copytree(ROOT / "tiny/base", folder / "model")
    weights = folder / "model/model.safetensors"
    if what == "cut off":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif what == "scaled logits":
        config = CohereConfig(vocab_size=24, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                              num_key_value_heads=2, bos_token_id=0, eos_token_id=1, logit_scale=0.0625)
        CohereForCausalLM(config).save_pretrained(folder / "model")
    else:
        config = GPT2Config(vocab_size=24, n_embd=32, n_layer=1, n_head=2, eos_token_id=1)
        GPT2LMHeadModel(config).save_pretrained(folder / "model")
    assert run(folder, ["--model", "model"]) == [2], output(folder)
    lines = [line for line in output(folder).splitlines() if line.startswith("train.py: error: --model model: ")]
    assert len(lines) == 1 and "Traceback" not in output(folder) and not (folder / "runs").exists(), output(folder)


def test_no_write_permission_is_found_before_anything_is_loaded(tmp_path, monkeypatch):
    """As root, permission bits count for nothing: what the system says is asked, not the bits."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").symlink_to(ROOT / "tiny")
    asked = []
    monkeypatch.setattr(train.os, "access", lambda path, mode: asked.append((path, mode)))
    with pytest.raises(ValueError, match="runs/grpo-seed1: no permission"):
        train.check(train.Config(), 1)
    assert asked == [(Path("."), os.W_OK | os.X_OK)]


def test_the_other_ranks_leave_an_error_to_rank_0(tmp_path, monkeypatch, capsys):
    slept = []
    monkeypatch.setattr(train.time, "sleep", slept.append)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit):
            train.refuse(ValueError("no"))
    assert slept == [30], "long enough for rank 0 to speak and for torchrun to end this one"


def test_models_with_more_ids_than_the_tokenizer_and_eos_from_the_config_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").symlink_to(ROOT / "tiny")

    def change(folder):
        set_json(folder / "tokenizer_config.json", eos_token=None)
        padded = AutoModelForCausalLM.from_pretrained(folder)
        padded.resize_token_embeddings(27, mean_resizing=False)
        padded.save_pretrained(folder)

    tokenizer = train.load_tokenizer(train.Config(model=model(change)[1]), vllm=False)
    assert tokenizer.eos_token_id is None and len(tokenizer) == 22


# --- security ---------------------------------------------------------------------------------------------


def test_remote_code_runs_only_when_asked_for(tmp_path, monkeypatch, capfd):
    """A model folder that brings code: it is not run, and nobody is asked on the terminal."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").symlink_to(ROOT / "tiny")

    def with_code(folder):
        set_json(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
        (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom transformers import Qwen2Config as Config, "
                                       "Qwen2ForCausalLM as Model\n")

    monkeypatch.setattr(sys, "argv", ["train.py", *model(with_code)])
    with pytest.raises(SystemExit) as exit_:
        start_training()
    lines = capfd.readouterr().err.strip().splitlines()
    assert exit_.value.code == 2 and len(lines) == 1 and "trust_remote_code" in lines[0], lines
    assert not (tmp_path / "ran").exists()


def test_torch_load_and_pickle_are_not_called_on_files_without_weights_only():
    for path in (*ROOT.glob("*.py"), *ROOT.glob("support/*.py")):
        text = path.read_text()
        assert text.count("torch.load(") == text.count("weights_only=True)"), path
        assert "trust_remote_code=True" not in text, path


def test_checkpoints_hold_tensors_only(whole):
    """An object would come back through pickle."""
    metadata = torch.distributed.checkpoint.FileSystemReader(whole / "runs/whole/checkpoints/step_000005").read_metadata()
    assert {type(entry).__name__ for entry in metadata.state_dict_metadata.values()} == {"TensorStorageMetadata"}
