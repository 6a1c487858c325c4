"""Peak memory of the log-prob pass and of the update on one micro-batch, by vocabulary, beside TRL's.

    python bench/memory.py                          # ours alone
    python bench/memory.py --trl trl/bin/python     # an environment with trl, as in bench/throughput.py

A random model (width 576, 4 layers, decoder layers recomputed in backward on both sides) and a micro-batch of
random tokens, in a fresh process each. What is measured: the largest resident memory during the phase, less
what was resident before it (weights), read from /proc (Linux). The update is forward, GRPO's loss and backward,
so it includes one gradient. TRL's side is the call that its GRPOTrainer makes: the model with its fused head,
log-probs and entropy.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GB = 2**30


def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")


def resident(field: str = "VmHWM") -> float:
    """GB. VmHWM: the peak since reset_peak(); VmRSS: now."""
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 / GB for line in lines if line.startswith(field))


def measure(side: str, vocab: int, rows: int, prompt: int, response: int) -> dict[str, float]:
    """{phase: GB above the weights, "weights": GB}, in this process."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=vocab, hidden_size=576, intermediate_size=1536, num_hidden_layers=4,
                         num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True)
    model = Qwen2ForCausalLM(config)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    ids = torch.randint(vocab, (rows, prompt + response))
    advantages = torch.randn(rows, 1).expand(rows, response)
    if side == "trl":
        from trl.trainer.utils import add_fused_lm_head
        add_fused_lm_head(model, temperature=1.0, outputs=("log_probs", "entropy"))
        labels = ids.masked_fill(torch.arange(prompt + response) < prompt, -100)
        mask = torch.ones_like(ids)

        def logprobs():
            output = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
            return output.log_probs[:, -response:]
    else:
        sys.path.insert(0, str(ROOT))
        from train import Policy
        policy = Policy(model, vocab, temperature=1.0)
        mask = torch.ones(rows, response, dtype=torch.bool)

        def logprobs():
            return policy(ids, torch.full((rows,), prompt), ids[:, prompt:], mask)[0]

    def log_prob_pass():
        with torch.no_grad():
            return logprobs()

    def update():
        ratio = (logprobs() - old).exp()
        torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).mean().backward()

    old = log_prob_pass()
    result = {"weights": sum(p.numel() * p.element_size() for p in model.parameters()) / GB}
    for phase in (log_prob_pass, update):
        before = resident("VmRSS")
        reset_peak()
        phase()
        result[phase.__name__] = resident() - before
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", metavar="PYTHON", help="the Python of an environment with trl")
    parser.add_argument("--vocabs", default="50000,150000")
    parser.add_argument("--rows", type=int, default=16, help="responses in the micro-batch")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--response", type=int, default=256)
    parser.add_argument("--measure", help=argparse.SUPPRESS)    # side,vocab: one case, in this process
    args = parser.parse_args()
    if args.measure:
        side, vocab = args.measure.split(",")
        print(json.dumps(measure(side, int(vocab), args.rows, args.prompt, args.response)))
        return
    pythons = {"ours": sys.executable} | ({"trl": args.trl} if args.trl else {})
    print(f"{args.rows} x ({args.prompt} + {args.response}) tokens in fp32; GB above the weights")
    print(f"{'vocabulary':>10} {'side':5} {'weights':>8} {'log-probs':>10} {'update':>8} {'logits, if whole':>17}")
    for vocab in map(int, args.vocabs.split(",")):
        for side, python in pythons.items():
            sizes = [f"--rows={args.rows}", f"--prompt={args.prompt}", f"--response={args.response}"]
            # so that what is freed goes back to the system at once, and the next phase starts from nothing
            env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
            done = subprocess.run([python, __file__, "--measure", f"{side},{vocab}", *sizes], capture_output=True,
                                  text=True, env=env)
            if done.returncode:
                why = done.stderr.strip().rpartition("\n")[2] or f"ended by signal {-done.returncode}"
                sys.exit(f"bench/memory.py: {side}, {vocab} ids: {why}")
            r = json.loads(done.stdout.splitlines()[-1])
            logits = args.rows * args.response * vocab * 4 / GB
            print(f"{vocab:10d} {side:5} {r['weights']:8.2f} {r['log_prob_pass']:10.2f} {r['update']:8.2f} {logits:17.2f}",
                  flush=True)


if __name__ == "__main__":
    main()
