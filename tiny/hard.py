"""Build the hard embedded task: python tiny/hard.py

Writes tiny/hard_base/ (a character model as in make.py), tiny/hard_train.jsonl and tiny/hard_val.jsonl, the same bytes on
every run of one machine and software version. About 4 minutes on one CPU core.

A problem is a topic (a letter) and four digits. Each topic has a recipe, two of eight moves, that turns the digits into
the answer. The prompt does not say which; only the reward does:

    prompt      K4821\\n
    response    r1284x\\boxed{2184}       reversed: 1284; the first two swapped: 2184

The base model carries out every move without a mistake, but chooses by habit, whatever the topic: one move in a third of
the cases, another in a fiftieth. So a recipe is found in one response of six, or in one of 2,500, by the topic. No two topics
share a recipe: what is learned on one does not help with another, but the habit that it strengthens is that of all.
"""
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from make import EOS, LR, make_model, make_tokenizer, set_lr

SEED = 0
HERE = Path(__file__).parent

# problems
TOPICS = "ABCDEFGHIJKLMNOPQRSTUVWX"
N_TRAIN, N_VAL = 4096, 512
MOVES = {
    "r": lambda s: s[::-1],
    "l": lambda s: s[1:] + s[0],
    "x": lambda s: s[1] + s[0] + s[2:],
    "i": lambda s: str((int(s[0]) + 1) % 10) + s[1:],
    "c": lambda s: "".join(str(9 - int(digit)) for digit in s),
    "d": lambda s: s[:-1] + str(int(s[-1]) * 3 % 10),
    "m": lambda s: s[2:] + s[:2],
    "k": lambda s: s[0] + str((int(s[1]) + int(s[2])) % 10) + s[2:],
}
HABIT = np.array([0.36, 0.22, 0.14, 0.10, 0.07, 0.05, 0.04, 0.02])    # chance of each move in the base model
RAREST = 6e-4            # chance of the hardest recipe, about

# training: first each move equally often, then by habit
BATCH = 256
STEPS_SKILLS, STEPS_HABITS = 1200, 300

BOX = "\\boxed{"
CHARS = "0123456789\n}" + TOPICS + "".join(MOVES)


def digits(rng):
    return "".join(map(str, rng.integers(0, 10, size=4)))


def follow(recipe, number):
    """-> after the first move, after the second"""
    halfway = MOVES[recipe[0]](number)
    return halfway, MOVES[recipe[1]](halfway)


def choose_recipes(rng):
    """{topic: recipe}, and the chance of each recipe in the base model: evenly spaced in its logarithm, no two alike."""
    numbers = [digits(rng) for _ in range(50)]
    chance, outcome = {}, {}
    for (a, p), (b, q) in ((x, y) for x in zip(MOVES, HABIT) for y in zip(MOVES, HABIT)):
        chance[a + b], outcome[a + b] = p * q, tuple(follow(a + b, number)[1] for number in numbers)
    success = {r: sum(chance[other] for other in chance if outcome[other] == outcome[r]) for r in chance}
    wanted, recipes = np.geomspace(max(success.values()), RAREST, len(TOPICS)), []
    for value in wanted:
        new = [r for r in success if all(outcome[r] != outcome[other] for other in recipes)]
        recipes.append(min(new, key=lambda r: abs(math.log(success[r] / value))))
    return dict(zip(rng.permutation(list(TOPICS)).tolist(), recipes)), success


def train(model, tokenizer, rng):
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01, betas=(0.9, 0.98))
    steps, moves, prompt_length = STEPS_SKILLS + STEPS_HABITS, list(MOVES), 6
    for step in range(steps):
        set_lr(optimizer, step, steps)
        chances = HABIT if step >= STEPS_SKILLS else np.full(len(MOVES), 1 / len(MOVES))
        texts = []
        for topic, recipe in zip(rng.choice(list(TOPICS), BATCH), rng.choice(moves, (BATCH, 2), p=chances)):
            number = digits(rng)
            halfway, answer = follow(recipe, number)
            texts.append(f"{topic}{number}\n{recipe[0]}{halfway}{recipe[1]}{BOX}{answer}}}{EOS}")
        tokens = torch.tensor(tokenizer(texts).input_ids)                     # all of one length
        logits = model(tokens[:, :-1]).logits[:, prompt_length - 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, prompt_length:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


def main():
    torch.set_num_threads(1)   # sums in the same order everywhere
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    recipes, success = choose_recipes(rng)
    print(" ".join(f"{topic} {recipe} {success[recipe]:.2g}" for topic, recipe in recipes.items()))
    tokenizer = make_tokenizer(CHARS)
    tokenizer.add_tokens([BOX])  # one token, so that a response stays short
    model = make_model(tokenizer)
    train(model, tokenizer, rng)
    model.to(torch.bfloat16).save_pretrained(HERE / "hard_base")
    tokenizer.save_pretrained(HERE / "hard_base")

    problems = {}
    while len(problems) < N_TRAIN + N_VAL:
        topic, number = TOPICS[len(problems) % len(TOPICS)], digits(rng)
        problems[topic + number] = follow(recipes[topic], number)[1]
    rows = [dict(problem=problem, answer=answer, task="exact", source="hard") for problem, answer in problems.items()]
    for name, part in (("train", rows[N_VAL:]), ("val", rows[:N_VAL])):
        (HERE / f"hard_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))


if __name__ == "__main__":
    main()
