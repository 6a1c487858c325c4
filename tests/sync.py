"""A real optimizer step, then sync: the sampler has to be the trained model. test_train.py runs it under torchrun.
Usage: sync.py MODEL hf|vllm"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import train
from gradients import mini_batch, responses, stub_run
from support.batches import start_distributed
from support.samplers import HFSampler, VLLMSampler


def main(path: str, kind: str):
    device = start_distributed()
    tokenizer = AutoTokenizer.from_pretrained(path)
    cfg = train.Config(model=path, loss="grpo")
    policy = train.load_policy(cfg, tokenizer, device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, fused=True)
    sampler = (HFSampler(path, tokenizer, device=device, dtype=torch.float32) if kind == "hf" else
               VLLMSampler(path, tokenizer, dtype=torch.float32, max_model_len=128))
    prompts = [[int(i) for i in np.random.default_rng(k).integers(2, len(tokenizer), n)] for k, n in enumerate((9, 30, 100))]
    greedy = dict(n=1, max_tokens=12, temperature=0.0, seed=0)
    before = sampler.generate(prompts, **greedy)  # also fills vLLM's prefix cache with the old weights

    rows = responses(len(tokenizer))
    for _ in range(3):
        mini = mini_batch(rows, 64, device)
        for m, (m.old_logprobs, m.entropy) in zip(mini.batches, train.no_grad_pass(policy, mini.batches)):
            pass
        train.update(stub_run(cfg, policy, optimizer, device), mini)
    sampler.sleep()
    sampler.wake()
    sampler.load(train.hf_weights(policy, torch.float32))

    trained = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    trained.load_state_dict(dict(train.hf_weights(policy, torch.float32)))
    after = sampler.generate(prompts, **greedy)
    sampled = sampler.generate(prompts, n=4, max_tokens=12, temperature=0.8, seed=1)
    assert before != after, "the step changed nothing"
    worst = 0.0
    with torch.no_grad():
        for groups, temperature in ((after, 1.0), (sampled, 0.8)):  # greedy log-probs are those at temperature 1
            for prompt, group in zip(prompts, groups):
                for s in group:
                    logits = trained(torch.tensor([prompt + s.token_ids])).logits[0, len(prompt) - 1:-1]
                    logp = torch.log_softmax(logits / temperature, -1)
                    tokens = torch.tensor(s.token_ids)
                    if groups is after:
                        assert torch.equal(logits.argmax(-1), tokens), "the sampler's greedy tokens are not the model's"
                    worst = max(worst, float((logp.gather(1, tokens[:, None])[:, 0] - torch.tensor(s.logprobs)).abs().max()))
    assert worst < 1e-4, worst
    print(f"rank {dist.get_rank()} {kind}: log-probs agree to {worst:.1e}")
    dist.barrier()
    sampler.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
