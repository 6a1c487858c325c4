"""Several nodes are torchrun's business: two agents with a rank each train as one with two."""

import json
import socket
import subprocess
import sys

from test_train import ENV, ROOT, run_training, without_times

SHORT = ["--prompts_per_step", "4", "--mini_batch_prompts", "2", "--group_size", "4", "--max_steps", "2",
         "--eval_every", "0", "--val_samples", "1", "--loss", "kl_cov"]


def test_two_agents_give_the_metrics_of_one(tmp_path):
    (tmp_path / "one").mkdir()
    one = run_training(tmp_path / "one", *SHORT, ranks=2)
    (tmp_path / "tiny").symlink_to(ROOT / "tiny")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1",
               "--master_addr=127.0.0.1", f"--master_port={port}"]
    training = [str(ROOT / "train.py"), "--name", "run", *SHORT]
    agents = [subprocess.Popen([*command, f"--node_rank={node}", *training], env=ENV, cwd=tmp_path,
                               stderr=subprocess.PIPE, text=True) for node in range(2)]
    errors = [agent.communicate(timeout=900)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], errors[0][-2000:] + errors[1][-2000:]
    two = [json.loads(line) for line in open(tmp_path / "runs/run/metrics.jsonl")]
    assert len(two) == 3
    assert without_times(two) == without_times(one)


def test_what_a_gpu_will_have_to_show_runs_on_a_cpu():
    """bench/gpu.py: only the hardware is missing. It ends with code 0 if no claim failed."""
    done = subprocess.run([sys.executable, str(ROOT / "bench/gpu.py"), "--tiny", "--gpus", "1"], env=ENV, capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\npass ") == 4 and "2 of 2 steps to the last digit" in done.stdout and "FAIL" not in done.stdout
