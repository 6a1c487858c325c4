"""The hard embedded task: its problems, and the base model that knows every move and seldom takes the right ones."""

import json
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tiny")]
import hard
from reward import load_data
from support.samplers import HFSampler

BASE = str(ROOT / "tiny/hard_base")


@pytest.fixture(scope="module")
def data():
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    return tokenizer, *load_data(str(ROOT / "tiny/hard_train.jsonl"), str(ROOT / "tiny/hard_val.jsonl"), tokenizer, 8)


def test_each_topic_has_one_recipe_in_both_files_and_no_two_the_same(data):
    _, train, val = data
    (val,) = val.values()
    assert (len(train), len(val)) == (4096, 512) and not {row["problem"] for row in train} & {row["problem"] for row in val}
    recipes = {}
    for row in [*train, *val]:
        fits = {recipe for recipe in (a + b for a in hard.MOVES for b in hard.MOVES)
                if hard.follow(recipe, row["problem"][1:])[1] == row["answer"]}
        recipes[row["problem"][0]] = recipes.get(row["problem"][0], fits) & fits
    assert sorted(recipes) == list(hard.TOPICS) and all(recipes.values())
    assert not any(recipes[a] & recipes[b] for a in recipes for b in recipes if a < b)


def test_moves_by_hand():
    assert [hard.follow(recipe, "4821") for recipe in ("rx", "lm", "ic", "dk")] == \
        [("1284", "2184"), ("8214", "1482"), ("5821", "4178"), ("4823", "4023")]


def test_chances_of_the_recipes_are_spread_over_two_decades():
    recipes, success = hard.choose_recipes(np.random.default_rng(0))
    chances = sorted((success[recipe] for recipe in recipes.values()), reverse=True)
    assert chances[0] > 0.1 and chances[-1] < 1e-3 and all(a < 2.1 * b for a, b in pairwise(chances))


def test_the_base_model_makes_no_mistake_in_a_move_and_ignores_the_topic(data):
    tokenizer, _, val = data
    (val,) = val.values()
    sampler = HFSampler(BASE, tokenizer, device="cpu", dtype=torch.float32)
    prompts = [tokenizer(row["problem"] + "\n").input_ids for row in val]
    first, clean, total = Counter(), 0, 0
    for row, group in zip(val, sampler.generate(prompts, n=4, max_tokens=16, temperature=1.0, seed=0)):
        for text in (tokenizer.decode(sample.token_ids) for sample in group):
            a, halfway, b, answer = text[0], text[1:5], text[5], text[13:17]
            first[a] += 1
            total += 1
            clean += a in hard.MOVES and b in hard.MOVES and hard.follow(a + b, row["problem"][1:]) == (halfway, answer)
    assert clean > 0.98 * total
    for move, chance in zip(hard.MOVES, hard.HABIT):
        assert abs(first[move] / total - chance) < 0.04
