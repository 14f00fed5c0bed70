"""Build a random Llama for paged attention on CUDA: `write_paged.py SHAPE.json OUT fp16|int4`.

Runs transformers and onnxruntime-genai's builder; the folder gets a tokenizer from the caller.
"""

import json
import subprocess
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

shape = json.loads(Path(sys.argv[1]).read_text())
out, precision = Path(sys.argv[2]), sys.argv[3]
source = out.with_name(f"{out.name}-source")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=shape["vocabulary"],
    hidden_size=shape["width"],
    intermediate_size=shape["inner"],
    num_hidden_layers=shape["layers"],
    num_attention_heads=shape["heads"],
    num_key_value_heads=shape["kv_heads"],
    head_dim=shape["head_size"],
    max_position_embeddings=shape["context"],
    eos_token_id=0,
    bos_token_id=None,
)
LlamaForCausalLM(config).to(torch.float16).save_pretrained(source)
tokenizer = PreTrainedTokenizerFast(tokenizer_file=sys.argv[4], eos_token="<|end|>")
tokenizer.save_pretrained(source)
subprocess.run(
    [
        *(sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", precision, "-e", "cuda"),
        *("-m", str(source), "-i", str(source), "-o", str(out), "-c", str(out.parent / "cache")),
        *("--extra_options", "use_paged_attention=true"),
    ],
    check=True,
)
