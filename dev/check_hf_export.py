"""Does transformers compute of our exports what it computes of the originals, bit for bit? By hand, not in `make test`:

    make build/release/tools/hf_copy && python dev/check_hf_export.py [DIRECTORY...]

Each checkpoint (default: test/golden/hf_*) is read by us, exported layer by layer, and both are loaded by transformers:
no tensor missing or unexpected, the same logits, the same tokens in generate(). A head of its own that transformers
scales (t5 with tie_word_embeddings true, umt5) is written with the factor moved: there logits agree to 1e-5. ByT5's
tokenizer is made without files. Needs torch, transformers.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from golden_hf import GOLDEN, put_in_head

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "release" / "tools" / "hf_copy"


def load(folder):
    is_encoder_decoder = AutoConfig.from_pretrained(folder).is_encoder_decoder
    kind = AutoModelForSeq2SeqLM if is_encoder_decoder else AutoModelForCausalLM
    model, info = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    return model.eval(), info


def answers(model):
    torch.manual_seed(1)
    vocab = model.config.vocab_size
    tokens = torch.randint(2, vocab, (3, 13))
    with torch.no_grad():
        if not model.config.is_encoder_decoder:
            return model(tokens).logits, model.generate(tokens[:, :5], max_new_tokens=8, do_sample=False,
                                                        pad_token_id=0)
        start = torch.cat([torch.zeros(3, 1, dtype=torch.long), torch.randint(2, vocab, (3, 6))], 1)
        return (model(input_ids=tokens, decoder_input_ids=start).logits,
                model.generate(tokens, max_new_tokens=8, do_sample=False))


def check(original, exported, tolerance):
    command = [str(COPY), str(original), str(exported)] + (["bytes"] if "byt5" in original.name else [])
    subprocess.run(command, check=True)
    ours, info = load(exported)
    assert not info["unexpected_keys"], info
    theirs, _ = load(original)
    logits, tokens = answers(ours)
    wanted, wanted_tokens = answers(theirs)
    difference = (logits - wanted).abs().max().item()
    assert difference <= tolerance, f"{original.name}: logits differ by {difference}"
    assert torch.equal(tokens, wanted_tokens), f"{original.name}: generate() says something else"
    if "byt5" in original.name:
        tokenizer = AutoTokenizer.from_pretrained(exported)
        assert tokenizer("añ").input_ids == [100, 198, 180, 1], tokenizer("añ").input_ids
        assert len(tokenizer) == 384
    return difference


def main():
    originals = [pathlib.Path(name) for name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        checks = [(folder, 0.0) for folder in originals or sorted(p for p in GOLDEN.glob("hf_*") if p.is_dir())]
        for name in ("hf_t5", "hf_umt5") if not originals else ():
            folder = temporary / f"{name}_untied"
            shutil.copytree(GOLDEN / name, folder)
            put_in_head(folder, torch.float32)
            checks.append((folder, 1e-5))
        for folder, tolerance in checks:
            print(f"ok   {folder.name}: logits differ by {check(folder, temporary / f'export_{folder.name}', tolerance)}")


if __name__ == "__main__":
    main()
