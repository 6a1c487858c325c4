"""Speed and safety of reward.py against calling math-verify directly, in one run on this machine.

    python bench/rewards.py                 # about two minutes on two quiet cores; pip install math-verify

The mix is that of GRPO on competition math: groups of 8 responses to a problem; 95 % of the golds are plain numbers,
5 % expressions; of each group, half is right (written in two ways) and half wrong. Hostile responses are what a policy
or a bad tokenizer can emit; each must be answered, none may score 1, no worker may be lost.
"""

import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import reward  # noqa: E402

EXPRESSIONS = [                                 # gold, the same in other notation, two wrong answers; {} is a number
    (r"\frac{{\sqrt{{{}}}}}{{2}}", r"\frac12\sqrt{{{}}}", r"\sqrt{{{}}}", r"\frac{{\sqrt{{{}}}}}{{3}}"),
    (r"({},\frac{{1}}{{2}})", r"({},0.5)", r"({},2)", r"(0.5,{})"),
    (r"{}\pi", r"\pi\cdot {}", r"{}", r"-{}\pi"),
    (r"x^2+{}x", r"x(x+{})", r"x^2-{}x", r"x+{}"),
    (r"[0,{})", r"0\le x<{}", r"[0,{}]", r"(0,{})"),
]


def realistic_mix(problems, group_size, rng, numbers=range(2, 1000)):
    items = []
    for i in range(problems):
        n = rng.choice(numbers)
        if i % 20:
            gold, same, *wrong = rng.choice([("{}", "{}.0", "1{}", "-{}"), (r"\frac{{{}}}{{7}}", "{}/7", r"{}", "7")])
        else:
            gold, same, *wrong = rng.choice(EXPRESSIONS)
        boxes = [gold, same, *wrong] * (group_size // 4)
        thoughts = f"We compute step by step: {n} + 1 = {n + 1}, so that after {n + 1} - 1 we are done. " * rng.randrange(1, 8)
        items += [(thoughts + f"The answer is $\\boxed{{{box.format(n)}}}$.", gold.format(n), k % 4 < 2) for k, box in enumerate(boxes)]
    return items


def hostile(rng):
    """1,000 responses; none of them answers 5."""
    d = lambda: rng.randrange(2, 10)
    kinds = [
        lambda: rf"\boxed{{{d()}^{{{d()}^{{{d()}^{{{d()}}}}}}}}}", lambda: rf"\boxed{{({d()}^{{{d()}}})^{{{d()}^{{9999}}}}}}",
        lambda: rf"\boxed{{{d()}99999999!}}", lambda: rf"\boxed{{{d()}{'!' * 50}}}", lambda: rf"\boxed{{1.{d()}^{{64724169{d()}7}}}}",
        lambda: r"\boxed{" + rng.choice(["9", "x", "(", "\\frac{", "5+"]) * 100_000 + "}", lambda: r"\boxed{" + "{" * 50_000 + "5" + "}" * 50_000 + "}",
        lambda: r"\boxed{" + "(" * 140 + "5+1" + ")" * 140 + "}", lambda: r"\boxed{" + r"\sqrt{" * 30 + "2" + "}" * 30 + "}",
        lambda: r"\boxed{" + r"\frac{1}{" * 25 + "2" + "}" * 25 + "}", lambda: "\\boxed{5\0}" + "\0" * 1000, lambda: "\\boxed{\0}",
        lambda: "\\boxed{\ud800\udfff}", lambda: "\ud83d" * 500 + "\\boxed{\udcff6}", lambda: "\\boxed{\u202e5\u0336\u200d7}",
        lambda: r"\boxed{" * rng.randrange(1, 20_000), lambda: r"\boxed{5", lambda: r"\boxed{4} \boxed{5", lambda: "5 " * 10_000,
        lambda: "<think>" * 5000 + r"\boxed{5}", lambda: r"\boxed{" + "+".join(f"x^{{{k}}}" for k in range(60)) + "}",
        lambda: r"\boxed{\sum_{k=1}^{10^{9}} k^{99}}", lambda: r"\boxed{" + ",".join(map(str, range(80))) + "}",
        lambda: r"\boxed{\int_0^1 x^{x^x} dx}", lambda: r"\boxed{" + "-" * 290 + "}", lambda: r"\boxed{" + "\\" * 290 + "}",
        lambda: r"\boxed{__import__('os')._exit(0)}", lambda: r"\boxed{\text{5} \text{or} 6}", lambda: r"\boxed{\pm 5}",
        lambda: r"\boxed{\binom{99999999}{4999999}}", lambda: "".join(map(chr, rng.choices(range(1, 0x3000), k=2000))) + r"\boxed{}",
        lambda: r"\boxed{" + "".join(rng.choices(r"\{}()^_+-*/!%&$,x7 ", k=250)) + "}", lambda: r"\boxed{0." + "3" * 290 + "}",
    ]
    return [kinds[i % len(kinds)]() for i in range(1000)]


def main():
    rng = random.Random(0)
    warm = realistic_mix(500, 8, rng, range(1000, 2000))     # other numbers; as after the first steps of training
    start = time.perf_counter()
    reward.score_batch([r for r, _, _ in warm], [{"answer": a} for _, a, _ in warm], workers=2, timeout=60)
    cold = time.perf_counter() - start
    items = realistic_mix(500, 8, rng)
    start = time.perf_counter()
    scores = reward.score_batch([r for r, _, _ in items], [{"answer": a} for _, a, _ in items], workers=2, timeout=60)
    ours = time.perf_counter() - start
    our_errors = sum((s.reward == 1) != right for s, (_, _, right) in zip(scores, items))

    from math_verify import parse, verify
    for response, answer, _ in warm:
        verify(parse(f"\\boxed{{{answer}}}"), parse(response))
    start, their_errors = time.perf_counter(), 0
    for response, answer, right in items:
        their_errors += verify(parse(f"\\boxed{{{answer}}}"), parse(response)) != right
    theirs = time.perf_counter() - start

    attacks = hostile(rng)
    before = [worker.process.pid for worker in reward._started]
    start = time.perf_counter()
    results = reward.score_batch(attacks, [{"answer": "5"}] * len(attacks), workers=2)
    attacked = time.perf_counter() - start
    lost = sum(pid != worker.process.pid for pid, worker in zip(before, reward._started))
    alive = sum(worker.process.poll() is None for worker in reward._started)
    counts = ", ".join(f"{status} {sum(s.status == status for s in results)}" for status in reward.STATUSES)

    print(f"{len(items)} verdicts, 95 % plain numbers  seconds  verdicts/s  errors")
    print(f"reward.py, 2 workers               {ours:8.2f}  {len(items) / ours:10.0f}  {our_errors:6d}")
    print(f"the same with the start of workers {cold:8.2f}  {len(warm) / cold:10.0f}")
    print(f"math-verify, direct                {theirs:8.2f}  {len(items) / theirs:10.0f}  {their_errors:6d}")
    print(f"ratio                              {theirs / ours:8.1f}")
    print(f"{len(attacks)} hostile responses: {attacked:.1f} s, {1000 * attacked / len(attacks):.1f} ms each; {counts}; "
          f"{lost} of 2 workers replaced, {alive} alive")
    failures = [message for bad, message in [
        (any(s.reward for s in results), "a hostile response scored 1"), (alive != 2, "a dead worker was not replaced"),
        (theirs < 10 * ours, "less than ten times math-verify"), (attacked > 50, "more than 50 ms for a hostile response")] if bad]
    sys.exit("; ".join(failures) or 0)


if __name__ == "__main__":
    main()
