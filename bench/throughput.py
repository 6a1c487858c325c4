"""Speed of train.py beside TRL's GRPOTrainer and beside what this machine can do, measured in one run.

    python bench/throughput.py                                   # the embedded model, ours alone
    python -m venv trl                                           # TRL is needed by the bench only
    trl/bin/pip install torch==2.13.0 transformers==5.19.0 trl==1.16.0
    python bench/throughput.py --trl trl/bin/python              # ... and TRL, step by step in turns
    python bench/throughput.py --convert_smollm2 smollm2         # SmolLM2-135M as a folder; README: what it needs
    python bench/throughput.py --trl trl/bin/python --model smollm2 --samplers hf,vllm --threads 2
    python bench/throughput.py --updates 8 ...                   # the paper's regime: eight updates a rollout
    python bench/throughput.py --scales 1,2,4                    # does a step's time grow with its tokens?

Every side is a process of its own that does one step when it is its turn: ours is train.py's main(), TRL's
is GRPOTrainer.train(). The same model, prompts, group size, limit of tokens, AdamW, fp32, threads and updates a
rollout; a micro-batch holds `micro_rows` responses on TRL's side and as many padded tokens on ours. In a
group every second response is "right", so that no group is dropped; ours verifies all the same, TRL verifies
nothing. TRL skips the log-prob pass when there is one update (ours needs its entropies); its rate is timed on
the same batch outside of the step, and one row is our step without it. With --updates 8 both have it. Rates are response tokens a second:
medians over the steps after the first. Process GB: the largest resident memory of the whole process, on our
side with two copies of the weights, trainer's and sampler's (bench/memory.py has the phases alone).

The limit: the model's matrix products alone, at the shapes of this micro-batch (of one token a response when
generating), without padding, attention, or anything else, timed in turn with the rest. Bare sampler: the same
generate() call outside of the loop. On a machine that does other work too, use `--clock cpu`: CPU seconds of
all threads instead of seconds.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from memory import reset_peak, resident

ROOT = Path(__file__).resolve().parents[1]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Turns:
    """A worker's end of the line to the bench: answer, then wait until it is asked again."""

    def __init__(self):
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)    # what libraries print must not get between the answers

    def answer_and_wait(self, answer: dict):
        print(json.dumps(answer), file=self.out, flush=True)
        if not sys.stdin.readline():
            os._exit(0)    # the bench has ended


# --- the sides: each runs in its own process --------------------------------------------------------------


def ours(args, sampler: str):
    os.chdir(args.scratch)
    sys.path.insert(0, str(ROOT))
    from support import mechanism
    turns, clock, seconds, peaks, last = Turns(), CLOCKS[args.clock], {}, {}, {}

    @contextlib.contextmanager
    def timed(phase):
        reset_peak()
        start = clock()
        yield
        seconds[phase] = seconds.get(phase, 0.0) + clock() - start
        peaks[phase] = max(peaks.get(phase, 0.0), resident())

    mechanism.timed = timed    # before train.py decorates its phases with it
    import reward
    import train
    real_score, real_generate, real_write = reward.score_batch, train.generate, train.RunFolder.write
    real_batches = train.mini_batches

    def score_batch(*a, **kw):
        scores = real_score(*a, **kw)
        return [s._replace(reward=float(i % 2)) for i, s in enumerate(scores)]

    def generate(run, problems, seed):
        last.update(sampler=run.sampler, prompts=[reward.format_prompt(p, run.tokenizer) for p in problems])
        return real_generate(run, problems, seed)

    def mini_batches(*a):
        minis = real_batches(*a)
        last["padded"] = sum(m.input_ids.numel() for mini in minis for m in mini.batches)    # prompts, responses, padding
        return minis

    def write(folder, metrics, *rows):
        start = clock()
        real_write(folder, metrics, *rows)
        answer = {}
        if metrics["step"]:
            seconds.update(step=start - last["start"], log=clock() - start)
            tokens = metrics["response_length/mean"] * args.prompts * args.group
            prompt_tokens = args.group * sum(map(len, last["prompts"]))
            answer = dict(seconds=seconds, tokens=tokens, prompt_tokens=prompt_tokens, padded=last["padded"],
                          peaks=peaks, bare=bare_rate())
        turns.answer_and_wait(answer)
        seconds.clear()
        last["start"] = clock()

    def bare_rate() -> float:
        start = clock()
        samples = last["sampler"].generate(last["prompts"], n=args.group, max_tokens=args.max_tokens,
                                           temperature=1.0, seed=int(1000 * start))
        return sum(len(s.token_ids) for group in samples for s in group) / (clock() - start)

    reward.score_batch, train.generate, train.RunFolder.write = score_batch, generate, write
    train.mini_batches = mini_batches
    budget = args.micro_rows * (args.max_prompt + args.max_tokens)
    options = dict(name=sampler, model=args.model, train_data=args.data, val_data=args.val, sampler=sampler,
                   max_prompt_tokens=args.max_prompt, max_response_tokens=args.max_tokens, max_gen_rounds=1,
                   prompts_per_step=args.prompts, mini_batch_prompts=args.prompts // args.updates,
                   group_size=args.group, compile=args.compile, micro_batch_tokens=budget, max_steps=10**6,
                   eval_every=0, val_samples=1, samples_every=0, checkpoint_every=0, lr=args.lr, clip_cov_ratio=2e-4, kl_cov_ratio=2e-4)
    train.main(train.Config(**options))


