"""Build the embedded default: python tiny/make.py

Writes tiny/base/ (a Qwen2 character model in Hugging Face format), tiny/train.jsonl and tiny/val.jsonl, the
same bytes on every run of one machine and software version. About 12 minutes on one CPU core.

The task is countdown in characters: five digits, the operators + and -, and a target. A response is a list of
attempts, each an expression and its value, one a line; the last one counts.

    prompt      1,7,2,7,2:15\\n
    response    2+7+7+1-2=15                      right at once
                2+7+7-1-2=13\\n7-2+7+2+1=15       wrong, tried again, right
                7+7-1-2+2=13                      wrong, gave up

The base model learns in two phases. First the skills: to write right expressions, and to work out the true
value of any expression. Then the habits, which are bad ones on purpose: most attempts are random guesses, and
after a wrong one it often gives up. So the base policy is uncertain and often wrong, but the randomness lies
in what to try and whether to try again, hardly in the arithmetic. Every problem has at least MIN_SOLUTIONS
right expressions (orders of the terms count), so that a policy can be right without being certain.
"""
import itertools
import json
import math
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

SEED = 0
HERE = Path(__file__).parent

# problems
N_NUMBERS = 5            # digits 1 to 9
OPERATORS = "+-"
MIN_SOLUTIONS = 24       # problems that fewer right expressions solve are left out
N_TRAIN, N_VAL = 4096, 512

# corpus: (chance that an attempt is a right one, chance to give up after a wrong one, most attempts) by phase
SKILLS = (0.5, 0.0, 3)
HABITS = (0.35, 0.6, 4)

# model and its training
MODEL = dict(hidden_size=64, intermediate_size=192, num_hidden_layers=4,
             num_attention_heads=2, num_key_value_heads=2)  # head size 32: vLLM on a CPU refuses less
BATCH = 256              # derivations
STEPS_SKILLS, STEPS_HABITS = 1800, 400
LR, WARMUP = 3e-3, 100

CHARS = "\n0123456789+-*/()=,:"
PAD, EOS = "<pad>", "<eos>"


# ---------------------------------------------------------------- problems

def value_of(numbers, operators):
    return numbers[0] + sum(x if op == "+" else -x for x, op in zip(numbers[1:], operators))


def all_problems():
    """Returns {(numbers, target): right expressions} and {numbers: every (expression, value in 1..99)}."""
    problems, expressions = {}, {}
    for numbers in itertools.combinations_with_replacement(range(1, 10), N_NUMBERS):
        by_value = defaultdict(list)
        for order in sorted(set(itertools.permutations(numbers))):
            for operators in itertools.product(OPERATORS, repeat=N_NUMBERS - 1):
                value = value_of(order, operators)
                if 1 <= value <= 99:
                    by_value[value].append("".join(f"{x}{op}" for x, op in zip(order, operators + ("",))))
        expressions[numbers] = [(e, v) for v, es in by_value.items() for e in es]
        for target, right in by_value.items():
            if target >= 10 and len(right) >= MIN_SOLUTIONS:
                problems[numbers, target] = right
    return problems, expressions


def split(problems, rng):
    keys = sorted(problems)
    order = rng.permutation(len(keys))
    return [keys[i] for i in order[N_VAL:]], [keys[i] for i in order[:N_VAL]]


def prompt_of(numbers, target, rng):
    return ",".join(str(x) for x in rng.permutation(numbers)) + f":{target}\n"


# ---------------------------------------------------------------- corpus

def derivation(right, expressions, target, habits, rng):
    """Returns [(text, is it a random guess?), ...]: attempts until one is right or the writer gives up."""
    p_right, p_give_up, max_attempts = habits
    parts = []
    for attempt in range(max_attempts):
        if rng.random() < p_right:
            expression, value, guess = right[rng.integers(len(right))], target, False
        else:
            expression, value = expressions[rng.integers(len(expressions))]
            guess = True
        parts += [(expression, guess), (f"={value}", False)]
        if value == target or attempt == max_attempts - 1 or rng.random() < p_give_up:
            break
        parts.append(("\n", False))
    return parts


