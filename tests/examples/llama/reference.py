#!/usr/bin/env python3
"""What transformers and torch compute with models of the Llama family, for llama_test.py.

  reference.py make VARIANT FOLDER FILE TUNED  writes a small model with random weights and its tokenizer into FOLDER, what the program must
                                               compute with it into FILE, and the fine-tuned model into TUNED
  reference.py compare TUNED FOLDER...         prints for each folder the largest difference between its weights and those of TUNED, and
                                               the tokens that it generates
  reference.py record                          writes the folder `tiny` and `expected.json` next to this script anew

Status 77: this Python lacks a package."""
import argparse
import hashlib
import json
import math
import pathlib
import sys
import tempfile

try:
    import tokenizers
    import torch
    import transformers
except ImportError as error:
    print(error)
    sys.exit(77)

HERE = pathlib.Path(__file__).parent
TEXT = HERE.parents[2] / "LICENSE"
VOCABULARY = 300
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
LLAMA3_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# Scripts, signs, spaces and numbers, and texts of special tokens.
ODD = ("We'LL see: it's 12345678 o'clock,don't  \t\n\n  wait!!!\r\n x\u0085y\u00a0z\u3000\u2028w Straße ſ'ſ naïve e\u0301 ǅ 漢字とかな한국어 "
       "עברית العربية ١٢٣ ⅷ½² हिन्दी 👩‍👩‍👧🏽 🇩🇪 \u200b\u200d\ufeff \U0001f600\U00020000 " + BEGIN + "a" + END + "<|begin_of" +
       "<|pad|><|pad|> " + "  " * 5 + "a" * 300 + "…—\0\x7f ")
PROMPT = "Permission is granted: 漢 42"
STEPS, CONTEXT, ROWS, RATE = 20, 32, 4, 2e-3


def llama3_tokenizer():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(LLAMA3_WORDS), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return tokenizer


def gpt2_tokenizer():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True), tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer


LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}
VARIANTS = {
    "tied": (llama3_tokenizer, {"tie_word_embeddings": True, "num_key_value_heads": 2, "rope_parameters": LLAMA3_ROPE}),
    "untied": (llama3_tokenizer, {"num_key_value_heads": 2, "num_hidden_layers": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "gpt2": (gpt2_tokenizer, {"num_key_value_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-5,
                              "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}}),
}


def make_model(variant, folder):
    make_tokenizer, options = VARIANTS[variant]
    tokenizer = make_tokenizer()
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[BEGIN, END, "<|pad|>"], show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train([str(TEXT)], trainer)
    if tokenizer.model.ignore_merges:  # a word for which this matters
        parts = json.loads(tokenizer.to_str())
        parts["model"]["merges"].remove(["Ġth", "e"])
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(parts))
    if variant != "gpt2":
        tokenizer.post_processor = tokenizers.processors.Sequence([
            tokenizers.processors.ByteLevel(trim_offsets=False),
            tokenizers.processors.TemplateProcessing(single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B",
                                                     special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))])])
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END)
    wrapped.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**{
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "initializer_range": 0.2, "max_position_embeddings": 512, "bos_token_id": tokenizer.token_to_id(BEGIN),
        "eos_token_id": tokenizer.token_to_id(END), **options})
    model = transformers.LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder, max_shard_size="100KB" if variant == "gpt2" else "5GB")


def opened(folder, dtype=torch.float32):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def generated(model, tokens):
    out = model.generate(torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=torch.long), do_sample=False,
                         max_new_tokens=40, pad_token_id=0)[0].tolist()
    return out[:-1] if out[-1] == model.config.eos_token_id else out


def fine_tune(model, tokens, narrow=None):
    """The losses of the steps. narrow: the same model in bfloat16, which computes the losses and gradients; the parameters of `model` stay in
    float32."""
    computing = model if narrow is None else narrow
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.tensor(tokens)
    parts = (len(tokens) - 1) // CONTEXT
    losses = []
    for step in range(STEPS):
        done = (step + 1) / STEPS
        optimizer.param_groups[0]["lr"] = RATE * (done / 0.05 if done < 0.05 else 0.55 + 0.45 * math.cos(math.pi * (done - 0.05) / 0.95))
        if step % (parts // ROWS) == 0:
            order = torch.randperm(parts, generator=generator)
        first = step % (parts // ROWS) * ROWS
        rows = torch.stack([tokens[part * CONTEXT:(part + 1) * CONTEXT + 1] for part in order[first:first + ROWS]])
        loss = torch.nn.functional.cross_entropy(computing(rows[:, :-1]).logits.float().flatten(0, 1), rows[:, 1:].flatten())
        computing.zero_grad()
        loss.backward()
        for wide, own in zip(model.parameters(), computing.parameters()):
            wide.grad = own.grad.float()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if narrow is not None:
            narrow.load_state_dict(model.state_dict())
        losses.append(loss.item())
    return losses


def hash_of(tokens):
    return hashlib.sha256(" ".join(map(str, tokens)).encode()).hexdigest()


def make(variant, folder, file, tuned):
    make_model(variant, folder)
    model, tokenizer = opened(folder)
    prompt = tokenizer(PROMPT)["input_ids"]
    text = tokenizer(TEXT.read_text())["input_ids"]
    expected = {"prompt": PROMPT, "tokens": prompt, "odd": ODD, "odd_tokens": tokenizer(ODD)["input_ids"], "text_hash": hash_of(text)}
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0]
    expected["logits"] = [[float(f"{x:.7g}") for x in row] for row in logits.tolist()]
    expected["generated"] = generated(model, prompt)
    expected["training"] = ["--steps", STEPS, "--context", CONTEXT, "--batch-size", ROWS, "--learning-rate", RATE]
    expected["bfloat16_losses"] = fine_tune(opened(folder)[0], text, opened(folder, torch.bfloat16)[0])
    expected["losses"] = fine_tune(model, text)
    expected["generated_after"] = generated(model, prompt)
    model.save_pretrained(tuned)
    file.write_text(json.dumps(expected) + "\n")


def compare(tuned, *folders):
    expected = transformers.AutoModelForCausalLM.from_pretrained(tuned, dtype=torch.float32).state_dict()
    for folder in folders:
        model, tokenizer = opened(folder)
        weights = model.state_dict()
        assert weights.keys() == expected.keys()
        difference = max((weights[name] - expected[name]).abs().max().item() for name in weights)
        print(difference, *generated(model, tokenizer(PROMPT)["input_ids"]))


def record():
    tiny, file = HERE / "tiny", HERE / "expected.json"
    with tempfile.TemporaryDirectory() as tuned:
        make("tied", tiny, file, tuned)
    expected = json.loads(file.read_text())
    file.write_text(json.dumps({**expected, "logits": expected["logits"][-3:]}) + "\n")  # as the folder is small
    (tiny / "model.safetensors").chmod(0o644)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("make", "compare", "record"))
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    if options.command == "make":
        make(options.arguments[0], *map(pathlib.Path, options.arguments[1:]))
    elif options.command == "compare":
        compare(*options.arguments)
    else:
        record()