def trl(args):
    os.environ.update(HF_HUB_OFFLINE="1", WANDB_DISABLED="true")
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    torch.set_num_threads(args.threads)
    turns, clock, now, peaks = Turns(), CLOCKS[args.clock], {}, {}

    class Trainer(GRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *a, **kw):
            start = clock()
            result = super()._generate_single_turn(prompt_ids, *a, **kw)
            now.update(gen=clock() - start, tokens=sum(map(len, result[0])))
            return result

        def _generate_and_score_completions(self, inputs):
            start = clock()
            result = super()._generate_and_score_completions(inputs)
            now["before_update"] = clock() - start
            reset_peak()
            return result

    class Steps(TrainerCallback):
        def on_step_begin(self, args_, state, *_, **__):
            if state.global_step % args.updates == 0:
                now["start"] = clock()

        def on_step_end(self, args_, state, *_, **__):
            if state.global_step % args.updates:
                return    # a rollout has more of them
            step = clock() - now["start"]
            peaks["update"] = resident()
            reset_peak()
            start = clock()
            with torch.no_grad():
                for m in trainer._buffered_inputs:
                    trainer._get_per_token_logps_and_entropies(
                        trainer.model, torch.cat([m["prompt_ids"], m["completion_ids"]], 1),
                        torch.cat([m["prompt_mask"], m["completion_mask"]], 1), m["completion_ids"].shape[1],
                        compute_entropy=True)
            seconds = dict(gen=now["gen"], logprob=clock() - start, step=step, update=step - now["before_update"])
            peaks["logprob"] = resident()
            turns.answer_and_wait(dict(seconds=seconds, tokens=now["tokens"], peaks=peaks))

    config = GRPOConfig(
        output_dir=f"{args.scratch}/trl", num_generations=args.group, max_completion_length=args.max_tokens,
        per_device_train_batch_size=args.micro_rows,
        gradient_accumulation_steps=args.prompts * args.group // args.micro_rows // args.updates,
        steps_per_generation=args.prompts * args.group // args.micro_rows,
        learning_rate=args.lr, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, beta=0.0,
        temperature=1.0, bf16=False, use_cpu=True, gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"}, shuffle_dataset=False, max_steps=10**6,
        logging_steps=1, save_strategy="no", report_to="none",
        disable_tqdm=True, dataloader_pin_memory=False)
    data = Dataset.from_list([{"prompt": json.loads(line)["prompt"]} for line in open(args.data)])
    trainer = Trainer(args.model, lambda completions, **_: [float(i % 2) for i in range(len(completions))],
                      args=config, train_dataset=data, callbacks=[Steps()])
    turns.answer_and_wait({})
    trainer.train()


