"""Make test/golden/hf_greedy.txt: what transformers' models write, greedily, with the tiny checkpoints of
test/golden/hf_* (golden_hf.py), for test_completion.c. A line: NAME N_PROMPT N_NEW, the prompt's tokens, the new ones (GPT-2's end
with its positions).

Prompts of length n: token i is (i * 7 + 3 * n) % 44 + 2. No end token is set, so that every answer is as long as asked. Two
likeliest tokens that lie closer than MARGIN would make the answer a matter of rounding: then this fails.
"""
import pathlib

import torch
from transformers import GPT2LMHeadModel, LlamaForCausalLM, Qwen2ForCausalLM, T5ForConditionalGeneration, UMT5ForConditionalGeneration

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "test" / "golden"
LENGTHS, NEW, MARGIN = (1, 4, 11), 12, 1e-4


def load(name):
    kinds = {"gpt2": GPT2LMHeadModel, "llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM, "umt5": UMT5ForConditionalGeneration}
    kind = next((kinds[k] for k in kinds if k in name), T5ForConditionalGeneration)
    return kind.from_pretrained(GOLDEN / f"hf_{name}", dtype=torch.float32).eval()


def answer(model, prompt):
    """Its own loop over the whole text, without a cache: the plainest that there is."""
    decoder = model.config.is_encoder_decoder
    said = [model.config.decoder_start_token_id] if decoder else list(prompt)
    begin = len(said)
    for _ in range(NEW if decoder else min(NEW, model.config.max_position_embeddings - begin)):
        text = torch.tensor([said])
        logits = model(input_ids=torch.tensor([prompt]), decoder_input_ids=text).logits if decoder else model(text).logits
        top = logits[0, -1].topk(2)
        assert top.values[0] - top.values[1] > MARGIN, (prompt, said)
        said.append(int(top.indices[0]))
    return said[begin:]


with torch.no_grad(), open(GOLDEN / "hf_greedy.txt", "w") as out:
    for name in ("t5", "flan", "byt5", "umt5", "gpt2", "gpt2_bare", "gpt2_like", "llama", "qwen2"):
        model = load(name)
        for length in LENGTHS:
            prompt = [(i * 7 + 3 * length) % 44 + 2 for i in range(length)]
            said = answer(model, prompt)
            print(name, length, len(said), *prompt, *said, file=out)