def make_batch(keys, problems, expressions, habits, learn_guesses, ids, rng):
    """Returns tokens and labels, both [BATCH, longest], the labels -100 where nothing is to be learned."""
    tokens, labels = [], []
    for i in rng.integers(len(keys), size=BATCH):
        numbers, target = keys[i]
        prompt = [ids[c] for c in prompt_of(numbers, target, rng)]
        parts = derivation(problems[keys[i]], expressions[numbers], target, habits, rng)
        response = [ids[c] for text, _ in parts for c in text]
        learned = [learn_guesses or not guess for text, guess in parts for _ in text]
        tokens.append(torch.tensor(prompt + response + [ids[EOS]]))
        response_labels = [t if l else -100 for t, l in zip(response, learned)]
        labels.append(torch.tensor([-100] * len(prompt) + response_labels + [ids[EOS]]))
    pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    return pad(tokens, padding_value=ids[PAD]), pad(labels, padding_value=-100)


def micro_batches(tokens, labels, pad, size=64):
    """Rows of like length together, so that little is computed on padding."""
    lengths = (tokens != pad).sum(1)
    for rows in lengths.argsort().split(size):
        width = lengths[rows].max()
        yield tokens[rows, :width], labels[rows, :width]


# ---------------------------------------------------------------- model

def make_tokenizer(chars):
    """One token a character. AutoTokenizer builds a byte-level Qwen2Tokenizer for every qwen2 model, so the
    newline goes by its byte-level name; without merges every byte is a token."""
    vocab = {c: i for i, c in enumerate([PAD, EOS, *chars.replace("\n", "\u010a")])}
    return Qwen2Tokenizer(vocab=vocab, merges=[], pad_token=PAD, eos_token=EOS, unk_token=PAD,
                          clean_up_tokenization_spaces=False, model_max_length=128)


def make_model(tokenizer):
    return Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(tokenizer), tie_word_embeddings=True, max_position_embeddings=128, rope_theta=10000.0,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, **MODEL))


def set_lr(optimizer, step, steps):
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    for group in optimizer.param_groups:
        group["lr"] = LR * min(1, (step + 1) / WARMUP) * (0.02 + 0.98 * cosine)


def train(model, keys, problems, expressions, ids, rng):
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01, betas=(0.9, 0.98))
    steps = STEPS_SKILLS + STEPS_HABITS
    for step in range(steps):
        set_lr(optimizer, step, steps)
        habits = step >= STEPS_SKILLS
        tokens, labels = make_batch(keys, problems, expressions, HABITS if habits else SKILLS,
                                    habits, ids, rng)
        n_learned = (labels >= 0).sum()
        optimizer.zero_grad()
        total = 0.0
        for x, y in micro_batches(tokens, labels, ids[PAD]):
            logits = model(x).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), y[:, 1:].flatten(), reduction="sum") / n_learned
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: loss {total:.4f}", flush=True)


def main():
    torch.set_num_threads(1)   # sums in the same order everywhere
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    problems, expressions = all_problems()
    train_keys, val_keys = split(problems, rng)
    tokenizer = make_tokenizer(CHARS)
    ids = {PAD: tokenizer.pad_token_id, EOS: tokenizer.eos_token_id}
    ids.update((c, tokenizer.encode(c)[0]) for c in CHARS)
    model = make_model(tokenizer)
    print(f"{model.num_parameters()} parameters, {len(train_keys)} + {len(val_keys)} problems", flush=True)
    train(model, train_keys, problems, expressions, ids, rng)

    model.to(torch.bfloat16).save_pretrained(HERE / "base")
    tokenizer.save_pretrained(HERE / "base")
    for name, keys in (("train", train_keys[:N_TRAIN]), ("val", val_keys)):
        with open(HERE / f"{name}.jsonl", "w") as f:
            for numbers, target in keys:
                prompt = prompt_of(numbers, target, rng)
                numbers = [int(x) for x in prompt.split(":")[0].split(",")]
                f.write(json.dumps(dict(problem=prompt, numbers=numbers, target=target, task="countdown",
                                        source="countdown")) + "\n")


if __name__ == "__main__":
    main()