def limit(args):
    """Seconds a token of the model's matrix products, in the layers and in the head."""
    import torch
    from transformers import AutoConfig
    torch.set_num_threads(args.threads)
    turns, clock, c = Turns(), CLOCKS[args.clock], AutoConfig.from_pretrained(args.model)
    d, ff = c.hidden_size, c.intermediate_size
    kv = d // c.num_attention_heads * c.num_key_value_heads
    layer = [(d, d), (d, kv), (d, kv), (d, d), (d, ff), (d, ff), (ff, d)]    # q, k, v, o, gate, up, down
    shapes = {"layers": Counter(layer * c.num_hidden_layers), "head": Counter([(d, c.vocab_size)])}
    micro_batch, responses = min(1024, args.micro_rows * args.max_tokens), args.prompts * args.group
    kinds = {"forward": (micro_batch, False), "backward": (micro_batch, True), "decoding": (responses, False)}

    def seconds(rows: int, backward: bool, n_in: int, n_out: int) -> float:
        x, w, g = torch.randn(rows, n_in), torch.randn(n_out, n_in), torch.randn(rows, n_out)
        repeats, times = max(1, int(1e9 / (rows * n_in * n_out))), []
        for _ in range(3):
            start = clock()
            for _ in range(repeats):
                (g @ w, g.T @ x) if backward else x @ w.T
            times.append((clock() - start) / repeats / rows)
        return min(times)

    answer = {}
    while True:
        turns.answer_and_wait(answer)
        answer = {f"{part} {kind}": sum(n * seconds(*setting, *shape) for shape, n in shapes[part].items())
                  for part in shapes for kind, setting in kinds.items()}


SIDES = {"hf": functools.partial(ours, sampler="hf"), "vllm": functools.partial(ours, sampler="vllm"), "trl": trl,
         "limit": limit}


# --- the bench: asks the sides in turns -------------------------------------------------------------------


class Side:
    def __init__(self, name: str, args):
        self.name, self.answers = name, []
        self.log = open(f"{args.scratch}/{name}.log", "w+")
        python = args.trl if name == "trl" else sys.executable
        env = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "false"}
        command = [python, __file__, "--side", name, "--settings", json.dumps(vars(args))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                        env=env, text=True)
        self.receive()    # it is ready

    def receive(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            sys.exit(f"bench/throughput.py: {self.name} ended:\n{self.log.read()[-2000:]}")
        return json.loads(line)

    def turn(self, keep: bool):
        print("go", file=self.process.stdin, flush=True)
        answer = self.receive()
        if keep:
            self.answers.append(answer)

    def median(self, value) -> float:
        return statistics.median(map(value, self.answers))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def write_data(args):
    """Prompts as train.py's rows, with the text that TRL is given: after the chat template, if there is one."""
    sys.path.insert(0, str(ROOT))
    from transformers import AutoTokenizer
    import reward
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    if args.model == f"{ROOT}/tiny/base":
        rows = [json.loads(line) for line in open(f"{ROOT}/tiny/train.jsonl")]
    else:
        rows = [dict(problem=f"Make {target} from the numbers {a} and {b}.", numbers=[a, b], target=target,
                     task="countdown", source="countdown")    # answers are short, and few reach the limit
                for a in range(2, 10) for b in range(2, 10) for target in (a + b, a * b)]
    rows = rows[:64 * args.prompts]
    for row in rows:
        ids = reward.format_prompt(row, tokenizer)
        row["prompt"] = tokenizer.decode(ids)
        assert tokenizer(row["prompt"]).input_ids == ids, "TRL would see another prompt"
    args.max_prompt = max(len(reward.format_prompt(row, tokenizer)) for row in rows)
    args.data, args.val = f"{args.scratch}/train.jsonl", f"{args.scratch}/val.jsonl"
    Path(args.data).write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path(args.val).write_text(json.dumps(rows[0] | {"source": "val"}) + "\n")


def run(args, names: list[str]) -> dict[str, Side]:
    write_data(args)
    sides = {name: Side(name, args) for name in names}
    for step in range(args.steps + 1):
        for side in sides.values():
            side.turn(keep=step > 0)
        print(f"\rstep {step} of {args.steps}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for side in sides.values():
        side.close()
    return sides


def report(args, sides: dict[str, Side]):
    names = [name for name in sides if name != "limit"]
    mine = [name for name in names if name != "trl"]
    label = {name: "TRL" if name == "trl" else f"ours, {name}" for name in names}
    lengths = {name: sides[name].median(lambda a: a["tokens"]) / args.prompts / args.group for name in names}
    print(f"{args.model}: {args.prompts} prompts x {args.group} responses of up to {args.max_tokens} tokens, mean "
          f"length {', '.join(f'{lengths[name]:.0f} ({label[name]})' for name in names)}; fp32, {args.threads} "
          f"threads, {args.micro_rows} rows a micro-batch, {args.updates} updates, {args.steps} steps, {args.clock} clock")

    def row(title: str, value, digits: int):
        values = {name: value(sides[name]) for name in names}
        ratios = [f"{values[name] / values['trl']:18.2f}" for name in mine if "trl" in sides]
        print(f"{title:24}" + "".join(f"{values[name]:12.{digits}f}" for name in names) + "".join(ratios))

    print(f"{'response tokens/s':24}" + "".join(f"{label[name]:>12}" for name in names)
          + "".join(f"{label[name] + ' / TRL':>18}" for name in mine if "trl" in sides))
    titles = dict(gen="generation", logprob="log-prob pass", update="update", step="whole step")
    for phase, title in titles.items():
        row(title, lambda side: side.median(lambda a: a["tokens"] / a["seconds"][phase]), digits=1)
    if args.updates == 1:
        row("step, no log-prob pass", lambda side: side.median(lambda a: a["tokens"] / (
            a["seconds"]["step"] - (a["seconds"]["logprob"] if side.name != "trl" else 0))), digits=1)
    for phase in ("logprob", "update"):
        row(f"process GB, {phase}", lambda side: max(a["peaks"][phase] for a in side.answers), digits=2)

    cost = {key: sides["limit"].median(lambda a: a[key]) for key in sides["limit"].answers[0]}
    for name in mine:
        side = sides[name]
        seconds = {k: side.median(lambda a: a["seconds"][k]) for k in side.answers[0]["seconds"]}
        T, P = side.median(lambda a: a["tokens"]), side.median(lambda a: a["prompt_tokens"])
        padded = side.median(lambda a: a["padded"])
        forward, backward = ((T + P) * cost[f"layers {k}"] + T * cost[f"head {k}"] for k in ("forward", "backward"))
        decoding = T * (cost["layers decoding"] + cost["head decoding"])
        bare = side.median(lambda a: a["tokens"] / a["seconds"]["gen"] / a["bare"])
        phases = dict(gen=-1, logprob=-1, update=-1, sync=-1, step=1, log=1)
        rest = side.median(lambda a: sum(sign * a["seconds"][k] for k, sign in phases.items()))
        print(f"{label[name]}, share of the limit: update {(forward + backward) / seconds['update']:.0%}, log-prob "
              f"pass {forward / seconds['logprob']:.0%}, generation {decoding / seconds['gen']:.0%} "
              f"(of the bare sampler: {bare:.0%}); padding {padded / (T + P) - 1:.0%} of the tokens")
        print(f"{label[name]}, share of a step: sync {seconds['sync'] / seconds['step']:.1%}, scoring, measuring, "
              f"logging and gathering {rest / seconds['step']:.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=f"{ROOT}/tiny/base", help="a Hugging Face folder")
    parser.add_argument("--trl", metavar="PYTHON", help="the Python of an environment with trl 1.16.0")
    parser.add_argument("--samplers", default="hf", help="ours: hf, vllm, or both")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--updates", type=int, default=1, help="optimizer steps a rollout; the paper: 8")
    parser.add_argument("--compile", action="store_true", help="ours: decoder layers compiled")
    parser.add_argument("--max_tokens", type=int, default=56)
    parser.add_argument("--micro_rows", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--scales", help="1,2,4: ours alone, with so many times the prompts")
    parser.add_argument("--convert_smollm2", metavar="FOLDER")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        SIDES[args.side](argparse.Namespace(**args.settings))
    elif args.convert_smollm2:
        sys.path.insert(0, str(ROOT))
        from small.make import load_smollm2
        for part in load_smollm2():
            part.save_pretrained(args.convert_smollm2)
    else:
        args.model = str(Path(args.model).resolve())
        with tempfile.TemporaryDirectory() as args.scratch:
            mine = args.samplers.split(",")
            if args.scales:
                print(f"{'prompts':>8} {'tokens':>8} {'step, s':>8} {'ms a token':>11}")
                prompts = args.prompts
                for scale in map(int, args.scales.split(",")):
                    args.prompts = prompts * scale
                    side = run(args, mine[:1])[mine[0]]
                    tokens = side.median(lambda a: a["tokens"])
                    step = side.median(lambda a: a["seconds"]["step"])
                    print(f"{args.prompts:8d} {tokens:8.0f} {step:8.2f} {1000 * step / tokens:11.3f}")
                    args.scratch = tempfile.mkdtemp(dir=args.scratch)
            else:
                report(args, run(args, [*mine, *(["trl"] if args.trl else []), "limit"]))


if __name__ == "__main__":
    main()
